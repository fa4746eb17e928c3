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


class Verdict(Enum):
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
        """Return whether the job may start now, later or never, by the current states of the others."""
        if not self.conditions:
            return Verdict.MET
        verdicts = {_judge_one(word, status_of(id)) for word, id in self.conditions}
        order = (Verdict.MET, Verdict.WAITING, Verdict.NEVER)
        return next(v for v in (order if self.any_of else reversed(order)) if v in verdicts)


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
        word, *ids = part.split(":")
        if word not in _JUDGES:
            raise Refused(
                f"--dependency: the local scheduler does not support {word!r}", hint=f"supported: {', '.join(_JUDGES)}"
            )
        if not ids:
            raise Refused(f"--dependency: {part!r} does not name a job", hint=f"write {word}:L1")
        for id in ids:
            if not is_id(id):
                raise Refused(
                    f"--dependency: {id!r} is not a local job, but the new job runs locally",
                    hint="use local job ids, such as L7, or submit to Slurm with --scheduler slurm",
                )
        conditions += [(word, id) for id in ids]
    return Dependency(tuple(conditions), "?" in text)


def _judge_one(word: str, status: JobStatus | None) -> Verdict:
    """Judge one condition; a job whose folder was removed counts as ended."""
    return _JUDGES[word](status)


def _after(status: JobStatus | None) -> Verdict:
    waits = status is not None and status.started is None and status.state not in TERMINAL
    return Verdict.WAITING if waits else Verdict.MET


def _afterany(status: JobStatus | None) -> Verdict:
    return Verdict.WAITING if status is not None and status.state not in TERMINAL else Verdict.MET


def _afterok(status: JobStatus | None) -> Verdict:
    if status is not None and status.state not in TERMINAL:
        return Verdict.WAITING
    return Verdict.MET if status is not None and status.state == "COMPLETED" else Verdict.NEVER


def _afternotok(status: JobStatus | None) -> Verdict:
    if status is not None and status.state not in TERMINAL:
        return Verdict.WAITING
    return Verdict.MET if status is not None and status.state != "COMPLETED" else Verdict.NEVER


_JUDGES: dict[str, Callable[[JobStatus | None], Verdict]] = {
    "after": _after,
    "afterany": _afterany,
    "afterok": _afterok,
    "afternotok": _afternotok,
}
