"""What the ranks printed last: at a time limit they may have hung there, or waited for what the job did not have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from clusterrun.why.causes.model import BY_STEPD, Logs
from clusterrun.why.causes.tracebacks import split_rank

REPEATED = 3
"""So many equal lines in a row are a program that waits; steps and times differ from line to line."""
_SHOWN = 120  # characters of a line in a sentence
_OF_SLURM = re.compile(rf"(?:srun|sbatch): |{BY_STEPD.pattern}")
_NUMBER = re.compile(r"(?i)(\brank\W{0,2})\d+")


def last_line_of_most(logs: Logs) -> tuple[str, bool]:
    """Return the last line of most ranks in words, but for their numbers, and whether it was printed repeatedly.

    Empty if most ranks have no common last line. That of a single rank counts only if it was repeated.
    """
    printed = _printed_lines(logs)
    last = {rank: _NUMBER.sub(r"\1N", lines[-1]) for rank, lines in printed.items()}
    if not last:
        return "", False
    text, ranks = Counter(last.values()).most_common(1)[0]
    times, before = max(_repetition(lines) for rank, lines in printed.items() if last[rank] == text)
    repeated = times >= REPEATED
    if 2 * ranks <= len(last) or not (len(last) > 1 or repeated):
        return "", False
    who = f"{ranks} of {len(last)} ranks" if len(last) > 1 else f"rank {next(iter(last))}"
    return f"{who} last printed: {text[:_SHOWN]}{_how_often(times, before)}", repeated


def _how_often(times: int, before: str) -> str:
    if times < REPEATED:
        return ""
    after = f", after: {before[:_SHOWN]}" if before else ""
    return f" ({times} times in a row{after})"


def _repetition(lines: Sequence[str]) -> tuple[int, str]:
    """Return how many times in a row the last line was printed, and the line before that."""
    for times, line in enumerate(reversed(lines)):
        if line != lines[-1]:
            return times, line
    return len(lines), ""


def _printed_lines(logs: Logs) -> dict[int, list[str]]:
    """Return the lines of each rank; those of a later log count."""
    printed: dict[int, list[str]] = {}
    for lines in logs:
        of_log: dict[int, list[str]] = {}
        for line in lines:
            rank, text = split_rank(line)
            if rank is not None and text.strip() and not _OF_SLURM.match(text):
                of_log.setdefault(rank, []).append(text.strip())
        printed |= of_log
    return printed
