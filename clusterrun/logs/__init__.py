"""Reading a job's logs: where they are, what is in them, what is added to them, and how it is shown.

    lines.py      bytes of one file -> LogLine: labels off, srun's pieces joined, bounded memory
    bars.py       progress bars: the last of their states
    pipe.py       bytes of one file -> bytes for a pipe: what needs no change is not taken apart
    wanted.py     what is asked for: whose files, which lines; complaints.py: what looks like an error
    grep.py       the lines of a block that a pattern finds
    files.py      the names of log files, and opening them safely
    merge.py      the order of two files, by a clock that noted how long they were
    reading.py    all lines, those from a time on, or the last
    follow.py     what is written, through late, cut, replaced and vanished files
    fold.py       what many ranks say at once, once
    look.py       how a line looks to people; raw.py: bytes as they are
    show.py       all of it as bytes that are ready to be written
    select.py     --rank, --node and --grep -> what to look for

No printing: bytes go up to be written.
"""

from clusterrun.job import log_paths
from clusterrun.logs.files import LogFile
from clusterrun.logs.follow import follow
from clusterrun.logs.lines import LineReader, LogLine, Stream
from clusterrun.logs.look import Look, look_of
from clusterrun.logs.reading import read_lines
from clusterrun.logs.select import compile_grep, node_ranks, select_tasks
from clusterrun.logs.show import show, show_following
from clusterrun.logs.wanted import LineFilter, Notice, Source, Tick

__all__ = [
    "LineFilter",
    "LineReader",
    "LogFile",
    "LogLine",
    "Look",
    "Notice",
    "Source",
    "Stream",
    "Tick",
    "compile_grep",
    "follow",
    "log_paths",
    "look_of",
    "node_ranks",
    "read_lines",
    "select_tasks",
    "show",
    "show_following",
]
