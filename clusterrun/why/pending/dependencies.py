"""Describe a job's dependency and the state of each job in it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from clusterrun.job import JobStatus, Outcome, outcome_of
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.terminal.units import first_few, format_clock, format_duration, plural

# afterok:1(unfulfilled)   afterany:5_*+10(failed)   singleton(unfulfilled)   expand:3
_ONE = re.compile(
    r"([a-z]+)(?::(L?\d{1,18}(?:_(?:\d{1,9}|\*))?)(?:\+(\d{1,9}))?)?(?:\(([a-z]+)\))?", re.IGNORECASE | re.ASCII
)

#: What each word waits for (sbatch(1), --dependency), and whether it can still be met by a job with such an outcome.
_DEMANDS: dict[str, tuple[str, Callable[[Outcome], bool] | None]] = {
    "after": ("to start or be cancelled", lambda outcome: True),
    "afterany": ("to end", lambda outcome: True),
    "afterok": ("to succeed", lambda outcome: outcome is Outcome.DONE),
    "afternotok": ("to fail", lambda outcome: outcome is not Outcome.DONE),
    "aftercorr": ("to succeed, task by task", lambda outcome: outcome is Outcome.DONE),
    "afterburstbuffer": ("to end, and for its burst buffer to be copied out", lambda outcome: True),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: its word, the job it names ("" for singleton), and what Slurm says of it (``unfulfilled``).

    ``delay`` is in minutes: so long after the job began (``after:1+10``).
    """

    word: str
    job: str = ""
    said: str = ""
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
    judged = [_sentence(one, queue, past) for one in each]
    lines = [line for line, _ in judged]
    any_of = "?" in text
    if len(each) > 1:
        lines.insert(0, "it waits for one of these:" if any_of else "it waits for all of these:")
    never = all(bad for _, bad in judged) if any_of else any(bad for _, bad in judged)
    return lines, never


def _sentence(one: Condition, queue: Sequence[Queued] | None, past: Sequence[JobStatus] | None) -> tuple[str, bool]:
    if one.word == "singleton":
        return "singleton: it waits until all earlier jobs of its user with the same name have ended", False
    wants, may = _DEMANDS.get(one.word, ("", None))
    name = f"{one.word}:{one.job}"
    demand = f"{name} waits for job {one.job} {wants}" if wants else name
    demand += f", plus {plural(one.delay, 'minute')}" if one.delay else ""
    rows = [row for row in queue or () if one.job in (str(row.raw), row.id, row.id.partition("_")[0])]
    base = one.job.partition("_")[0]
    if not rows and base != one.job:  # a task that has not begun has no row of its own, its array has one
        rows = [row for row in queue or () if row.id == base and row.state == "PENDING"]
    live = [row for row in rows if outcome_of(row.state) is Outcome.RUNNING]
    ended = {row.state for row in rows if row not in live}
    ended |= {job.state for job in past or () if job.is_over and one.job in (str(job.id), job.id.base)}
    bad = one.said == "failed" or (may is not None and any(not may(outcome_of(state)) for state in ended))
    if bad and not ended:
        return f"{demand}: Slurm reports that this has failed", True
    if bad:
        return f"{demand}, and it {_past_states(ended)}: this can never be met", True
    if live:
        return f"{demand}; it {_live_state(live, one.delay)}", False
    if ended:
        return f"{demand}; it {_past_states(ended)}", False
    return f"{demand}; the state of that job is unknown", False


def _past_states(states: Iterable[str]) -> str:
    return "is " + " and ".join(sorted(states))


def _live_state(rows: Sequence[Queued], delay: int) -> str:
    if len(rows) > 1:
        return f"has unfinished tasks: {_tasks(rows)}"
    row = rows[0]
    if row.state == "RUNNING" and delay and row.start:
        met = format_clock(row.start + 60 * delay)
        return f"has been RUNNING since {format_clock(row.start)}, so this is met at {met}"
    if row.state == "RUNNING":
        return f"is RUNNING, at most {format_duration(row.left)} more" if row.left else "is RUNNING"
    return f"is {row.state}" + (f" ({row.reason})" if row.reason else "")


def _tasks(rows: Sequence[Queued]) -> str:
    """Return the tasks by state; pending ones share a row of the queue, so they cannot be counted."""
    begun = Counter(row.state for row in rows if row.state != "PENDING")
    words = [f"{count} {state}" for state, count in sorted(begun.items())]
    whys = sorted({row.reason for row in rows if row.state == "PENDING" and row.reason})
    waits = any(row.state == "PENDING" for row in rows)
    return ", ".join([*words, *([f"others wait{f' ({first_few(whys)})' if whys else ''}"] if waits else [])])
