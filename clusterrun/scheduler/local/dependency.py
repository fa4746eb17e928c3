"""Dependencies of local jobs, in Slurm's syntax, judged by the states of other local jobs. No I/O.

``afterok:L3:L4,afterany:L5`` waits for all of its conditions, ``afterok:L3?afterany:L5`` for any of them
(man sbatch 22.05, --dependency; a mix of both is an error there too).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from clusterrun.base.errors import Refused
from clusterrun.base.job import TERMINAL, JobStatus
from clusterrun.scheduler.local.jobfiles import is_id

_WORDS = ("after", "afterany", "afterok", "afternotok")


class Verdict(Enum):
    """Whether a job may start now, later or never, in this order."""

    MET = "met"
    WAITING = "Dependency"  # the values of these two are Slurm's reasons
    NEVER = "DependencyNeverSatisfied"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Conditions (type, job id): all of them must be met, or with ``any_of`` one of them."""

    conditions: tuple[tuple[str, str], ...] = ()
    any_of: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(id for _, id in self.conditions)

    def judge(self, status_of: Callable[[str], JobStatus | None]) -> Verdict:
        """Return whether the job may start, by the current states of the others."""
        verdicts = [_judge_one(word, status_of(id)) for word, id in self.conditions]
        deciding = min if self.any_of else max
        return deciding(verdicts, key=[*Verdict].index, default=Verdict.MET)


def parse(text: str) -> Dependency:
    """Parse a dependency. Raises Refused for a type or an id that the local scheduler does not support."""
    if not text:
        return Dependency()
    if "," in text and "?" in text:
        raise Refused(
            f"--dependency: {text!r} mixes ',' (all) and '?' (any)",
            hint="use only one of the two separators, as in Slurm",
        )
    conditions: list[tuple[str, str]] = []
    for part in text.replace("?", ",").split(","):
        conditions += _parse_part(part)
    return Dependency(tuple(conditions), "?" in text)


def _parse_part(part: str) -> list[tuple[str, str]]:
    word, *ids = part.split(":")
    if word not in _WORDS:
        raise Refused(
            f"--dependency: the local scheduler does not support {word!r}", hint=f"supported: {', '.join(_WORDS)}"
        )
    if not ids:
        raise Refused(f"--dependency: {part!r} does not name a job", hint=f"write {word}:L1")
    for id in ids:
        if not is_id(id):
            raise Refused(
                f"--dependency: {id!r} is not a local job, but the new job runs locally",
                hint="use local job ids, such as L7, or submit to Slurm with --scheduler slurm",
            )
    return [(word, id) for id in ids]


def _judge_one(word: str, status: JobStatus | None) -> Verdict:
    """Judge one condition; a job whose folder was removed counts as ended, in a way that nobody knows."""
    ignores_end = word in ("after", "afterany")
    if status is None:
        return Verdict.MET if ignores_end else Verdict.NEVER
    if status.state not in TERMINAL:
        has_started = status.started is not None
        return Verdict.MET if word == "after" and has_started else Verdict.WAITING
    if ignores_end:
        return Verdict.MET
    has_completed = status.state == "COMPLETED"
    return Verdict.MET if has_completed == (word == "afterok") else Verdict.NEVER
