"""Reading a job's logs: where they are, what is in them, and what is added to them.

    lines.py    bytes of one file -> LogLine: labels off, srun's pieces joined, bounded memory
    files.py    the names of log files, opening them safely, all or the last lines of both
    follow.py   lines as they are written, through late, cut, replaced and vanished files
    select.py   --rank, --node and --grep -> what to look for

No colours and no printing: what is shown, and how, is decided above.
"""

from clusterrun.logs.files import LogFile, log_paths, read_lines
from clusterrun.logs.follow import follow
from clusterrun.logs.lines import LineReader, LogLine, Stream
from clusterrun.logs.select import compile_grep, node_ranks, select_tasks

__all__ = [
    "LineReader",
    "LogFile",
    "LogLine",
    "Stream",
    "compile_grep",
    "follow",
    "log_paths",
    "node_ranks",
    "read_lines",
    "select_tasks",
]
