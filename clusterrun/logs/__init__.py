"""Reading a job's logs: where they are, what is in them, what is added to them, and how it is shown.

    lines.py      bytes of one file -> LogLine: labels off, srun's pieces joined, bounded memory
    bars.py       progress bars: the last of their states
    pipe.py       bytes of one file -> bytes for a pipe: what needs no change is not taken apart
    wanted.py     what is asked for: whose files, which lines; complaints.py: what looks like an error
    files.py      the names of log files, and opening them safely
    merge.py      the order of two files, by a clock that noted how long they were
    reading.py    all lines, those from a time on, or the last
    follow.py     what is written, through late, cut, replaced and vanished files
    fold.py       what many ranks say at once, once
    show.py       how a line looks, on a terminal and in a pipe
    select.py     --rank, --node and --grep -> what to look for

No printing: bytes go up to be written.
"""

from clusterrun.logs.files import LogFile, log_paths
from clusterrun.logs.follow import follow
from clusterrun.logs.lines import LineReader, LogLine, Stream
from clusterrun.logs.reading import read_lines
from clusterrun.logs.select import compile_grep, node_ranks, select_tasks
from clusterrun.logs.wanted import Notice, Source, Tick, Want

__all__ = [
    "LineReader",
    "LogFile",
    "LogLine",
    "Notice",
    "Source",
    "Stream",
    "Tick",
    "Want",
    "compile_grep",
    "follow",
    "log_paths",
    "node_ranks",
    "read_lines",
    "select_tasks",
]
