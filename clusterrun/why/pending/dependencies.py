"""Describe a job's dependency and the state of each job in it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
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
    demand = _demand(one, wants)
    rows = _rows_of(one.job, queue or ())
    live = [row for row in rows if outcome_of(row.state) is Outcome.RUNNING]
    ended = {row.state for row in rows if row not in live} | _past_states(one.job, past)
    if one.state == "failed" or not _all_may(may, ended):
        return f"{demand}; {_why_never(ended)}", True
    if live:
        return f"{demand}; that job {_live_state(live, one.delay)}", False
    return f"{demand}; {_describe_ended(ended)}", False


def _demand(one: Condition, wants: str) -> str:
    """Return the condition in words; ``wants`` is what its job must do, empty for a type that is not known."""
    demand = f"{one.type}:{one.job} waits for job {one.job} {wants}" if wants else f"{one.type}:{one.job}"
    return f"{demand}, plus {plural(one.delay, 'minute')}" if one.delay else demand


def _all_may(may: Callable[[Outcome], bool] | None, states: Collection[str]) -> bool:
    """Return whether jobs that ended in these states can satisfy a condition."""
    return may is None or all(may(outcome_of(state)) for state in states)


def _rows_of(job: str, queue: Sequence[Queued]) -> list[Queued]:
    """Return the rows of a job in the queue; a task that has not started has none of its own, only its array has."""
    rows = [row for row in queue if job in (str(row.raw), row.id, row.id.partition("_")[0])]
    array = job.partition("_")[0]
    if rows or array == job:
        return rows
    return [row for row in queue if row.id == array and row.state == "PENDING"]


def _past_states(job: str, past: Sequence[JobStatus] | None) -> set[str]:
    return {one.state for one in past or () if one.is_over and job in (str(one.id), one.id.base)}


def _describe_ended(states: Collection[str]) -> str:
    if not states:
        return "the state of that job is unknown"
    shown = " and ".join(sorted(states))
    return f"that job is {shown}" if len(states) == 1 else f"the states of that job's tasks are {shown}"


def _why_never(states: Collection[str]) -> str:
    if not states:
        return "Slurm reports that this condition has failed"
    return f"{_describe_ended(states)}, so this condition can never be met"


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
    if begun.total() < len(rows):
        who = "others" if begun else "all"
        parts.append(f"{who} are pending{_pending_reasons(rows)}")
    return ", ".join(parts)


def _pending_reasons(rows: Sequence[Queued]) -> str:
    reasons = sorted({row.reason for row in rows if row.state == "PENDING" and row.reason})
    return f" ({first_few(reasons)})" if reasons else ""
