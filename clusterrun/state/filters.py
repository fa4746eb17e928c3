"""Select, sort and group the jobs of a list; parse the options that select them."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from clusterrun.base import units
from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.base.job import TERMINAL, JobId, JobStatus, Outcome, format_tasks, parse_tasks, split_tasks
from clusterrun.state.reconcile import RunState


def refuse_part(job: JobId, status: JobStatus) -> None:
    """Raise NoSuchJob for a task (``5_2``) or a component (``5+1``) of a run that has none; ``status`` is the run's.

    A record is found by the job number alone, so the whole run would be taken for the part.
    """
    hint = f"for the whole job, use {job.raw}"
    if job.task is not None and status.id.task is None and not status.tasks:
        raise NoSuchJob(f"no such job: {job} (job {job.raw} is not an array)", hint=hint)
    if job.part is not None and status.id.part is None:
        raise NoSuchJob(f"no such job: {job} (job {job.raw} has no components)", hint=hint)


#: Slurm's short state names (man squeue 22.05, JOB STATE CODES), as `squeue -t` takes them.
SHORT: dict[str, str] = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING",
    "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED",
    "R": "RUNNING", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED",
    "RS": "RESIZING", "RV": "REVOKED", "S": "SUSPENDED", "SE": "SPECIAL_EXIT", "SI": "SIGNALING",
    "SO": "STAGE_OUT", "ST": "STOPPED", "TO": "TIMEOUT",
}  # fmt: skip
#: clusterrun's own states beside Slurm's, as the table shows them.
_OWN_STATES = {Outcome.LOST: "LOST", Outcome.STOPPED: "STOPPED"}
_ENDED = frozenset({*TERMINAL, *_OWN_STATES.values()})
_KNOWN = frozenset({*SHORT.values(), *_ENDED, "EXPEDITING", "UNKNOWN"})
_STATES = r"\s*[A-Z_]{1,40}\s*(?:,\s*[A-Z_]{1,40}\s*)*"
_LAST = 10**10  # a place in an array after all of its tasks
_FIRST_DATE = -62_135_596_800  # of the year 1: sacct gets a date
OPEN = frozenset({Outcome.RUNNING, Outcome.UNKNOWN, Outcome.LOST})


class JobFilter(NamedTuple):
    """The jobs that a list shows.

    ``states`` empty means any state, ``name`` is a glob, ``since`` the epoch second of the oldest submission. With
    ``everything`` ended jobs count too, with ``all_clusters`` those on other clusters, with ``cluster`` only its jobs.
    """

    states: frozenset[str] = frozenset()
    name: str = ""
    since: int | None = None
    everything: bool = False
    all_clusters: bool = False
    cluster: str = ""

    @property
    def history(self) -> bool:
        """Whether the list includes ended jobs."""
        return self.everything or not self.states.isdisjoint(_ENDED)


def parse_states(text: str) -> frozenset[str]:
    """Parse ``PENDING,R`` into state names. Raises RequestError for a probable typing error.

    Other unknown names are accepted, since Slurm may know them.
    """
    typed = text.upper()
    if not re.fullmatch(_STATES, typed):
        raise RequestError(f"--state: invalid list of states: {text[:60]!r}", hint="for example: PENDING,RUNNING")
    states = [SHORT.get(word, word) for word in map(str.strip, typed.split(","))]
    for state in states:
        if state not in _KNOWN:
            _refuse_typing_error(state)
    return frozenset(states)


def _refuse_typing_error(state: str) -> None:
    import difflib

    if near := difflib.get_close_matches(state, _KNOWN, 1, 0.8):
        raise RequestError(f"--state: unknown state {state}", hint=f"did you mean {near[0]}?")


def parse_since(text: str, now: float) -> int:
    """Parse --since into seconds since 1970, as ``logs`` does. Raises RequestError, also before the year 1."""
    at = int(units.parse_since(text, now))
    if at < _FIRST_DATE:
        raise RequestError(f"--since: not a time: {text[:40]!r}", hint="for example --since 2d, 12h or 30m")
    return at


def choose(states: Iterable[RunState], wanted: JobFilter) -> list[RunState]:
    """Return the jobs of a listing that match a filter; it has ended ones only if the filter's ``history`` is set."""
    return [state for state in states if _is_wanted(state, wanted)]


def arrange(states: Sequence[RunState], *, expand: bool = False, merge_runs: bool = True) -> list[RunState]:
    """Return rows by submission time, the newest last. An array has a row per state, or per task with ``expand``.

    The tasks of a sweep are runs; without ``merge_runs`` each keeps its row.
    """
    if expand:
        rows = [replace(state, status=job) for state in states for job in split_tasks(state.status)]
    else:
        rows = collapse(states, merge_runs=merge_runs)
    return sorted(rows, key=_order)


def collapse(states: Sequence[RunState], *, merge_runs: bool = True) -> list[RunState]:
    """Merge the tasks of an array that are in the same state into one row; keep everything else as it is."""
    rows: list[RunState] = []
    groups = defaultdict[tuple[str, str, str, bool], list[RunState]](list)
    for state in states:
        job = state.status
        if _task_numbers(job) and (merge_runs or state.record is None):
            groups[job.id.cluster, job.id.raw, job.state, state.as_of is None].append(state)
        else:
            rows.append(state)
    return rows + list(chain.from_iterable(map(_merged, groups.values())))


def _is_wanted(state: RunState, wanted: JobFilter) -> bool:
    job = state.status
    words = (job.state, _OWN_STATES.get(job.outcome, job.state))
    if wanted.states and wanted.states.isdisjoint(words):
        return False
    if wanted.since is not None and state.submitted is not None and state.submitted < wanted.since:
        return False
    return not wanted.name or fnmatch.fnmatchcase(state.name, wanted.name)


def _merged(group: Sequence[RunState]) -> list[RunState]:
    """Merge tasks of one array in one state; values that differ are left out."""
    jobs = [state.status for state in group]
    if len(jobs) == 1:
        return list(group)
    first = jobs[0]
    merged = replace(
        first,
        id=JobId(first.id.raw, None, None, first.id.cluster),
        tasks=format_tasks(chain.from_iterable(map(_task_numbers, jobs))) + max(map(_limit, jobs)),
        reason=_common(jobs, "reason", ""),
        nodes=_common(jobs, "nodes", ""),
        node_count=first.node_count if first.state == "PENDING" else sum(_values(jobs, "node_count")),
        elapsed=max(_values(jobs, "elapsed"), default=0),
        started=min(_values(jobs, "started"), default=None),
        ended=max(_values(jobs, "ended"), default=None),
        exit_status=_common(jobs, "exit_status", None),
    )
    return [replace(group[0], status=merged)]


def _limit(job: JobStatus) -> str:
    """Return how many tasks of an array may run at once, as squeue writes it behind the list: ``%4``, else empty."""
    return "".join(job.tasks.partition("%")[1:])


def _task_numbers(job: JobStatus) -> list[int]:
    """Return the tasks of a row; none if it is of no array, or if their list cannot be parsed."""
    return [job.id.task] if job.id.task is not None else parse_tasks(job.tasks) or []


def _values(jobs: Iterable[JobStatus], name: str) -> list[int]:
    """Return the known values of a field, those that are 0 aside."""
    return [value for job in jobs if (value := getattr(job, name))]


def _common(jobs: Iterable[JobStatus], name: str, otherwise: Any) -> Any:
    """Return the value that a field has in all jobs."""
    values = {getattr(job, name) for job in jobs}
    return values.pop() if len(values) == 1 else otherwise


def _order(state: RunState) -> tuple[int, int, int]:
    return state.submitted or 0, state.status.id.number, _place(state.status)


def _place(job: JobStatus) -> int:
    """Return the place of a row in its array; the row of its pending tasks comes last."""
    if job.id.task is not None:
        return job.id.task
    return _LAST if job.tasks and job.state == "PENDING" else -1
