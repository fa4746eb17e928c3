"""sprio: the parts of a pending job's priority. Arguments of the command, and a parser of its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterrun.scheduler.slurm.values import parse_float, parse_int

#: sprio's letters for the weighted parts, and their names (man sprio, 22.05 to 26.05).
_PARTS = {"A": "age", "B": "association", "F": "fair share", "J": "job size", "P": "partition", "Q": "QOS", "S": "site"}
#: sprio's error if the priority is only the order of submission.
NO_PARTS = "not running a supported priority plugin"


@dataclass(frozen=True, slots=True)
class Priority:
    """A job's priority and its parts other than zero, the largest first."""

    job: int
    total: float
    parts: tuple[tuple[str, float], ...] = ()


def priority_argv(jobs: Sequence[str]) -> list[str]:
    """Return the command for the priority of a job; for several jobs, of all pending ones.

    24.11 answers "Invalid job id" to a list, and sprio gets all jobs from the controller in any case.
    """
    letters = "|".join(f"%{letter}" for letter in ("i", "Y", *_PARTS))
    which = [f"--jobs={jobs[0]}"] if len(jobs) == 1 else []
    return ["sprio", "--noheader", *which, f"--format={letters}"]


def parse_priority(text: str) -> list[Priority]:
    """Parse the jobs, one per partition of a job; a line that does not parse is skipped."""
    found = []
    for line in text.splitlines():
        first, *numbers = (cell.strip() for cell in line.split("|"))
        job, values = parse_int(first), [parse_float(cell) for cell in numbers]
        if job is None or len(values) != len(_PARTS) + 1 or values[0] is None:
            continue
        parts = [(name, value) for name, value in zip(_PARTS.values(), values[1:], strict=True) if value]
        found.append(Priority(job, values[0], tuple(sorted(parts, key=lambda part: -part[1]))))
    return found
