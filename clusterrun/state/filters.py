"""Select, sort and group the jobs of a list; parse the options that select them."""

from __future__ import annotations

import fnmatch
import re
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
_OWN_STATES = {"LOST": Outcome.LOST, "STOPPED": Outcome.STOPPED}
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
        return self.everything or any(word in TERMINAL or word in _OWN_STATES for word in self.states)


def parse_states(text: str) -> frozenset[str]:
    """Parse ``PENDING,R`` into state names. Raises RequestError for a probable typing error.

    Other unknown names are accepted, since Slurm may know them.
    """
    words = [word.strip().upper() for word in text.split(",")]
    if not all(re.fullmatch(r"[A-Z_]{1,40}", word) for word in words):
        raise RequestError(f"--state: invalid list of states: {text[:60]!r}", hint="for example: PENDING,RUNNING")
    known = {*SHORT.values(), *TERMINAL, *_OWN_STATES, "UNKNOWN"}
    for word in words:
        if word in SHORT or word in known:
            continue
        import difflib

        if near := difflib.get_close_matches(word, known, 1, 0.8):
            raise RequestError(f"--state: unknown state {word}", hint=f"did you mean {near[0]}?")
    return frozenset(SHORT.get(word, word) for word in words)


def parse_since(text: str, now: float) -> int:
    """Parse --since into seconds since 1970, as ``logs`` does. Raises RequestError, also before the year 1."""
    at = int(units.parse_since(text, now))
    if at < _FIRST_DATE:
        raise RequestError(f"--since: not a time: {text[:40]!r}", hint="for example --since 2d, 12h or 30m")
    return at


def choose(states: Iterable[RunState], wanted: JobFilter) -> list[RunState]:
    """Return the jobs that match a filter."""
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
    groups: dict[tuple[str, str, str, bool], list[RunState]] = {}
    for state in states:
        job = state.status
        is_task = job.id.task is not None or job.tasks
        if is_task and (merge_runs or state.record is None):
            groups.setdefault((job.id.cluster, job.id.raw, job.state, state.as_of is None), []).append(state)
        else:
            rows.append(state)
    for group in groups.values():
        rows += _merged(group)
    return rows


def _is_wanted(state: RunState, wanted: JobFilter) -> bool:
    if not wanted.history and state.status.outcome not in OPEN:
        return False
    if wanted.states and wanted.states.isdisjoint(_words_of(state.status)):
        return False
    if wanted.since is not None and state.submitted is not None and state.submitted < wanted.since:
        return False
    return not wanted.name or fnmatch.fnmatchcase(state.name, wanted.name)


def _words_of(job: JobStatus) -> list[str]:
    return [job.state, *(word for word, outcome in _OWN_STATES.items() if outcome is job.outcome)]


def _merged(group: Sequence[RunState]) -> list[RunState]:
    """Merge tasks of one array in one state; values that differ are left out."""
    together = [state for state in group if _task_numbers(state.status)]
    apart = [state for state in group if not _task_numbers(state.status)]  # a list that cannot be parsed keeps its row
    if len(together) < 2:
        return list(group)
    jobs = [state.status for state in together]
    first, numbers = jobs[0], chain.from_iterable(map(_task_numbers, jobs))
    limits = [job.tasks.partition("%")[2] for job in jobs if "%" in job.tasks]
    merged = replace(
        first,
        id=JobId(first.id.raw, None, None, first.id.cluster),
        tasks="%".join([format_tasks(numbers), *limits[:1]]),
        reason=_common(jobs, "reason", ""),
        nodes=_common(jobs, "nodes", ""),
        node_count=first.node_count if first.state == "PENDING" else sum(_values(jobs, "node_count")),
        elapsed=max(_values(jobs, "elapsed"), default=0),
        started=min(_values(jobs, "started"), default=None),
        ended=max(_values(jobs, "ended"), default=None),
        exit_status=_common(jobs, "exit_status", None),
    )
    return [replace(together[0], status=merged), *apart]


def _task_numbers(job: JobStatus) -> list[int]:
    """Return the tasks of a row, none if their list cannot be parsed."""
    return [job.id.task] if job.id.task is not None else parse_tasks(job.tasks) or []


def _values(jobs: Iterable[JobStatus], name: str) -> list[int]:
    """Return the known values of a field, those that are 0 aside."""
    return [value for job in jobs if (value := getattr(job, name))]


def _common(jobs: Iterable[JobStatus], name: str, otherwise: Any) -> Any:
    """Return the value that a field has in all jobs."""
    values = {getattr(job, name) for job in jobs}
    return values.pop() if len(values) == 1 else otherwise


def _order(state: RunState) -> tuple[int, int, int]:
    job = state.status
    task = job.id.task
    if task is None and job.tasks:  # the pending row of an array comes last
        task = 10**10 if job.state == "PENDING" else -1
    return state.submitted or 0, int(job.id.raw.lstrip("L") or 0), -1 if task is None else task
