"""The full-screen view of ``top``, the only place that imports textual.

    source.py    queries and actions on a Cluster
    feeds.py     threads that keep the newest answer: the queue, the ranks' files, the log
    shown.py     values -> the text on the screen; pure
    dialogs.py   a yes/no question, and a text to read
    demo.py      a recorded run in place of a Cluster (`--demo`)
    app.py       the screen and its keys, and a table that is updated in place

The screen never waits for a scheduler or a file system: threads do, and it shows their newest answer with its age.
"""
