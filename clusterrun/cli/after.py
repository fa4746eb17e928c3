"""``--after`` and ``--after-ok``: start a job after other jobs, by their ids or names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from clusterrun.cli.names import find_ids
from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.job import LOCAL, Outcome

if TYPE_CHECKING:
    from clusterrun.records.run_record import RunRecord
    from clusterrun.state.reconcile import RunState
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    ("--after", "Start after this job (id, name or last) has ended, whatever its result; repeatable."),
    ("--after-ok", "Start after this job has succeeded, or be cancelled if it fails; repeatable."),
)


class After(NamedTuple):
    """The jobs that a new job waits for: sbatch's conditions, and the runs among them."""

    conditions: tuple[str, ...]
    runs: tuple[RunRecord, ...]


NOTHING = After((), ())


def after_options(command: F) -> F:
    """Add ``--after`` and ``--after-ok``."""
    for name, text in reversed(_OPTIONS):
        command = click.option(name, metavar="JOBID", multiple=True, help=text)(command)
    return command


def find_after(cluster: Cluster, ended: Sequence[str], succeeded: Sequence[str]) -> After:
    """Return the conditions of ``--after`` and ``--after-ok``; a job that has met its condition is left out.

    Raises NoSuchJob, and RequestError for a job that can no longer succeed.
    """
    conditions, runs = [], []
    for kind, words in (("afterany", ended), ("afterok", succeeded)):
        for name in find_ids(cluster, words):
            run = cluster.run(name)
            if run is not None and run.job_id is None:
                raise NoSuchJob(f"run {name} has no job yet", hint=f"clusterrun submit --recover {name}")
            states = cluster.status([name])
            job = str(run.job_id) if run is not None else name.partition(";")[0]
            if _is_met(states, job, must_succeed=kind == "afterok"):
                cluster.notify(f"job {job} has ended already; not waiting for it")
                continue
            conditions.append(f"{kind}:{job}")
            runs += [run] if run is not None else []
    return After(tuple(conditions), tuple(runs))


def plan_after(cluster: Cluster, args: SubmitArgs, after: After) -> Plan:
    """Plan a job that waits for others; raises RequestError if they run elsewhere."""
    if not after.conditions:
        return cluster.plan(args)
    from clusterrun.submit.depend import depend

    plan = cluster.plan(args, change=lambda request: depend(request, after.conditions))
    new = plan.record
    for run in after.runs:
        if run.scheduler != new.scheduler or (run.cluster and new.cluster and run.cluster != new.cluster):
            there, here = ("this machine" if one.scheduler == LOCAL else f"cluster {one.cluster}" for one in (run, new))
            raise RequestError(
                f"the new job, on {here}, cannot wait for job {run.job_id}, on {there}",
                hint=f"wait for it first: clusterrun wait {run.job_id}",
            )
    return plan


def _is_met(states: Sequence[RunState], job: str, *, must_succeed: bool) -> bool:
    """Return whether a job, or all tasks of an array, have ended as wanted; raises RequestError if that is over."""
    for state in states:
        status = state.status
        if must_succeed and status.is_final and status.outcome is not Outcome.DONE:
            again = "resume" if status.outcome is Outcome.STOPPED else "resubmit"
            raise RequestError(
                f"job {status.id} is {status.state}, so a job with --after-ok {job} would never start",
                hint=f"use --after, or first `clusterrun {again} {job}`",
            )
    return bool(states) and all(state.status.is_final for state in states)
