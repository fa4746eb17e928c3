"""How runs stand wherever they went: each scheduler is asked once, and what cannot be asked from here says so."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.errors import NoScheduler, SchedulerError
from clusterrun.job import LOCAL
from clusterrun.records.ownership import covers
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.factory import Reach
from clusterrun.state import reconcile
from clusterrun.state.reconcile import RunState


def read(runs: Sequence[RunRecord], reach: Reach, store: Store, answer: Answer | None = None) -> list[RunState]:
    """The states of runs, in their order: one question to each scheduler, whatever their number.

    ``answer`` is Slurm's of this moment, where it is at hand.
    """
    found: dict[str, RunState] = {}
    for name in dict.fromkeys(run.scheduler for run in runs):
        some = [run for run in runs if run.scheduler == name]
        try:
            scheduler = reach.scheduler(name)
        except NoScheduler as error:
            found |= {run.run_id: reconcile.offline(store, run, error.message) for run in some}
            continue
        away = [run for run in some if not is_on(run, scheduler)]
        found |= {run.run_id: reconcile.offline(store, run, _elsewhere(run, scheduler)) for run in away}
        here = [run for run in some if is_on(run, scheduler)]
        told = answer if scheduler.name != LOCAL else None
        for state in reconcile.read(store, scheduler, here, answer=told):
            assert state.record is not None
            found[state.record.run_id] = state
    return [found[run.run_id] for run in runs]


def scheduler_of(run: RunRecord | None, reach: Reach) -> Scheduler:
    """The scheduler to ask about a run, Slurm for a job without one; raises SchedulerError for another cluster's."""
    scheduler = reach.scheduler(run.scheduler if run else "slurm")
    if run is not None and not is_on(run, scheduler):
        raise SchedulerError(
            f"run {run.run_id}: {_elsewhere(run, scheduler)}",
            hint="set SLURM_CONF (or SLURM_CLUSTERS) for that cluster",
        )
    return scheduler


def is_on(run: RunRecord, scheduler: Scheduler) -> bool:
    """Whether a scheduler is that of the run's cluster."""
    return covers(scheduler.cluster, run.cluster)


def _elsewhere(run: RunRecord, scheduler: Scheduler) -> str:
    here = f"cluster {scheduler.cluster}" if scheduler.cluster else "a cluster whose name is not known"
    return f"it was submitted to cluster {run.cluster or '(not known)'}; this shell is configured for {here}"
