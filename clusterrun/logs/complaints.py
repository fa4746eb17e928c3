"""Which lines of a log look like an error: the words of --errors."""

from __future__ import annotations

import re

from clusterrun.logs.lines import LogLine

_ERROR = re.compile(
    r"(?:Error|Exception)\b"  # Python's and C++'s: ValueError, torch.OutOfMemoryError, std::exception
    r"|\b(?:ERROR|FATAL|CRITICAL|PANIC|SEVERE)\b"  # levels of loggers
    r"|\[E\d{4} |^E\d{4} "  # glog's, which torch's own C++ uses
    r"|\b[Ee]rror ?: |\b(?:fatal|panic): |\b[Ee]rror in\b"  # srun: error: , slurmstepd: error: , gcc, ld
    r"|\b(?:CUDA|NCCL|nccl|cuda|cuDNN|cuBLAS|HIP|ROCm|Bus|bus|MPI|ECC|I/O|Input/output|system|internal) [Ee]rror\b"
    r"|NCCL WARN|\bXid\b|out of memory|[Oo]ut[Oo]f[Mm]emory|\boom[-_ ]kill|\b[Kk]illed$|\bSIG(?:KILL|SEGV|ABRT|BUS)\b"
    r"|[Ss]egmentation fault|core dumped|^terminate called|^\s+what\(\): |Aborted$|[Aa]ssertion .*failed"
    r"|No space left on device|[Dd]isk quota exceeded|command not found|Permission denied|Connection (?:refused|reset)"
    r"|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|^\*{3} .* \*{3}$"
)
# a warning that names an error is still a warning; NCCL's are what goes before a failure
_WARNING = re.compile(r"Warning: |\b(?:WARNING|WARN)\b|\b[Ww]arning: ")
_PREFIX = re.compile(r"\[rank\d+\]:\s?")  # torch's own, before each line of a traceback
_TRACEBACK = "Traceback (most recent call last)"
_BETWEEN = ("During handling of the above exception", "The above exception was the direct cause")
_OPEN_KEPT = 65_536
_LOOKED_AT = 8192  # characters of a line: what is wrong is said at its beginning


class Complaints:
    """Tells the lines of one file that look like errors; asked for each line in its order, as tracebacks come whole.

    A traceback is its head, the indented lines after it and the first line that is not, all of one task.
    """

    def __init__(self) -> None:
        self._open: set[int | None] = set()  # tasks inside a traceback

    def __call__(self, line: LogLine) -> bool:
        text = line.text
        if text.startswith("[rank"):
            text = _PREFIX.sub("", text, count=1)
        if line.rank in self._open:
            if not text.startswith((" ", "\t")) and text:
                self._open.discard(line.rank)
            if text or line.rank in self._open:
                return True
        if _TRACEBACK in text:
            if len(self._open) < _OPEN_KEPT:
                self._open.add(line.rank)
            return True
        if text.startswith(_BETWEEN):
            return True
        if _ERROR.search(text, 0, _LOOKED_AT) is None:
            return False
        return "NCCL WARN" in text or _WARNING.search(text, 0, _LOOKED_AT) is None
