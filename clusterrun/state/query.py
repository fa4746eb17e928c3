"""Query the state of runs across schedulers, with one query per scheduler, and join the queue with the records.

Runs of a cluster that is not reachable from this shell get state UNKNOWN and a note.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from clusterrun.base.errors import NoScheduler, NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import (
    LOCAL,
    JobId,
    JobStatus,
    covers,
    is_run_id,
    one_cluster,
    split_tasks,
    token_part,
)
from clusterrun.base.units import plural
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import identity
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.factory import SchedulerFactory
from clusterrun.state import external, filters, reconcile
from clusterrun.state.reconcile import Listing, RunState, Target


class StateQuery:
    """Queries the states of runs; ``notify`` gets a line for each thing that cannot be shown."""

    def __init__(self, factory: SchedulerFactory, store: Store, notify: Callable[[str], None]) -> None:
        self.factory, self.store, self.notify = factory, store, notify

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
        if newest not in (None, run.job_id):
            self.notify(f"job {job} is an earlier job of this run; its newest is job {newest}")
        return run

    def _runs_of(self, job: JobId) -> list[RunRecord]:
        """Return the runs that had a job id, the newest last; none if it is the id of an external job now."""
        known = self.store.by_job(job)
        here = known if job.cluster else [run for run in known if self.is_here(run)]
        if here:
            return here
        if not self.factory.may_know(job):
            return known
        folders, exists = external.find_run_folders(job, self.factory.scheduler("slurm"))
        runs = self.store.by_job(job, hint=folders)
        return [run for run in runs if run.run_dir in folders] if exists else runs

    def status(self, targets: Sequence[Target]) -> list[RunState]:
        """Return the states of jobs, of a run that was named those of all its live jobs. Raises NoSuchJob."""
        runs, ids = reconcile.runs_and_external_ids(targets)
        answer = self.queue(runs)
        states = {state.key: state for state in self.states(runs, answer)}
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
        here = defaultdict[tuple[str, bool], list[RunRecord]](list)
        states: dict[str, RunState] = {}
        for run in runs:
            if why := self._why_not_here(run):
                states[run.submission.key] = reconcile.state_from_records(self.store, run, why)
            else:
                here[run.scheduler, run.mine].append(run)
        for (name, mine), group in here.items():
            queue = answer if mine and name != LOCAL else None
            scheduler, now = self.factory.scheduler(name), time.time()
            joined = reconcile.reconcile(self.store, scheduler, group, now=now, answer=queue)
            states |= {state.key: state for state in joined}
        return [states[run.submission.key] for run in runs]

    def _why_not_here(self, job: RunRecord | RunState) -> str:
        """Return why a job's scheduler cannot be queried from this shell; empty if it can."""
        try:
            return _elsewhere(job, self.factory.scheduler(job.scheduler))
        except NoScheduler as error:
            return error.message

    def is_here(self, job: RunRecord | RunState) -> bool:
        """Return whether a job's scheduler can be queried from this shell."""
        return not self._why_not_here(job)

    def is_queued(self, job: RunRecord | RunState) -> bool:
        """Return whether a job is one of the Slurm of this shell."""
        return job.scheduler != LOCAL and self.is_here(job)

    def queue(self, runs: Sequence[RunRecord]) -> Answer:
        """Return the queue as it is now, to be used for these runs; empty if Slurm has no part in them."""
        is_needed = any(run.mine and self.is_queued(run) for run in runs)
        return self.factory.scheduler("slurm").query() if is_needed else Answer()

    def live_jobs(self, states: Sequence[RunState], answer: Answer | None = None) -> list[RunState]:
        """Return the states of runs with those of all their live jobs; a run that has one is not shown as ended."""
        shown: list[RunState] = []
        for state in states:
            earlier = self.states(_other_submissions(state.run), answer) if state.others else []
            live = [other for other in earlier if not other.status.is_over]
            shown += live
            if not live or state.status.outcome in filters.OPEN:
                shown.append(state)
        return shown

    def cached_states(self, runs: Sequence[RunRecord]) -> Listing:
        """Return the states of runs, from another process's squeue if its answer is good enough."""
        now = time.time()
        for run in runs:
            if reconcile.needs_query(run, now) and self.is_queued(run):
                answer, age = self._cached_queue(runs)
                return Listing(self.states(runs, answer), age, None if age else answer)
        return Listing(self.states(runs))

    def live_targets(self, targets: Sequence[Target]) -> list[Target]:
        """Return the jobs that are meant, each once: of a run that was named, each live job, else its newest."""
        live = defaultdict[str, list[Target]](list)
        for run in reconcile.runs_of(self.status([target for target in targets if target.may_be_several])):
            live[run.run_id].append(Target(run.run_id, run))
        meant: dict[str, Target] = {}
        for target in targets:
            for job in live.get(target.text, [target]):
                meant[job.key] = job
        return list(meant.values())

    def active_runs(self, name: str) -> list[RunState]:
        """Return the active runs of ``list`` whose name matches a glob; raises SchedulerError if one may be missing."""
        listing = self.list_jobs(everything=False, all_clusters=False, cached=False)
        runs = list[RunState]()
        for state in filters.choose(listing.states, filters.JobFilter(name=name)):
            if state.record is not None:
                runs.append(state)
        # a job that has ended by its record may be in the queue again
        notes = [*(state.note for state in runs), listing.silence]
        if silence := next(filter(None, notes), ""):
            raise SchedulerError(
                "the scheduler did not respond; nothing was cancelled", detail=silence, hint="try again in a moment"
            )
        return [state for state in runs if not state.status.is_over]

    def list_jobs(self, *, everything: bool, all_clusters: bool, cached: bool, cluster: str = "") -> Listing:
        """Return the user's active jobs: runs from any folder, and external jobs in Slurm's queue, from one squeue.

        With ``everything`` also the jobs that have ended: all runs known here, and what the queue still shows. Runs of
        other clusters are counted in a line, or listed with ``all_clusters``; ``cluster`` selects the jobs of one. With
        ``cached`` another process's squeue may be used. Raises SchedulerError if Slurm does not respond and there
        is nothing to show, RequestError for an unknown cluster.
        """
        slurm = self._slurm_of(cluster)
        runs = self._runs_to_list(everything=everything, all_clusters=all_clusters, cluster=cluster)
        if slurm is None:
            listing = Listing(self.live_jobs(self.states(runs)))
        else:
            listing = self._list_queue(slurm, runs, everything=everything, cached=cached, cluster=cluster)
        states = listing.states
        if not everything:
            states = [state for state in states if state.status.outcome in filters.OPEN]
        if listing.silence:
            self._report_silence(listing.silence, states)
        return listing._replace(states=states)

    def _runs_to_list(self, *, everything: bool, all_clusters: bool, cluster: str) -> list[RunRecord]:
        runs = self.store.all() if everything else self.store.open_runs()
        if cluster:
            return [run for run in runs if run.cluster == cluster]
        return runs if all_clusters else self._reachable(runs, everything=everything)

    def _list_queue(
        self, slurm: Scheduler, runs: Sequence[RunRecord], *, everything: bool, cached: bool, cluster: str
    ) -> Listing:
        answer, age = self._cached_queue(runs) if cached and not everything else (slurm.query(), 0.0)
        more, others = unmatched_jobs(self.store, runs, answer, everything=everything)
        if more and age:  # such a run may have ended meanwhile, and the cached answer would bring it back
            answer, age = slurm.query(), 0.0
            more, others = unmatched_jobs(self.store, runs, answer)
        listed = [*self.live_jobs(self.states([*runs, *more], answer), answer), *others]
        if cluster:
            at_hand = one_cluster(slurm.cluster)
            listed = [state for state in listed if cluster == (state.cluster or at_hand)]
        return Listing(listed, age, None if age else answer)

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
        known = {LOCAL, *at_hand.split(",")}
        known |= {run.cluster for run in self.store.all()}
        if name not in known:
            hint = f"known clusters: {', '.join(sorted(known - {''}))}"
            raise RequestError(f"unknown cluster {name[:40]!r}", hint=hint)
        if name != LOCAL:
            self.notify(f"cannot reach cluster {name} from this shell; showing its jobs from clusterrun's records")
        return None

    def _reachable(self, runs: Sequence[RunRecord], *, everything: bool) -> list[RunRecord]:
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
        from clusterrun.state.watch import records_changed_at  # a command that asks once does without

        here = [run for run in runs if self.is_queued(run)]
        since = max(map(records_changed_at, here), default=0.0)
        scheduler = self.factory.scheduler("slurm")
        if scheduler.slurm is None:
            return scheduler.query(), 0.0
        return scheduler.slurm.cached_query(reconcile.job_ids(here), since)


def unmatched_jobs(
    store: Store, runs: Sequence[RunRecord], answer: Answer, *, everything: bool = False
) -> tuple[list[RunRecord], list[RunState]]:
    """Return the jobs in the queue that belong to none of these runs: further runs, and external jobs.

    A run is found by the script that Slurm shows, so a run whose end was recorded and that was requeued is found too.
    With ``everything`` jobs that have ended count.
    """
    rows = _split_sweeps(answer, runs)
    jobs, rest = JobIndex(rows), dict[int, JobStatus]()
    for job in rows:
        if everything or not job.is_over:
            rest[id(job)] = job
    for run in runs:
        _take(rest, jobs, run)
    scripts = dict.fromkeys(job.script for job in rest.values())
    folders = dict.fromkeys(chain.from_iterable(map(external.folders_of, scripts)))
    for run in runs:
        folders.pop(run.run_dir, None)
    more = [run for run in store.load_all(folders) if _take(rest, jobs, run)]
    return more, external.external_states(rest.values(), answer)


def _split_sweeps(answer: Answer, runs: Iterable[RunRecord]) -> list[JobStatus]:
    """Return the newest known rows of the queue with those of a sweep split: each of its tasks is a run."""
    arrays = {run.submission.token[:8] for run in runs if run.submission.task is not None}
    split = list[JobStatus]()
    for row in answer.jobs if answer.complete else answer.last:
        if token_part(row) not in arrays and identity.sweep_of_script(row.script) is None:
            split.append(row)
        elif not _is_left_over(row):
            split += split_tasks(row)
    return split


def _is_left_over(row: JobStatus) -> bool:
    """Return whether a row is what Slurm keeps of an array whose last waiting tasks were cancelled: no task's."""
    return row.is_over and row.id.task is None and not row.tasks


def _take(rest: dict[int, JobStatus], jobs: JobIndex, run: RunRecord) -> bool:
    """Remove the jobs of a run, and return whether there were any."""
    before = len(rest)
    for job in (*jobs.of(run), *jobs.others(run)):
        rest.pop(id(job), None)
    return len(rest) < before


def scheduler_of(job: RunRecord | RunState, factory: SchedulerFactory) -> Scheduler:
    """Return a job's scheduler. Raises SchedulerError if it is on another cluster."""
    scheduler = factory.scheduler(job.scheduler)
    if why := _elsewhere(job, scheduler):
        raise SchedulerError(f"run {job.run_id}: {why}", hint="set SLURM_CONF (or SLURM_CLUSTERS) for that cluster")
    return scheduler


def _other_submissions(run: RunRecord) -> list[RunRecord]:
    return [run.as_submission(one) for one in run.submissions[:-1]]


def _elsewhere(job: RunRecord | RunState, scheduler: Scheduler) -> str:
    """Return that a job was submitted to another cluster than this shell's; empty if it was not."""
    if covers(scheduler.cluster, job.cluster):
        return ""
    here = f"cluster {scheduler.cluster}" if scheduler.cluster else "an unnamed cluster"
    return f"submitted to cluster {job.cluster or '(unknown)'}; this shell is configured for {here}"
