"""What the ranks printed last: at a time limit they may have hung there, or waited for what the job did not have."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from clusterrun.why.causes.model import BY_STEPD, Logs
from clusterrun.why.causes.tracebacks import split_rank

REPEATED = 3
"""So many equal lines in a row are a program that waits; steps and times differ from line to line."""
_SHOWN = 120  # characters of a line in a sentence
_OF_SLURM = re.compile(rf"(?:srun|sbatch): |{BY_STEPD.pattern}")
_NUMBER = re.compile(r"(?i)(\brank\W{0,2})\d+")


class LastLine(NamedTuple):
    """The last line of a rank, how many times in a row it was printed, and the line before that."""

    text: str
    times: int = 1
    before: str = ""


def last_line_of_most(logs: Logs) -> tuple[str, bool]:
    """Return the last line of most ranks in words, but for their numbers, and whether it was printed repeatedly.

    Empty if most ranks have no common last line. That of a single rank counts only if it was repeated.
    """
    last = _last_lines(logs)
    alike = Counter(_NUMBER.sub(r"\1N", one.text) for one in last.values())
    text, ranks = max(alike.items(), key=lambda pair: pair[1], default=("", 0))
    newest = [one for one in last.values() if _NUMBER.sub(r"\1N", one.text) == text]
    longest = max(newest, key=lambda one: one.times, default=LastLine(""))
    repeated = longest.times >= REPEATED
    if 2 * ranks <= len(last) or not (len(last) > 1 or repeated):
        return "", False
    who = f"{ranks} of {len(last)} ranks" if len(last) > 1 else f"rank {next(iter(last))}"
    after = f", after: {longest.before[:_SHOWN]}" if longest.before else ""
    times = f" ({longest.times} times in a row{after})" if repeated else ""
    return f"{who} last printed: {text[:_SHOWN]}{times}", repeated


def _last_lines(logs: Logs) -> dict[int, LastLine]:
    """Return the last line of each rank; that of a later log counts."""
    last: dict[int, LastLine] = {}
    for lines in logs:
        of_log: dict[int, LastLine] = {}
        for line in lines:
            rank, text = split_rank(line)
            if rank is not None and text.strip() and not _OF_SLURM.match(text):
                of_log[rank] = _next(of_log.get(rank), text.strip())
        last |= of_log
    return last


def _next(known: LastLine | None, text: str) -> LastLine:
    if known is None:
        return LastLine(text)
    return known._replace(times=known.times + 1) if known.text == text else LastLine(text, before=known.text)
