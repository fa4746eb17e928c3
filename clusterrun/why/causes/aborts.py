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
    for index, one in list(found.items()):
        if index > aborted[0] and one.kind == "crashed" and one.row is not TERMINATE and _ABORT.search(one.sentence):
            found[index] = replace(one, strength=Strength.ECHO)
    for index in aborted:
        near = range(index + 1, min(index + 4, len(lines)))
        what = next(((at, m["what"]) for at in near if (m := _WHAT.match(split_rank(lines[at])[1]))), None)
        if what is not None and what[0] in found:
            del found[index]  # a row matches the message itself
        elif what is not None:
            found[index] = replace(found[index], sentence=f"{found[index].sentence}: {what[1]}")
