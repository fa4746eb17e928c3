"""What a waiting job's priority is made of, as sprio tells it: argv out, text in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: sprio's letters for the weighted parts, and what people call them (man sprio, 22.05 to 26.05).
_PARTS = {"A": "age", "B": "association", "F": "fair share", "J": "job size", "P": "partition", "Q": "QOS", "S": "site"}
#: What sprio says where priority is no more than the order of arrival.
NO_PARTS = "not running a supported priority plugin"


@dataclass(frozen=True, slots=True)
class Priority:
    """A job's priority and its parts that are not zero, the biggest first."""

    job: int
    total: float
    parts: tuple[tuple[str, float], ...] = ()


def priority_argv(jobs: Sequence[str]) -> list[str]:
    """Ask for the parts of a job's priority; of several jobs, for those of all that wait.

    24.11 says "Invalid job id" of a list of them, and sprio gets all jobs from the controller in any case.
    """
    letters = "|".join(f"%{letter}" for letter in ("i", "Y", *_PARTS))
    which = [f"--jobs={jobs[0]}"] if len(jobs) == 1 else []
    return ["sprio", "--noheader", *which, f"--format={letters}"]


def parse_priority(text: str) -> list[Priority]:
    """The jobs of the answer, one in several partitions once for each; a line that does not read is left out."""
    found = []
    for line in text.splitlines():
        job, *numbers = (cell.strip() for cell in line.split("|"))
        values = [_number(cell) for cell in numbers]
        if not job.isascii() or not job.isdigit() or len(values) != len(_PARTS) + 1 or values[0] is None:
            continue
        parts = [(name, value) for name, value in zip(_PARTS.values(), values[1:], strict=True) if value]
        found.append(Priority(int(job), values[0], tuple(sorted(parts, key=lambda part: -part[1]))))
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None
