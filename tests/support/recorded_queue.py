"""A queue of a real Slurm 22.05.8 as recorded: what is told of each of its jobs, and stand-ins for who tells it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.scheduler.slurm.limits import parse_limits
from clusterrun.scheduler.slurm.nodes import parse_nodes
from clusterrun.scheduler.slurm.reasons import find_reason
from clusterrun.scheduler.slurm.scontrol import parse_jobs, parse_show
from clusterrun.scheduler.slurm.squeue import parse_queue
from clusterrun.system import shell
from clusterrun.why import pending
from clusterrun.why.pending.facts import PendingFacts

DATA = Path(__file__).parents[1] / "data" / "slurm"
NOW = 1795257870.0  # when the answers were recorded


def recorded(name: str) -> str:
    """An answer of Slurm's."""
    return shell._text((DATA / f"why-{name}.txt").read_bytes())


@cache
def whole() -> PendingFacts:
    """Everything that was recorded, seen from no job."""
    return PendingFacts(
        id="",
        reason=None,
        now=NOW,
        queue=parse_queue(recorded("squeue-whole")),
        partitions=parse_show(recorded("show-partitions")),
        nodes=parse_nodes(recorded("show-nodes")),
        reservations=parse_show(recorded("show-reservations")),
        licenses=parse_show(recorded("show-licenses")),
        scopes=parse_limits(recorded("show-qos")) + parse_limits(recorded("show-assoc")),
        past=[],
    )


@cache
def request(number: str) -> dict[str, str]:
    """What a job asks for; of an array, of its waiting tasks."""
    blocks = [b for b in parse_jobs(recorded("show-jobs")) if b["JobId"] == number]
    return next((b for b in blocks if b["JobState"] == "PENDING"), blocks[0])


def facts(number: str, **changes: Any) -> PendingFacts:
    """Everything that was recorded, seen from one job."""
    asked = request(number)
    return replace(whole(), **{"id": number, "reason": find_reason(asked["Reason"]), "job": asked, **changes})


def status(number: str, reason: str = "") -> JobStatus:
    """The job as squeue has it."""
    said = reason or facts(number).job["Reason"]
    return JobStatus(id=JobId.parse(number), state="PENDING", outcome=Outcome.RUNNING, reason=said)


def judged(number: str, **changes: Any) -> pending.PendingReport:
    """Why it waits, by what was recorded."""
    return pending.explain_facts(facts(number, **changes), status(number))


def asking(number: str, **request: str) -> PendingFacts:
    """A recorded job that asks for something else."""
    known = facts(number)
    return replace(known, job=known.job | request)
