"""Query the state of runs across schedulers, with one query per scheduler, and join the queue with the records.

Runs of a cluster that is not reachable from this shell get state UNKNOWN and a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.errors import NoScheduler, NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import (
    LOCAL,
    JobId,
    JobStatus,
    Outcome,
    covers,
    is_run_id,
    one_cluster,
    split_tasks,
    token_part,
)
from clusterrun.base.units import plural
from clusterrun.records import run_record
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import identity
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.factory import SchedulerFactory
from clusterrun.state import external, filters, reconcile
from clusterrun.state.reconcile import Listing, RunState, Target
from clusterrun.state.watch import records_changed_at


class StateQuery(NamedTuple):
    """Queries the states of runs; ``notify`` gets a line for each thing that cannot be shown."""

    factory: SchedulerFactory
    store: Store
    notify: Callable[[str], None]

    def find(self, text: str) -> Target:
        """Return the job of an id. Raises NoSuchJob for an unknown run id, RequestError for no id."""
        if not is_run_id(text):
            job = JobId.parse(text)
            return Target(text, self._find_run(job), job)
        if run := self.store.by_run_id(text):
            return Target(text, run)
        raise NoSuchJob(f"no record of run {text} found", hint="`clusterrun list --all` shows your jobs")

    def _find_run(self, job: JobId) -> RunRecord | None:
        """Return the run of a job id as that job's submission has it; None for an external job."""
        runs = self._runs_of(job)
        if not runs:
            return None
        if len(runs) > 1:
            older = ", ".join(run.run_id for run in runs[:-1])
            self.notify(f"job id {job} was reused by Slurm; showing the newest run (older: {older})")
        run, newest = runs[-1].as_job(job), runs[-1].newest.job_id
        if None not in (run.job_id, newest) and newest != run.job_id:
            self.notify(f"job {job} is an earlier job of this run; its newest is job {newest}")
        return run

    def _runs_of(self, job: JobId) -> list[RunRecord]:
        """Return the runs that had a job id, the newest last; none if it is the id of an external job now."""
        known = self.store.by_job(job)
        here = [run for run in known if self._may_mean(job, run)]
        if here or not self.factory.may_know(job):
            return here or known
        folders, exists = external.find_run_folders(job, self.factory.scheduler("slurm"))
        runs = self.store.by_job(job, hint=folders)
        is_external = exists and not any(run.run_dir in folders for run in runs)
        return [] if is_external else runs

    def _may_mean(self, job: JobId, run: RunRecord) -> bool:
        """Return whether an id may mean a run: without a cluster's name, of the cluster of this shell."""
        return job.is_local or bool(job.cluster) or self.is_here(run)

    def status(self, targets: Sequence[Target]) -> list[RunState]:
        """Return the states of jobs, of a run that was named those of all its live jobs. Raises NoSuchJob."""
        runs = list({target.key: target.run for target in targets if target.run is not None}.values())
        answer = self.queue(runs)
        states = {state.key: state for state in self.states(runs, answer)}
        ids = reconcile.external_ids(targets)
        others = external.query_states(ids, self.factory.slurm_for(ids), time.time()) if ids else {}
        found: list[RunState] = []
        for target in targets:
            if target.job is None:
                found += self.live_jobs([states[target.key]], answer)
            elif target.run is None:
                found += others[target.job]
            else:
                filters.refuse_part(target.job, states[target.key].status)
                found.append(states[target.key])
        return found

    def states(self, runs: Sequence[RunRecord], answer: Answer | None = None) -> list[RunState]:
        """Return the states of runs, in their order. ``answer`` is a Slurm answer to use instead of a new query."""
        states: dict[str, RunState] = {}
        for name in dict.fromkeys(run.scheduler for run in runs):
            states |= self._states_on(name, [run for run in runs if run.scheduler == name], answer)
        return [states[run.submission.key] for run in runs]

    def _states_on(self, name: str, runs: Sequence[RunRecord], answer: Answer | None) -> dict[str, RunState]:
        """Return the states of runs of one scheduler, by their submissions."""
        try:
            scheduler = self.factory.scheduler(name)
        except NoScheduler as error:
            return {run.submission.key: reconcile.state_from_records(self.store, run, error.message) for run in runs}
        here, states = list[RunRecord](), list[RunState]()
        for run in runs:
            if _is_on(run, scheduler):
                here.append(run)
            else:
                states.append(reconcile.state_from_records(self.store, run, _elsewhere(run, scheduler)))
        states += reconcile.reconcile(self.store, scheduler, here, answer=None if name == LOCAL else answer)
        return {state.key: state for state in states}

    def queue(self, runs: Sequence[RunRecord]) -> Answer | None:
        """Return the queue as it is now, to be used for these runs; None if Slurm has no part in them."""
        slurm = any(run.mine and self.is_queued(run) for run in runs)
        return self.factory.scheduler("slurm").query() if slurm else None

    def is_queued(self, run: RunRecord | None) -> bool:
        """Return whether the jobs of a run, or an external job (None), are in the queue of this shell's Slurm."""
        if run is None:
            return True
        if run.scheduler == LOCAL or self.factory.facts() is None:
            return False
        return _is_on(run, self.factory.scheduler("slurm"))

    def live_jobs(self, states: Sequence[RunState], answer: Answer | None = None) -> list[RunState]:
        """Return the states of runs with those of all their live jobs; a run that has one is not shown as ended."""
        others = [run for state in states for run in _other_submissions(state)]
        live = [state for state in self.states(others, answer) if not state.status.is_over]
        shown: list[RunState] = []
        for state in states:
            of_run = [other for other in live if other.run_dir == state.run_dir]
            shown += of_run
            if not of_run or state.status.outcome in filters.OPEN:
                shown.append(state)
        return shown

    def cached_states(self, runs: Sequence[RunRecord]) -> Listing:
        """Return the states of runs, from another process's squeue if its answer is good enough."""
        now = time.time()
        if not any(reconcile.needs_query(run, now) and self.is_queued(run) for run in runs):
            return Listing(self.states(runs))
        answer, age = self._cached_queue(runs)
        return Listing(self.states(runs, answer), age, None if age else answer)

    def live_targets(self, targets: Sequence[Target]) -> list[Target]:
        """Return the jobs that are meant, each once: of a run that was named, each live job, else its newest."""
        again = [one.run for one in targets if one.run is not None and not one.job and len(one.run.submissions) > 1]
        answer = self.queue(again)
        live: dict[str, list[Target]] = {}
        for state in self.live_jobs(self.states(again, answer), answer):
            assert state.record is not None
            live.setdefault(state.record.run_id, []).append(Target(state.record.run_id, state.record))
        return list({one.key: one for target in targets for one in live.get(target.text, [target])}.values())

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
        slurm = self._slurm_of(cluster)
        runs = self.store.all() if everything else self.store.open_runs()
        if cluster:
            runs = [run for run in runs if run.cluster == cluster]
        elif not all_clusters:
            runs = self.reachable(runs, everything=everything)
        if slurm is None:
            listing = Listing(self.live_jobs(self.states(runs)))
        else:
            listing = self._list_queue(slurm, runs, everything=everything, cached=cached)
        states = _listed(listing.states, slurm, everything=everything, cluster=cluster)
        if listing.answer is not None and not listing.answer.complete:
            self._report_silence(listing.answer.note, states)
        return Listing(states, listing.age, None if listing.age else listing.answer)

    def _list_queue(self, slurm: Scheduler, runs: Sequence[RunRecord], *, everything: bool, cached: bool) -> Listing:
        answer, age = self._cached_queue(runs) if cached and not everything else (slurm.query(), 0.0)
        more, others = unmatched_jobs(runs, answer, everything=everything)
        if more and age:  # such a run may have ended meanwhile, and the cached answer would bring it back
            answer, age = slurm.query(), 0.0
            more, others = unmatched_jobs(runs, answer)
        return Listing([*self.live_jobs(self.states([*runs, *more], answer), answer), *others], age, answer)

    def _report_silence(self, note: str, states: Sequence[RunState]) -> None:
        """Report that Slurm is not responding; raises SchedulerError if there is nothing to show."""
        if not states:
            raise SchedulerError(
                "Slurm is not responding, and clusterrun has no record of any active job", detail=note,
                hint="run `scontrol ping`, then try again",
            )  # fmt: skip
        self.notify(f"Slurm is not responding: {note}")

    def _slurm_of(self, name: str) -> Scheduler | None:
        """Return Slurm if this shell can query it about jobs of this cluster (empty: of any).

        Else it is reported that the cluster is known by records alone; raises RequestError if no run was submitted to
        it.
        """
        slurm = self.factory.scheduler("slurm") if self.factory.facts() is not None else None
        at_hand = slurm.cluster if slurm is not None else ""
        if not name or covers(at_hand, name):
            return slurm
        known = {*self.store.clusters(), LOCAL, *at_hand.split(",")}
        if name not in known:  # the indexes may be lost
            known |= {run.cluster for run in self.store.all()}
        if name not in known:
            hint = f"known clusters: {', '.join(sorted(known - {''})) or 'none'}"
            raise RequestError(f"unknown cluster {name[:40]!r}", hint=hint)
        if name != LOCAL:
            self.notify(f"cannot reach cluster {name} from this shell; showing its jobs from clusterrun's records")
        return None

    def is_here(self, run: RunRecord) -> bool:
        """Return whether the run's scheduler can be queried from this shell."""
        return run.scheduler == LOCAL or self.is_queued(run)

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
        here = [run for run in runs if self.is_queued(run)]
        since = max(map(records_changed_at, here), default=0.0)
        scheduler = self.factory.scheduler("slurm")
        if scheduler.slurm is None:
            return scheduler.query(), 0.0
        return scheduler.slurm.cached_query(reconcile.job_ids(here), since)


def unmatched_jobs(
    runs: Sequence[RunRecord], answer: Answer, *, everything: bool = False
) -> tuple[list[RunRecord], list[RunState]]:
    """Return the jobs in the queue that belong to none of these runs: further runs, and external jobs.

    A run is found by the script that Slurm shows, so a run whose end was recorded and that was requeued is found too.
    With ``everything`` jobs that have ended count.
    """
    rows = _split_sweeps(answer, runs)
    jobs, listed = JobIndex(rows), {id(job): job for job in rows if everything or not job.is_over}
    known, more = set[Path](), list[RunRecord]()
    for run in runs:
        _take(listed, jobs, run)
        known.add(run.run_dir)
    for script in dict.fromkeys(job.script for job in listed.values()):
        for run in _runs_of_script(script, known):
            known.add(run.run_dir)
            more += [run] * _take(listed, jobs, run)
    if answer.complete:
        return more, external.external_states(listed.values())
    return more, external.external_states(listed.values(), answer.note, answer.last_at)


def _split_sweeps(answer: Answer, runs: Iterable[RunRecord]) -> list[JobStatus]:
    """Return the newest known rows of the queue with those of a sweep split: each of its tasks is a run."""
    arrays = {run.submission.token[:8] for run in runs if run.submission.task is not None}
    split = list[JobStatus]()
    for row in answer.jobs if answer.complete else answer.last:
        is_sweep = row.tasks and (token_part(row) in arrays or identity.sweep_of_script(row.script) is not None)
        split += split_tasks(row) if is_sweep else [row]
    return split


def _take(listed: dict[int, JobStatus], jobs: JobIndex, run: RunRecord) -> bool:
    """Remove the jobs of a run, and return whether there were any."""
    before = len(listed)
    for job in (*jobs.of(run), *jobs.others(run)):
        listed.pop(id(job), None)
    return len(listed) < before


def _runs_of_script(script: str, known: Collection[Path]) -> list[RunRecord]:
    """Return this user's runs that a job with this script may be, except the known ones."""
    loaded = [run_record.load(folder) for folder in external.folders_of(script) if folder not in known]
    return [run for run in loaded if run is not None and run.mine]


def scheduler_of(run: RunRecord | None, factory: SchedulerFactory) -> Scheduler:
    """Return the run's scheduler; Slurm for an external job (None). Raises SchedulerError if on another cluster."""
    if run is None:
        return factory.scheduler("slurm")
    scheduler = factory.scheduler(run.scheduler)
    if not _is_on(run, scheduler):
        raise SchedulerError(
            f"run {run.run_id}: {_elsewhere(run, scheduler)}",
            hint="set SLURM_CONF (or SLURM_CLUSTERS) for that cluster",
        )
    return scheduler


def _other_submissions(state: RunState) -> list[RunRecord]:
    if state.record is None or not state.others:
        return []
    return [state.record.as_submission(one) for one in state.record.submissions[:-1]]


def _listed(
    states: Sequence[RunState], slurm: Scheduler | None, *, everything: bool, cluster: str
) -> list[RunState]:  # fmt: skip
    """Return the open jobs, with ``everything`` all; those of one ``cluster`` if it is named."""
    chosen = [state for state in states if everything or state.status.outcome in filters.OPEN]
    at_hand = one_cluster(slurm.cluster) if slurm is not None else ""
    return [state for state in chosen if cluster in ("", state.cluster or at_hand)]


def _is_on(run: RunRecord, scheduler: Scheduler) -> bool:
    return covers(scheduler.cluster, run.cluster)


def _elsewhere(run: RunRecord, scheduler: Scheduler) -> str:
    here = f"cluster {scheduler.cluster}" if scheduler.cluster else "an unnamed cluster"
    return f"submitted to cluster {run.cluster or '(unknown)'}; this shell is configured for {here}"
