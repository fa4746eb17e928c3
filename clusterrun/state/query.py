"""Query the state of runs across schedulers, with one query per scheduler, and join the queue with the records.

Runs of a cluster that is not reachable from this shell get state UNKNOWN and a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.errors import NoScheduler, RequestError, SchedulerError
from clusterrun.base.job import LOCAL, JobId, JobStatus, Outcome, covers, one_cluster, split_tasks, token_part
from clusterrun.base.units import plural
from clusterrun.records import run_record
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import identity
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.factory import SchedulerFactory
from clusterrun.state import external, filters, reconcile
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.watch import records_changed_at


class StateQuery(NamedTuple):
    """Queries the states of runs; ``notify`` gets a line for each thing that cannot be shown."""

    factory: SchedulerFactory
    store: Store
    notify: Callable[[str], None]

    def find_run(self, job: JobId) -> RunRecord | None:
        """Return the run of a job id, the newest if Slurm reused the id; None for an external job."""
        known = self.store.by_job(job)
        # an id without a cluster's name means the cluster that this shell is configured for
        here = [run for run in known if job.is_local or job.cluster or self.is_here(run)]
        if not here and self.factory.may_know(job):
            folders, exists = external.find_run_folders(job, self.factory.scheduler("slurm"))
            here = self.store.by_job(job, hint=folders) if folders else []
            if exists and not any(run.run_dir in folders for run in here):
                return None  # Slurm has a job of that id, and it belongs to no run here
        known = here or known
        if len(known) > 1:
            older = ", ".join(run.run_id for run in known[:-1])
            self.notify(f"job id {job} was reused by Slurm; showing the newest run (older: {older})")
        return self._at(known[-1], job) if known else None

    def _at(self, run: RunRecord, job: JobId) -> RunRecord:
        """Return a run as the submission of this job has it; report that the run went on in another job."""
        found, newest = run.as_job(job), run.newest.job_id
        if found.job_id is not None and newest is not None and newest != found.job_id:
            self.notify(f"job {job} is an earlier job of this run; its newest is job {newest}")
        return found

    def states(self, runs: Sequence[RunRecord], answer: Answer | None = None) -> list[RunState]:
        """Return the states of runs, in their order. ``answer`` is a Slurm answer to use instead of a new query."""
        found: dict[str, RunState] = {}
        for name in dict.fromkeys(run.scheduler for run in runs):
            some = [run for run in runs if run.scheduler == name]
            try:
                scheduler = self.factory.scheduler(name)
            except NoScheduler as error:
                states = (reconcile.state_from_records(self.store, run, error.message) for run in some)
                found |= {run.submission.key: state for run, state in zip(some, states, strict=True)}
                continue
            for run in some:
                if not _is_on(run, scheduler):
                    elsewhere = _elsewhere(run, scheduler)
                    found[run.submission.key] = reconcile.state_from_records(self.store, run, elsewhere)
            here = [run for run in some if _is_on(run, scheduler)]
            known = answer if scheduler.name != LOCAL else None
            for state in reconcile.reconcile(self.store, scheduler, here, answer=known):
                assert state.record is not None
                found[state.record.submission.key] = state
        return [found[run.submission.key] for run in runs]

    def queue(self, runs: Sequence[RunRecord]) -> Answer | None:
        """Return the queue as it is now, to be used for these runs; None if Slurm has no part in them."""
        slurm = any(run.mine and self.is_queued(run) for run in runs)
        return self.factory.scheduler("slurm").query() if slurm else None

    def is_queued(self, run: RunRecord | None) -> bool:
        """Return whether the jobs of a run, or an external job (None), are in the queue of this shell's Slurm."""
        return run is None or (run.scheduler != LOCAL and self.is_here(run))

    def live_jobs(self, states: Sequence[RunState], answer: Answer | None = None) -> list[RunState]:
        """Return the states of runs with those of all their live jobs; a run that has one is not shown as ended."""
        live = dict[Path, list[RunState]]()
        others = [other for state in states if state.others for other in _other_submissions(state)]
        for state in self.states(others, answer) if others else ():
            if state.record is not None and not state.status.is_over:
                live.setdefault(state.record.run_dir, []).append(state)
        return [one for state in states for one in _alive(state, live)]

    def cached_states(self, runs: Sequence[RunRecord]) -> Listing:
        """Return the states of runs, from another process's squeue if its answer is good enough."""
        now = time.time()
        if not any(run.scheduler != LOCAL and reconcile.needs_query(run, now) and self.is_here(run) for run in runs):
            return Listing(self.states(runs))
        answer, age = self._cached_queue(runs)
        return Listing(self.states(runs, answer), age, None if age else answer)

    def live_runs(self, runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
        """Return by run id each run as each of its live jobs has it; as it is if it has none, or was submitted once."""
        again = [run for run in runs if len(run.submissions) > 1]
        answer = self.queue(again)
        found: dict[str, list[RunRecord]] = {run.run_id: [] for run in again}
        for state in self.live_jobs(self.states(again, answer), answer):
            assert state.record is not None
            found[state.record.run_id].append(state.record)
        return {run.run_id: [run] for run in runs} | found

    def active_runs(self, name: str) -> list[RunState]:
        """Return the active runs of ``list`` whose name matches a glob; raises SchedulerError if one may be missing."""
        listing = self.list_jobs(everything=False, all_clusters=False, cached=False)
        found = [s for s in filters.choose(listing.states, filters.JobFilter(name=name)) if s.record is not None]
        notes = [state.note for state in found if state.status.outcome is Outcome.UNKNOWN]
        if listing.answer is not None and not listing.answer.complete:
            notes.append(listing.answer.note)  # a job that has ended by its record may be in the queue again
        if silence := next(filter(None, notes), ""):
            raise SchedulerError(
                "the scheduler did not respond; nothing was cancelled", detail=silence, hint="try again in a moment"
            )
        return [state for state in found if state.status.outcome is Outcome.RUNNING]

    def list_jobs(self, *, everything: bool, all_clusters: bool, cached: bool, cluster: str = "") -> Listing:
        """Return the user's active jobs: runs from any folder, and external jobs in Slurm's queue, from one squeue.

        With ``everything`` also the jobs that have ended: all runs known here, and what the queue still shows. Runs of
        other clusters are counted in a line, or listed with ``all_clusters``; ``cluster`` selects the jobs of one. With
        ``cached`` another process's squeue may be used. Raises SchedulerError if Slurm does not respond and there
        is nothing to show, RequestError for an unknown cluster.
        """
        known = self.store.all() if everything else self.store.open_runs()
        at_hand = self.factory.scheduler("slurm").cluster if self.factory.facts() is not None else ""
        out_of_reach = bool(cluster) and not covers(at_hand, cluster)
        if out_of_reach:
            self._check_cluster(cluster, at_hand)
        if cluster:
            known = [run for run in known if run.cluster == cluster]
        elif not all_clusters:
            known = self.reachable(known, everything=everything)
        answer, age, others = Answer(), 0.0, list[RunState]()
        if self.factory.facts() is None or out_of_reach:
            found = self.live_jobs(self.states(known))
        else:
            slurm = self.factory.scheduler("slurm")
            answer, age = self._cached_queue(known) if cached and not everything else (slurm.query(), 0.0)
            more, others = unmatched_jobs(known, answer, everything=everything)
            if more and age:  # such a run may have ended meanwhile, and the cached answer would bring it back
                answer, age = slurm.query(), 0.0
                more, others = unmatched_jobs(known, answer)
            found = self.live_jobs(self.states([*known, *more], answer), answer)
        shown = [s for s in (*found, *others) if everything or s.status.outcome in filters.OPEN]
        if cluster:
            shown = [s for s in shown if _cluster_of(s, at_hand) == cluster]
        if not (answer.complete or shown):
            raise SchedulerError(
                "Slurm is not responding, and clusterrun has no record of any active job", detail=answer.note,
                hint="run `scontrol ping`, then try again",
            )  # fmt: skip
        if not answer.complete:
            self.notify(f"Slurm is not responding: {answer.note}")
        current = self.factory.facts() is not None and not out_of_reach and not age
        return Listing(shown, age, answer if current else None)

    def _check_cluster(self, name: str, at_hand: str) -> None:
        """Report that a cluster is known by records alone; raises RequestError if no run was submitted to it."""
        known = {*self.store.clusters(), LOCAL, *at_hand.split(",")}
        if name not in known:  # the indexes may be lost
            known |= {run.cluster for run in self.store.all()}
        names = sorted(known - {""})
        if name not in names:
            hint = f"known clusters: {', '.join(names) or 'none'}"
            raise RequestError(f"unknown cluster {name[:40]!r}", hint=hint)
        if name != LOCAL:
            self.notify(f"cannot reach cluster {name} from this shell; showing its jobs from clusterrun's records")

    def is_here(self, run: RunRecord) -> bool:
        """Return whether the run's scheduler can be queried from this shell."""
        if run.scheduler == LOCAL:
            return True
        return self.factory.facts() is not None and _is_on(run, self.factory.scheduler("slurm"))

    def reachable(self, runs: Sequence[RunRecord], *, everything: bool = False) -> list[RunRecord]:
        """Return the runs whose scheduler can be queried from this shell; report the number of others in a line.

        Others that have ended, by their own records, count only with ``everything``.
        """
        here, away = list[RunRecord](), list[RunRecord]()
        for run in runs:
            if self.is_here(run):
                here.append(run)
            elif everything or reconcile.state_from_records(self.store, run, "").status.outcome in filters.OPEN:
                away.append(run)
        if away:
            count, names = plural(len(away), "job"), sorted({run.cluster or "unknown" for run in away})
            self.notify(f"not shown: {count} on other clusters ({', '.join(names)}); see them with --all-clusters")
        return here

    def _cached_queue(self, runs: Sequence[RunRecord]) -> tuple[Answer, float]:
        here = [run for run in runs if run.scheduler != LOCAL and self.is_here(run)]
        since = max(map(records_changed_at, here), default=0.0)
        scheduler = self.factory.scheduler("slurm")
        if scheduler.slurm is None:
            return scheduler.query(), 0.0
        return scheduler.slurm.cached_query([run.job_id for run in here if run.job_id is not None], since)


def unmatched_jobs(
    runs: Sequence[RunRecord], answer: Answer, *, everything: bool = False
) -> tuple[list[RunRecord], list[RunState]]:
    """Return the jobs in the queue that belong to none of these runs: further runs, and external jobs.

    A run is found by the script that Slurm shows, so a run whose end was recorded and that was requeued is found too.
    With ``everything`` jobs that have ended count.
    """
    shown = answer.jobs if answer.complete else answer.last
    arrays = {run.submission.token[:8] for run in runs if run.submission.task is not None}
    rows = list[JobStatus]()
    for row in shown:  # each task of a sweep is a run
        of_sweep = row.tasks and (token_part(row) in arrays or identity.sweep_of_script(row.script) is not None)
        rows += split_tasks(row) if of_sweep else [row]
    jobs = JobIndex(rows)
    matched = {id(job) for run in runs for job in (*jobs.of(run), *jobs.others(run))}
    known, seen = {run.run_dir for run in runs}, set[str]()
    more, others = [], []
    for job in rows:
        if id(job) in matched or (job.is_over and not everything):
            continue
        if job.script not in seen:
            seen.add(job.script)
            for run in _runs_of_script(job.script, known):
                found = (*jobs.of(run), *jobs.others(run))
                more += [run] if any(everything or not one.is_over for one in found) else []
                matched |= {id(one) for one in found}
        if id(job) not in matched:
            others.append(RunState(None, job) if answer.complete else RunState(None, job, answer.note, answer.last_at))
    return more, others


def _runs_of_script(script: str, known: Collection[Path]) -> list[RunRecord]:
    """Return this user's runs that a job with this script may be, except the known ones."""
    loaded = [run_record.load(folder) for folder in external.folders_of(script) if folder not in known]
    return [run for run in loaded if run is not None and run.mine]


def scheduler_of(run: RunRecord | None, factory: SchedulerFactory) -> Scheduler:
    """Return the run's scheduler; Slurm for an external job (None). Raises SchedulerError if on another cluster."""
    scheduler = factory.scheduler(run.scheduler if run else "slurm")
    if run is not None and not _is_on(run, scheduler):
        raise SchedulerError(
            f"run {run.run_id}: {_elsewhere(run, scheduler)}",
            hint="set SLURM_CONF (or SLURM_CLUSTERS) for that cluster",
        )
    return scheduler


def _other_submissions(state: RunState) -> list[RunRecord]:
    run = state.record
    return [run.as_submission(one) for one in run.submissions[:-1]] if run is not None else []


def _alive(state: RunState, others: Mapping[Path, Sequence[RunState]]) -> list[RunState]:
    """Return the live jobs of a run's other submissions, and its own unless that has ended."""
    found = others.get(state.record.run_dir, ()) if state.record is not None else ()
    return [*found, *([state] if not found or state.status.outcome in filters.OPEN else [])]


def _cluster_of(state: RunState, at_hand: str) -> str:
    if state.record is not None:
        return state.record.cluster
    return state.status.id.cluster or one_cluster(at_hand)


def _is_on(run: RunRecord, scheduler: Scheduler) -> bool:
    return covers(scheduler.cluster, run.cluster)


def _elsewhere(run: RunRecord, scheduler: Scheduler) -> str:
    here = f"cluster {scheduler.cluster}" if scheduler.cluster else "an unnamed cluster"
    return f"submitted to cluster {run.cluster or '(unknown)'}; this shell is configured for {here}"
