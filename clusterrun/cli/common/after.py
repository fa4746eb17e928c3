"""``--after`` and ``--after-ok``: start a job after other jobs, by their ids or names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from clusterrun.base.errors import Ambiguous, NoSuchJob, RequestError
from clusterrun.base.job import LOCAL, Outcome
from clusterrun.cli.common.names import find_ids
from clusterrun.cluster import Cluster

if TYPE_CHECKING:
    from clusterrun.state.reconcile import RunState
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    ("--after", "Start after this job (id, name or last) has ended, whatever its result; repeatable."),
    ("--after-ok", "Start after this job has succeeded; if it fails, the new job is cancelled; repeatable."),
)


class After(NamedTuple):
    """The jobs that a new job waits for: sbatch's conditions, and each job with its scheduler and cluster."""

    conditions: tuple[str, ...]
    places: tuple[tuple[str, str, str], ...]


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
    conditions, places = [], []
    for kind, words in (("afterany", ended), ("afterok", succeeded)):
        for name in find_ids(cluster, words):
            run = cluster.run(name)
            if run is not None and run.job_id is None:
                raise NoSuchJob(f"run {name} has no job yet", hint=f"clusterrun submit --recover {name}")
            states = cluster.status([name])
            base, _, elsewhere = name.partition(";")
            job = str(run.job_id) if run is not None else base
            if _is_met(states, job, is_run=run is not None, must_succeed=kind == "afterok"):
                cluster.notify(f"job {job} has already ended; not waiting for it")
                continue
            conditions.append(f"{kind}:{job}")
            places.append((job, run.scheduler, run.cluster) if run is not None else (job, "slurm", elsewhere))
    return After(tuple(conditions), tuple(places))


def plan_after(cluster: Cluster, args: SubmitArgs, after: After) -> Plan:
    """Plan a job that waits for others; raises RequestError if they run elsewhere."""
    if not after.conditions:
        return cluster.plan(args)
    from clusterrun.submit.depend import depend

    plan = cluster.plan(args, change=lambda request: depend(request, after.conditions))
    here = (plan.record.scheduler, plan.record.cluster)
    for job, scheduler, where in after.places:
        if scheduler != here[0] or (where and where != here[1]):
            raise RequestError(
                f"a job on {_place(*here)} cannot wait for job {job} on {_place(scheduler, where)}",
                hint=f"wait for it first: clusterrun wait {job}",
            )
    return plan


def _place(scheduler: str, cluster: str) -> str:
    return "this machine" if scheduler == LOCAL else f"cluster {cluster}" if cluster else "a cluster"


def _is_met(states: Sequence[RunState], job: str, *, is_run: bool, must_succeed: bool) -> bool:
    """Return whether a job, or all tasks of an array, have ended as wanted; raises RequestError if that is over."""
    for state in states if must_succeed else ():
        _refuse_failed(state, job, is_run=is_run)
    return bool(states) and all(state.status.is_final for state in states)


def _refuse_failed(state: RunState, job: str, *, is_run: bool) -> None:
    """Raise if a job cannot succeed any more, or may have failed.

    Slurm takes a condition as met if it has forgotten the job.
    """
    status = state.status
    if status.outcome is Outcome.UNKNOWN:
        raise Ambiguous(
            f"it is not known how job {status.id} ended, so a job with --after-ok {job} might start after a failure",
            detail=state.note or status.reason, hint="check its results, then submit without a condition",
        )  # fmt: skip
    if status.is_final and status.outcome is not Outcome.DONE:
        again = "resume" if status.outcome is Outcome.STOPPED else "resubmit"
        raise RequestError(
            f"job {status.id} is {status.state}, so a job with --after-ok {job} would never start",
            hint=f"use --after, or run `clusterrun {again} {job}` first" if is_run else "use --after",
        )
