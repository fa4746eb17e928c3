"""Read a job's logs: find them, parse them, filter them, follow them and format them.

    request.py    what the user asks: the flags of `logs`, LogRequest, Source, LineFilter
    select.py     parse --rank, --node and --grep; complaints.py: which lines look like an error
    files.py      names of log files, and opening them safely; locations.py: those of external jobs
    lines.py      bytes of one file -> LogLine: labels removed, srun's pieces joined, bounded memory
    bars.py       progress bars: only the last state
    pipe.py       bytes of one file -> bytes for a pipe; grep.py: the lines of a block that match a pattern
    raw.py        unchanged bytes
    reading.py    all lines, those since a time, or the last ones
    clock.py      the sizes of the files over time; merge.py: interleave two files by them
    follow.py     lines as they are written, through late, truncated, replaced and removed files
    fold.py       the same line of many ranks, once
    display.py    format a line for a terminal
    show.py       all of it as bytes ready to print
    ends.py       both ends of a log, for `why`

This package prints nothing: it returns bytes.
"""

from clusterrun.job import log_paths
from clusterrun.logs.display import DisplayFormat, detect_format
from clusterrun.logs.files import LogFile
from clusterrun.logs.follow import Timing, follow_lines
from clusterrun.logs.lines import LineReader, LogLine, Stream
from clusterrun.logs.reading import read_lines
from clusterrun.logs.request import LineFilter, LogRequest, Notice, Source, Tick
from clusterrun.logs.select import compile_grep, node_ranks, select_tasks
from clusterrun.logs.show import show, show_following

__all__ = [
    "DisplayFormat",
    "LineFilter",
    "LineReader",
    "LogFile",
    "LogLine",
    "LogRequest",
    "Notice",
    "Source",
    "Stream",
    "Tick",
    "Timing",
    "compile_grep",
    "detect_format",
    "follow_lines",
    "log_paths",
    "node_ranks",
    "read_lines",
    "select_tasks",
    "show",
    "show_following",
]
