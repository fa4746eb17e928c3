"""The Python API: plan and submit runs; query, wait for and cancel jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.base.job import LOCAL, is_run_id
from clusterrun.cluster import arrays
from clusterrun.config.files import find_root
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder.files import state_folder
from clusterrun.run_folder.safe_files import user_name
from clusterrun.scheduler import Answer, Cancelled, ClusterFacts, Scheduler
from clusterrun.scheduler.factory import SchedulerFactory

if TYPE_CHECKING:  # a command that queries jobs needs only some of them, a submission others
    from clusterrun.free.estimate import StartEstimates
    from clusterrun.free.snapshot import ClusterSnapshot
    from clusterrun.jobspec.fields import Value
    from clusterrun.state.query import StateQuery
    from clusterrun.state.reconcile import Listing, RunState, Target
    from clusterrun.state.watch import Watch
    from clusterrun.submit.job_python import Starts
    from clusterrun.submit.plan import LocalContext, Plan
    from clusterrun.submit.request import Request, SubmitArgs

#: Seconds between two queries of accounting by a command that polls.
ACCOUNTING_INTERVAL = 60.0


class Cluster:
    """One user's view from one folder: its project, its records, and the schedulers it can use.

    ``notify`` gets lines for the user (what is waited for, what was left out). ``environ`` and ``cwd`` default to this
    process's own. A command that polls sets ``polling``: it queries accounting once a minute at most, and shares
    squeue's answers with the user's other processes. A test passes ``scheduler``: see :mod:`clusterrun.testing`.
    ``starts`` is which Python the checks of a plan may start, by default any; ``vet`` raises for a request to refuse.
    """

    def __init__(
        self, *, cwd: Path | None = None, environ: Mapping[str, str] | None = None,
        notify: Callable[[str], None] = lambda line: None, polling: bool = False, scheduler: Scheduler | None = None,
        starts: Starts | None = None, vet: Callable[[Request], None] = lambda request: None,
    ) -> None:  # fmt: skip
        self.environ = dict(os.environ if environ is None else environ)
        self.notify = notify
        self._cwd = cwd
        self.state = state_folder(self.environ)
        self.user = user_name(os.getuid())
        self._polling = polling
        self._starts, self._vet = starts, vet
        interval = ACCOUNTING_INTERVAL if polling else 0.0
        self._factory = SchedulerFactory(self.environ, self.state, accounting_interval=interval, scheduler=scheduler)

    @property
    def cwd(self) -> Path:
        """The current folder. Raises RequestError if it was deleted."""
        if self._cwd is not None:
            return self._cwd
        try:
            return Path.cwd()
        except OSError as error:
            raise RequestError("the current folder no longer exists", hint="cd to an existing folder") from error

    def store(self, root: Path | None = None) -> Store:
        """Return the records of a project: of this one, unless another root is given."""
        return Store(root or find_root(self.cwd), self.state, self.notify)

    def facts(self) -> ClusterFacts | None:
        """Return the Slurm cluster that this shell is configured for, None if there is none."""
        return self._factory.facts()

    def scheduler(self, name: str) -> Scheduler:
        """Return the scheduler of that name (``slurm``, ``local``, ``auto``). Raises NoScheduler."""
        return self._factory.scheduler(name)

    # -- submitting ------------------------------------------------------------------------------------------------

    def request(self, args: SubmitArgs) -> Request:
        """Return the merged options, job file and profiles, with those for the cluster at hand. Raises RequestError."""
        from clusterrun.submit.job_python import Starts
        from clusterrun.submit.request import load_request

        def find_cluster() -> str | None:
            typed = args.flags.get("scheduler")
            local = (typed is not None and typed.value == LOCAL) or self.facts() is None
            return None if local else self.scheduler("slurm").cluster

        request = load_request(args, self.cwd, self.environ, find_cluster, self._starts or Starts.ANY)
        self._vet(request)
        return request

    def plan(
        self, args: SubmitArgs, *, named: bool = True, change: Callable[[Request], Request] | None = None,
        joins: bool = False,
    ) -> Plan:  # fmt: skip
        """Decide everything about a run and write nothing.

        With ``named`` False the run is called RUN_ID and TOKEN, as ``render`` prints it, and no cluster is needed.
        ``change`` may replace values of the merged request. ``joins``: in a shell of salloc, the run starts in its job.
        """
        from clusterrun.submit import plan as planning
        from clusterrun.submit.salloc import join

        request = self.request(args)
        if joins and self.facts() is not None:
            request = join(request, self.environ, self.scheduler("slurm"))
        scheduler = self._scheduler_for(request, named=named)
        partition = request.values.get("partition")
        if partition is not None and partition.value == "auto" and not request.in_job:
            request = self._choose_partition(args, request, scheduler)
        request = change(request) if change else request
        has_gpus = self._factory.has_gpus(None if request.in_job else scheduler)
        return planning.plan(request, scheduler, has_gpus, self._here(), named=named)

    def _scheduler_for(self, request: Request, *, named: bool) -> Scheduler | None:
        """Return the scheduler of a run: inside a Slurm job it is this machine's. None for a Slurm out of reach."""
        if request.in_job:
            if request.scheduler == "slurm":
                raise RequestError("--in-job cannot be combined with --scheduler slurm, which queues a new job",
                                   hint="remove one of them")  # fmt: skip
            self._factory.slurm()  # raises without Slurm
            return self.scheduler(LOCAL)
        if named or request.scheduler == LOCAL or self.facts() is not None:
            return self.scheduler(request.scheduler)
        return None

    def soonest(self, args: SubmitArgs) -> StartEstimates:
        """Return where a job would start soonest, by partition and shape; nothing is submitted or written."""
        from clusterrun.free.estimate import EstimateContext, soonest

        request, scheduler = self.request(args), self.scheduler("slurm")
        return soonest(
            EstimateContext(request, scheduler, self._here(), self._factory.has_gpus(scheduler), args), self.free()
        )

    def free(self) -> ClusterSnapshot:
        """Return the free resources and this user's limits. Raises SchedulerError if Slurm does not respond."""
        from clusterrun.free import snapshot

        return snapshot.load_snapshot(self._factory.slurm(), self.user)

    def check(self, plan: Plan, *, preload: bool = False, tasks: int = 1) -> list[str]:
        """Check a plan (``preload``: to submit it next) and return lines for the user. Raises RequestError.

        ``tasks`` is the number of jobs like this one, for the cost.
        """
        from clusterrun.preflight import checks

        self.store(plan.record.root).check_folders()
        scheduler = self.scheduler(plan.record.scheduler)
        if scheduler.local is not None:
            scheduler.local.place(plan.submission)
        return checks.check(
            plan, scheduler, self.environ, self.user,
            state=self.state, say=self.notify, preload=preload, tasks=tasks,
        )  # fmt: skip

    def submit(self, plan: Plan, *, check: bool = True) -> RunRecord:
        """Record the run, submit it, and return its record with the job id; with ``check`` check it before.

        Raises RequestError or SchedulerError, after which nothing is left, or Ambiguous, which names the run.
        """
        from clusterrun.records.agreed import agree
        from clusterrun.submit import protocol, snapshot

        scheduler, store = self.scheduler(plan.record.scheduler), self.store(plan.record.root)
        lines = self.check(plan, preload=True) if check else []
        snapshot.stage(plan, store, lines, self.environ, self.notify)
        for words in plan.python.agreements:
            agree(self.state, *words)
        with store.submitting(plan.record):
            return protocol.submit(store, scheduler, plan.record, plan.submission, notify=self.notify)

    def submit_script(self, *words: str, **options: Any) -> RunRecord:
        """Plan and submit a script with its arguments; ``options`` are those of :meth:`SubmitArgs.of`."""
        from clusterrun.submit.request import SubmitArgs

        return self.submit(self.plan(SubmitArgs.of(*words, **options)))

    def submit_function(
        self, function: Callable[..., Any], *args: Any, flags: Mapping[str, Value], **kwargs: Any
    ) -> Any:
        """Run a callable once per rank on Slurm, pickled by submitit and started by clusterrun's script.

        ``flags`` are as in :class:`SubmitArgs`. Returns submitit's job; its ``results()`` has one value per rank. The
        callable must be importable by the job's Python, or small enough to pickle by value.
        """
        from clusterrun.jobspec.spec import Function
        from clusterrun.scheduler.slurm.executor import TrainExecutor
        from clusterrun.submit import protocol, snapshot
        from clusterrun.submit.request import SubmitArgs

        plan = self.plan(SubmitArgs(work=Function(getattr(function, "__name__", "function")), flags=flags))
        scheduler = self.scheduler(plan.record.scheduler)
        if scheduler.name == LOCAL:
            raise RequestError(
                "callables can be submitted only to Slurm", hint="with the local scheduler, submit a script"
            )
        store = self.store(plan.record.root)
        snapshot.stage(plan, store, self.check(plan), self.environ, self.notify)
        submission = plan.submission._replace(env={**plan.submission.env, "SUBMITIT_EXECUTOR": "slurm"})

        def send(argv: Sequence[str]) -> str:
            # the submit protocol replaces submitit's single sbatch, whose output it would trust
            with store.submitting(plan.record):
                return str(protocol.submit(store, scheduler, plan.record, submission, notify=self.notify).job_id)

        return TrainExecutor(submission, send).submit(function, *args, **kwargs)

    def recover(self, run_id: str) -> RunRecord:
        """Finish a submission that was cut off: find the job, or submit it now with the same token.

        Raises RequestError or NoSuchJob for an unknown run, and what :func:`clusterrun.submit.resume.recover` raises.
        """
        from clusterrun.submit.resume import recover
        from clusterrun.sweeps.send import is_sent_with_a_sweep, recover_sweep

        if not is_run_id(run_id):
            raise RequestError(f"not a run id: {run_id[:40]!r}", hint="a run id looks like 20261121-034501-k3v7qa")
        run = self.store().by_run_id(run_id)
        if run is None:
            raise NoSuchJob(f"no record of run {run_id} found", hint="cd to the folder that the run was submitted from")
        finish = recover_sweep if is_sent_with_a_sweep(run) else recover
        return finish(run, self.store(run.root), self._scheduler_of, self.environ, self.notify)

    def resume(
        self, job: str | Target, *, current_code: bool = False, resume_args: str | None = None,
        changed: Mapping[str, str] = MappingProxyType({}),
    ) -> RunRecord:  # fmt: skip
        """Submit a run that has ended once more, to continue from its checkpoints; return its record.

        With ``current_code`` it runs your code as it is now, not as it was saved; ``resume_args`` are added to the
        script's arguments instead of those of the run; ``changed`` are other values of its options, such as ``time``.
        An interrupted submission is finished instead, as by :meth:`recover`. Raises NoSuchJob, RequestError,
        SchedulerError or Ambiguous.
        """
        from clusterrun.state.cancel import refuse_to_resume
        from clusterrun.submit import checks, resume
        from clusterrun.submit.job_python import JobPython

        def confirm(run: RunRecord) -> None:
            answer = self._query().queue([run])
            refuse_to_resume(self.states([run], answer)[0], time.time(), answer)

        target = self.find(job) if isinstance(job, str) else job
        if target.run is None:
            self.status([target])  # raises NoSuchJob
            raise RequestError(f"job {target.text} is not a clusterrun job", hint="submit the script again with sbatch")
        run = target.run.newest
        if run.mine and run.job_id is None:
            if current_code or resume_args is not None or changed:
                raise RequestError(f"the submission of run {run.run_id} was interrupted, and has its options already",
                                   hint=f"finish it first: clusterrun resume {run.run_id}")  # fmt: skip
            return self.recover(run.run_id)
        confirm(run)
        return resume.resume(
            run, self.store(run.root), self._scheduler_of(run), confirm, self._here(),
            lambda spec, script: checks.check(spec, script, self.environ, JobPython(spec.python)), self.notify,
            current_code=current_code, resume_args=resume_args, changed=changed,
        )  # fmt: skip

    sweep, map, table = arrays.sweep, arrays.map_function, arrays.table

    # -- querying --------------------------------------------------------------------------------------------------

    def find(self, text: str) -> Target:
        """Return the job of a job id, as that job's submission of the run has it, or of a run id. Raises NoSuchJob."""
        return self._query().find(text)

    def live_targets(self, targets: Sequence[Target]) -> list[Target]:
        """Return the jobs that are meant, each once: of a run that was named, each live job, else its newest."""
        return self._query().live_targets(targets)

    def ladder(self, run: RunRecord) -> list[RunRecord]:
        """Return the rungs of a ladder up to this run, smallest first; only this run if it is no rung, or the first."""
        store, runs = self.store(run.root), [run]
        while runs[0].rung_before and (before := store.by_run_id(runs[0].rung_before)) and before not in runs:
            runs.insert(0, before)
        return runs

    def states(self, runs: Sequence[RunRecord], answer: Answer | None = None) -> list[RunState]:
        """Return the states of runs, in their order, with one query per scheduler, or by this answer of Slurm's."""
        return self._query().states(runs, answer)

    def current_states(self, runs: Sequence[RunRecord]) -> list[RunState]:
        """Return the states of runs from a new query, also of those that ended long ago: Slurm can requeue a job."""
        query = self._query()
        return query.states(runs, query.queue(runs))

    def cached_states(self, runs: Sequence[RunRecord]) -> Listing:
        """Return the states of runs, from another process's squeue if its answer is good enough."""
        return self._query().cached_states(runs)

    def status(self, jobs: Iterable[str | Target]) -> list[RunState]:
        """Return the states of jobs, given by ids or found before; of any that Slurm shows, of an array its tasks'.

        A job id means that job, a run id all live jobs of the run. Raises NoSuchJob for an unknown job, and for a task
        of a run that is not an array.
        """
        query = self._query()
        return query.status([query.find(job) if isinstance(job, str) else job for job in jobs])

    def listing(self, *, everything: bool = False, all_clusters: bool = False, cluster: str = "") -> Listing:
        """Return the user's active jobs, with ``everything`` also the ended ones; see :meth:`StateQuery.list_jobs`."""
        return self._query().list_jobs(
            everything=everything, all_clusters=all_clusters, cached=self._polling, cluster=cluster
        )

    def watch(self, targets: Sequence[Target], *, follow: bool = False) -> Watch:
        """Return a watch over jobs, with ``follow`` for a reader of their logs; external jobs are queried now.

        Raises NoSuchJob.
        """
        from clusterrun.state.external import ExternalJobs
        from clusterrun.state.reconcile import runs_and_external_ids
        from clusterrun.state.watch import Watch

        runs, ids = runs_and_external_ids(targets)
        others = ExternalJobs(ids, self._factory.slurm_for(ids)) if ids else None
        cached = self.cached_states if self._polling or follow else None
        return Watch(runs, self.current_states, cached, others, follow=follow)

    def wait(self, runs: Sequence[RunRecord], *, sleep: Callable[[float], None] = time.sleep) -> list[RunState]:
        """Wait until runs have ended, also while the scheduler does not respond, and return their states."""
        from clusterrun.state.reconcile import Target
        from clusterrun.state.watch import wait_for_end

        return wait_for_end(self.watch([Target(run.run_id, run) for run in runs]), self.notify, sleep)

    # -- changing --------------------------------------------------------------------------------------------------

    def select(self, *, name: str = "") -> list[RunState]:
        """Return the user's active runs whose name matches a glob. Raises SchedulerError if a scheduler is silent."""
        return self._query().active_runs(name)

    def cancel(self, targets: Sequence[RunState]) -> list[tuple[RunState, Cancelled]]:
        """Cancel the user's own jobs, and return the results as the scheduler shows the jobs afterwards."""
        from clusterrun.state import cancel

        results = cancel.cancel(targets, self.user, self._scheduler_of, lambda run: self.store(run.root))
        is_queued = self._query().is_queued
        if not any(map(is_queued, targets)):
            return results
        return cancel.confirm(results, self.scheduler("slurm").query(), is_queued)

    def hold(self, target: RunState, *, release: bool = False) -> None:
        """Hold a pending job of the user, or release it. Raises NoSuchJob, RequestError or SchedulerError."""
        from clusterrun.state import cancel

        cancel.hold(target, self.user, self._scheduler_of(target), release=release)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _query(self) -> StateQuery:
        from clusterrun.state.query import StateQuery

        return StateQuery(self._factory, self.store(), self.notify)

    def _here(self) -> LocalContext:
        from clusterrun.submit.plan import LocalContext

        return LocalContext(self.cwd, self.environ, self.user)

    def _choose_partition(self, args: SubmitArgs, request: Request, scheduler: Scheduler | None) -> Request:
        from clusterrun.free.estimate import EstimateContext, choose_partition  # only --partition auto needs it

        return choose_partition(
            EstimateContext(request, scheduler, self._here(), self._factory.has_gpus(scheduler), args), self.user
        )

    def _scheduler_of(self, job: RunRecord | RunState) -> Scheduler:
        from clusterrun.state.query import scheduler_of

        return scheduler_of(job, self._factory)
