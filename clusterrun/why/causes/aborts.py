"""Prefer the message of a process that aborted in C++ to reports of its signal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clusterrun.why.causes.model import Line, LogFinding, Strength
from clusterrun.why.causes.table_launch import TERMINATE
from clusterrun.why.causes.tracebacks import split_rank

_ABORT = re.compile(r"(?i)\babort|signal 6|SIGABRT")
_WHAT = re.compile(r"^\s*what\(\):\s+(?P<what>\S.{0,300})")


def apply_abort_messages(found: dict[int, LogFinding], lines: Sequence[Line]) -> None:
    """Prefer a process's own abort message (``what()``) to later reports of the abort, in place."""
    aborted = [index for index in sorted(found) if found[index].row is TERMINATE]
    if not aborted:
        return
    for index, finding in list(found.items()):
        if index > aborted[0] and _reports_abort(finding):
            found[index] = replace(finding, strength=Strength.ECHO)
    for index in aborted:
        at, what = _find_what(lines, index)
        if at in found:
            del found[index]  # a row matches the message itself
        elif what:
            found[index] = replace(found[index], sentence=f"{found[index].sentence}: {what}")


def _reports_abort(finding: LogFinding) -> bool:
    return finding.kind == "crashed" and finding.row is not TERMINATE and _ABORT.search(finding.sentence) is not None


def _find_what(lines: Sequence[Line], index: int) -> tuple[int, str]:
    """Return the line with the message of an abort, and the message; -1 and an empty text without one."""
    for at in range(index + 1, min(index + 4, len(lines))):
        match = _WHAT.match(split_rank(lines[at])[1])
        if match is not None:
            return at, match["what"]
    return -1, ""
