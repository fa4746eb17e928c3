"""Describe a job's dependency and the state of each job in it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from clusterrun.base.job import JobStatus, Outcome, outcome_of
from clusterrun.base.units import clause, first_few, format_clock, format_duration, plural
from clusterrun.scheduler.slurm.squeue import Queued

# afterok:1(unfulfilled)   afterany:5_*+10(failed)   singleton(unfulfilled)   expand:3
_ONE = re.compile(
    r"([a-z]+)(?::(L?\d{1,18}(?:_(?:\d{1,9}|\*))?)(?:\+(\d{1,9}))?)?(?:\(([a-z]+)\))?", re.IGNORECASE | re.ASCII
)

#: What each type waits for (sbatch(1), --dependency).
_DEMANDS = {
    "after": "to start or be cancelled",
    "afterany": "to end",
    "afterok": "to succeed",
    "afternotok": "to fail",
    "aftercorr": "to succeed (array task N waits for task N of that job)",
    "afterburstbuffer": "to end and for its data to be copied out of the burst buffer",
}


def parse_conditions(text: str) -> list[tuple[str, str, int, str]]:
    """Parse the conditions of scontrol's ``Dependency``; invalid parts are left out.

    Each is a type, its job ("" for singleton), the minutes after the job's start (``after:1+10``), and Slurm's state.
    """
    conditions = []
    for part in re.split(r"[,?]", text):
        match = _ONE.fullmatch(part.strip())
        if match:
            type, job, delay, state = match.groups("")
            conditions.append((type.lower(), job.removesuffix("_*"), int(delay or 0), state.lower()))
    return conditions


def describe_conditions(text: str, queue: Sequence[Queued], past: Sequence[JobStatus]) -> tuple[list[str], bool]:
    """Return a line per condition with the state of its job, and whether the dependency can never be met."""
    lines: list[str] = []
    unmet: list[bool] = []
    for type, job, delay, state in parse_conditions(text):
        if type == "singleton":
            line, never = "singleton waits until all the user's earlier jobs with the same name have ended", False
        else:
            live, ended = _states_of(job, queue, past)
            never = state == "failed" or _is_ruled_out(type, ended)
            line = f"{_demand(type, job, delay)}; {_fulfilment(live, ended, delay, never)}"
        lines.append(line)
        unmet.append(never)
    which, is_never_met = ("one", bool(unmet) and all(unmet)) if "?" in text else ("all", any(unmet))
    if len(lines) > 1:
        lines.insert(0, f"the job is waiting for {which} of these:")
    return lines, is_never_met


def _demand(type: str, job: str, delay: int) -> str:
    demand = f"{type}:{job}{clause(_DEMANDS.get(type), f' waits for job {job} {{}}')}"
    return f"{demand}, plus {plural(delay, 'minute')}" if delay else demand


def _is_ruled_out(type: str, states: Collection[str]) -> bool:
    """Return whether a condition can never be met once its job or tasks ended in these states."""
    outcomes = {outcome_of(state) is Outcome.DONE for state in states}
    if type == "afternotok":
        return True in outcomes
    return type in ("afterok", "aftercorr") and False in outcomes


def _fulfilment(live: Sequence[Queued], ended: Collection[str], delay: int, never: bool) -> str:
    """Return the state of a condition's job, and that the condition can never be met."""
    if never and not ended:
        return "Slurm reports that this condition has failed"
    if never:
        return f"{_describe_ended(ended)}, so this condition can never be met"
    return f"that job {_live_state(live, delay)}" if live else _describe_ended(ended)


def _states_of(job: str, queue: Sequence[Queued], past: Sequence[JobStatus]) -> tuple[list[Queued], set[str]]:
    """Return the rows of a job in the queue that has not ended, and the states in which it or its tasks ended."""
    live = []
    ended = {status.state for status in past if status.is_over and job in (str(status.id), status.id.base)}
    for row in _rows_of(job, queue):
        if outcome_of(row.state) is Outcome.RUNNING:
            live.append(row)
        else:
            ended.add(row.state)
    return live, ended


def _rows_of(job: str, queue: Sequence[Queued]) -> list[Queued]:
    """Return the rows of a job in the queue; a task that has not started has none of its own, only its array has."""
    rows, of_array = [], []
    for row in queue:
        if job in (str(row.raw), row.id, row.id.partition("_")[0]):
            rows.append(row)
        elif row.id == job.partition("_")[0] and row.state == "PENDING":
            of_array.append(row)
    return rows or of_array


def _describe_ended(states: Collection[str]) -> str:
    if not states:
        return "the state of that job is unknown"
    shown = " and ".join(sorted(states))
    return f"that job is {shown}" if len(states) == 1 else f"the states of that job's tasks are {shown}"


def _live_state(rows: Sequence[Queued], delay: int) -> str:
    if len(rows) > 1:
        return f"has unfinished tasks: {_tasks(rows)}"
    row = rows[0]
    if row.state != "RUNNING":
        return f"is {row.state}{clause(row.reason, ' ({})')}"
    if delay and row.start:
        met = format_clock(row.start + 60 * delay)
        return f"has been RUNNING since {format_clock(row.start)}, so this condition will be met at {met}"
    return f"is RUNNING, for at most {format_duration(row.left)} more" if row.left else "is RUNNING"


def _tasks(rows: Sequence[Queued]) -> str:
    """Return the tasks by state; pending ones share a row of the queue, so they cannot be counted."""
    states = Counter(row.state for row in rows)
    pending = states.pop("PENDING", 0)
    parts = [f"{count} {state}" for state, count in sorted(states.items())]
    if pending:
        who = "others" if parts else "all"
        reasons = {row.reason for row in rows if row.state == "PENDING"} - {""}
        parts.append(f"{who} are pending{clause(first_few(sorted(reasons)), ' ({})')}")
    return ", ".join(parts)
