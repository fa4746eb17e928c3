"""Dependencies of local jobs, in Slurm's syntax, judged by the states of other local jobs. No I/O.

``afterok:L3:L4,afterany:L5`` waits for all of its conditions (man sbatch 22.05, --dependency).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.base.errors import Refused
from clusterrun.base.job import TERMINAL, JobStatus
from clusterrun.scheduler.local.jobfiles import is_id

_WORDS = ("after", "afterany", "afterok", "afternotok")
#: Slurm's reasons: the job waits for other jobs; the job can never start.
WAITING, NEVER = "Dependency", "DependencyNeverSatisfied"


def parse(text: str) -> list[tuple[str, str]]:
    """Parse a dependency into its conditions, each a type and a job id.

    Raises Refused for a type or an id that the local scheduler does not support.
    """
    return [condition for part in text.split(",") if text for condition in _parse_part(part)]


def judge(conditions: Sequence[tuple[str, str]], status_of: Callable[[str], JobStatus | None]) -> str:
    """Return why a job with these conditions may not start, by the current states of the others; empty if it may."""
    reasons = {_judge_one(word, status_of(id)) for word, id in conditions}
    return next((reason for reason in (NEVER, WAITING) if reason in reasons), "")


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


def _judge_one(word: str, status: JobStatus | None) -> str:
    """Judge one condition; a job whose folder was removed counts as ended, in a way that nobody knows."""
    ignores_end = word in ("after", "afterany")
    if status is None:
        return "" if ignores_end else NEVER
    if status.state not in TERMINAL:
        has_started = status.started is not None
        return "" if word == "after" and has_started else WAITING
    if ignores_end:
        return ""
    has_completed = status.state == "COMPLETED"
    return "" if has_completed == (word == "afterok") else NEVER
