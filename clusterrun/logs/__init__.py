"""Read a job's logs: find them, parse them, filter them, follow them and format them. It prints nothing.

request.py    what the user asks: the flags of `logs`, LogRequest, LineFilter; which srun labels ranks have
files.py      a job's two files: opening them safely, and the log clock that orders their lines
locations.py  the files of external jobs
labels.py     srun's label, and one line: LogLine
lines.py      bytes of one file -> lines, or whole blocks of them: srun's pieces joined, progress bars replaced
filters.py    which lines have a rank or match a pattern; complaints.py: which look like an error
reading.py    all lines, those since a time, or the last ones
follow.py     lines as they are written, through late, truncated, replaced and removed files
frames.py     lines with the place that they reach, to continue there after a lost connection of `--remote`
show.py       all of it as bytes ready to print: for a pipe or a terminal
ends.py       both ends of a log, for `why`
"""
