"""Name the library in which a process crashed, from the backtrace that UCX, Open MPI or gdb prints."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterrun.why.causes.model import Line
from clusterrun.why.causes.tracebacks import split_rank

_NEAR = 60  # lines after the report of the signal
_READ = 500  # characters of a line that are searched
_FRAME = re.compile(  # of UCX and Open MPI, of gdb
    r"(?:^|\] ) *(?:\[ ?\d{1,3}\]|\d{1,3}:?) +/\S{0,300}?/(?P<library>[\w+-][\w.+-]*\.so[\w.]*)\((?P<function>\w*)"
    r"|^#\d{1,3} +(?:0x\w+ in )?(?P<called>\w+) \(.{0,100}\) from /\S{0,300}?/(?P<loaded>[\w+-][\w.+-]*\.so[\w.]*)"
)
#: in every backtrace: the handlers of signals, and C's library
_OF_HANDLERS = re.compile(r"lib(?:c|pthread|dl|gcc_s|ucs|open-pal|asan)\.so|libc-|ld-")
_UCX_ERROR = re.compile(r"UCX +ERROR +(?P<what>\S.{0,160})")


def find_crashed_library(lines: Sequence[Line], index: int) -> str:
    """Return ``libmpi.so.40 (MPI_Send)``, the innermost library of the backtrace after a crash; empty if not shown."""
    for text in _following(lines, index):
        frame = _FRAME.search(text)
        library = (frame["library"] or frame["loaded"]) if frame else ""
        if frame and not _OF_HANDLERS.match(library):
            function = frame["function"] or frame["called"]
            return f"{library} ({function})" if function else library
    return ""


def find_ucx_error(lines: Sequence[Line], index: int) -> str:
    """Return UCX's first error after a crash, which it prints late; empty if there is none."""
    errors = (_UCX_ERROR.search(text) for text in _following(lines, index))
    return next((error["what"] for error in errors if error), "")


def _following(lines: Sequence[Line], index: int) -> list[str]:
    rank = split_rank(lines[index])[0]
    near = [split_rank(line) for line in lines[index + 1 : index + _NEAR]]
    return [text[:_READ] for who, text in near if who == rank]
