"""The full-screen view of ``top``, the only place that imports textual.

    pace.py      how long to wait before the scheduler is asked again
    source.py    what the view asks of a Cluster, and what it has it do
    feeds.py     threads that keep the newest answer: the queue, the ranks' files, the log
    shown.py     values -> the words on the screen; pure
    grid.py      a table that is brought up to date instead of being built anew
    dialogs.py   yes or no, and a text to read
    app.py       the screen and its keys

Nothing on the screen waits for a scheduler or a file system: threads do, and the screen shows the newest they have,
with its age.
"""
