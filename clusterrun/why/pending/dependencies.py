"""Describe a job's dependency and the state of each job in it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterrun.base.job import JobStatus, Outcome, outcome_of
from clusterrun.base.units import first_few, format_clock, format_duration, plural
from clusterrun.scheduler.slurm.squeue import Queued

# afterok:1(unfulfilled)   afterany:5_*+10(failed)   singleton(unfulfilled)   expand:3
_ONE = re.compile(
    r"([a-z]+)(?::(L?\d{1,18}(?:_(?:\d{1,9}|\*))?)(?:\+(\d{1,9}))?)?(?:\(([a-z]+)\))?", re.IGNORECASE | re.ASCII
)

#: What each type waits for (sbatch(1), --dependency), and whether a job with that outcome can still satisfy it.
_DEMANDS: dict[str, tuple[str, Callable[[Outcome], bool] | None]] = {
    "after": ("to start or be cancelled", lambda outcome: True),
    "afterany": ("to end", lambda outcome: True),
    "afterok": ("to succeed", lambda outcome: outcome is Outcome.DONE),
    "afternotok": ("to fail", lambda outcome: outcome is not Outcome.DONE),
    "aftercorr": ("to succeed (array task N waits for task N of that job)", lambda outcome: outcome is Outcome.DONE),
    "afterburstbuffer": ("to end and for its data to be copied out of the burst buffer", lambda outcome: True),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; ``state`` is Slurm's (``unfulfilled``, ``failed``), ``job`` is "" for singleton.

    ``delay`` is the number of minutes after the job's start (``after:1+10``).
    """

    type: str
    job: str = ""
    state: str = ""
    delay: int = 0


def parse_conditions(text: str) -> list[Condition]:
    """Parse the conditions of scontrol's ``Dependency``; invalid parts are left out."""
    found = []
    for part in re.split(r"[,?]", text):
        match = _ONE.fullmatch(part.strip())
        if match:
            job = (match[2] or "").removesuffix("_*")
            found.append(Condition(match[1].lower(), job, (match[4] or "").lower(), int(match[3] or 0)))
    return found


def describe_conditions(
    text: str, queue: Sequence[Queued] | None, past: Sequence[JobStatus] | None
) -> tuple[list[str], bool]:
    """Return a line per condition with the state of its job, and whether the dependency can never be met."""
    each = parse_conditions(text)
    if not each:
        return [], False
    lines, unmet = zip(*(_describe_condition(one, queue, past) for one in each), strict=True)
    any_of = "?" in text
    heading = [f"the job is waiting for {'one' if any_of else 'all'} of these:"] if len(each) > 1 else []
    return [*heading, *lines], all(unmet) if any_of else any(unmet)


def _describe_condition(
    one: Condition, queue: Sequence[Queued] | None, past: Sequence[JobStatus] | None
) -> tuple[str, bool]:
    """Return the condition with the state of its job, and whether it can never be satisfied."""
    if one.type == "singleton":
        return "singleton waits until all the user's earlier jobs with the same name have ended", False
    wants, may = _DEMANDS.get(one.type, ("", None))
    name = f"{one.type}:{one.job}"
    demand = f"{name} waits for job {one.job} {wants}" if wants else name
    demand += f", plus {plural(one.delay, 'minute')}" if one.delay else ""
    rows = [row for row in queue or () if one.job in (str(row.raw), row.id, row.id.partition("_")[0])]
    base = one.job.partition("_")[0]
    if not rows and base != one.job:  # a task that has not started has no row of its own, only its array has one
        rows = [row for row in queue or () if row.id == base and row.state == "PENDING"]
    live = [row for row in rows if outcome_of(row.state) is Outcome.RUNNING]
    ended = {row.state for row in rows if row not in live}
    ended |= {job.state for job in past or () if job.is_over and one.job in (str(job.id), job.id.base)}
    bad = one.state == "failed" or (may is not None and any(not may(outcome_of(state)) for state in ended))
    states = " and ".join(sorted(ended))
    ends = f"that job is {states}" if len(ended) == 1 else f"the states of that job's tasks are {states}"
    if bad:
        why = (
            f"; {ends}, so this condition can never be met"
            if ended
            else "; Slurm reports that this condition has failed"
        )
    elif live:
        why = f"; that job {_live_state(live, one.delay)}"
    else:
        why = f"; {ends}" if ended else "; the state of that job is unknown"
    return demand + why, bad


def _live_state(rows: Sequence[Queued], delay: int) -> str:
    if len(rows) > 1:
        return f"has unfinished tasks: {_tasks(rows)}"
    row = rows[0]
    if row.state == "RUNNING" and delay and row.start:
        met = format_clock(row.start + 60 * delay)
        return f"has been RUNNING since {format_clock(row.start)}, so this condition will be met at {met}"
    if row.state == "RUNNING":
        return f"is RUNNING, for at most {format_duration(row.left)} more" if row.left else "is RUNNING"
    return f"is {row.state}" + (f" ({row.reason})" if row.reason else "")


def _tasks(rows: Sequence[Queued]) -> str:
    """Return the tasks by state; pending ones share a row of the queue, so they cannot be counted."""
    begun = Counter(row.state for row in rows if row.state != "PENDING")
    parts = [f"{count} {state}" for state, count in sorted(begun.items())]
    waiting = [row for row in rows if row.state == "PENDING"]
    reasons = sorted({row.reason for row in waiting if row.reason})
    if waiting:
        parts.append(f"{'others' if begun else 'all'} are pending{f' ({first_few(reasons)})' if reasons else ''}")
    return ", ".join(parts)
