"""The Python API: plan, submit, and everything one asks of runs afterwards.

cluster = Cluster()
plan = cluster.plan(Asked(words=("train.py",), flags={"nodes": Value(2, "me")}))
run = cluster.submit(plan)
cluster.wait([run])
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterrun.config.files import find_root
from clusterrun.errors import NoSuchJob, RequestError, SchedulerError
from clusterrun.job import LOCAL, JobId, Outcome, is_run_id
from clusterrun.records import open_runs
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store, state_folder
from clusterrun.scheduler import Answer, Cancelled, Scheduler
from clusterrun.scheduler.factory import Reach
from clusterrun.scheduler.slurm import cache
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.state import cancel as cancelling
from clusterrun.state import external, filters, query, reconcile
from clusterrun.state.external_watch import ExternalWatch
from clusterrun.state.reconcile import RunState
from clusterrun.state.watch import Watch, changed_at, until_over
from clusterrun.submit import protocol
from clusterrun.submit import recover as recovering
from clusterrun.terminal.units import plural

if TYPE_CHECKING:  # asking about jobs needs none of them, and starts sooner without
    from clusterrun.free.estimate import EstimateContext, StartEstimates
    from clusterrun.free.snapshot import ClusterSnapshot
    from clusterrun.jobspec.fields import Value
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs


class Cluster:
    """One user's view from one folder: its project, its records, and the schedulers it can reach.

    ``tell`` gets a line for people now and then (what is waited for, what was dropped). ``environ`` and ``cwd``
    default to this process's own. With ``sparing`` accounting is asked once a minute: for a command that goes on.
    """

    def __init__(
        self,
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = lambda line: None,
        sparing: bool = False,
    ) -> None:
        self.environ = dict(os.environ if environ is None else environ)
        self.tell = tell
        self._cwd = cwd
        self.state = state_folder(self.environ)
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self._sparing, self.heard_ago = sparing, 0.0
        self.listed: Answer | None = None
        self._reach = Reach(self.environ, self.state, sparing=sparing)

    # -- where things are ------------------------------------------------------------------------------------------

    @property
    def cwd(self) -> Path:
        """The current folder; raises RequestError where it was deleted."""
        if self._cwd is not None:
            return self._cwd
        try:
            return Path.cwd()
        except OSError as error:
            raise RequestError("the current folder no longer exists", hint="cd to one that does") from error

    def store(self, root: Path | None = None) -> Store:
        """The records of a project: this one's, unless another root is given."""
        return Store(root or find_root(self.cwd), self.state, self.tell)

    def facts(self) -> ClusterFacts | None:
        """The Slurm cluster this shell is configured for, None where there is none."""
        return self._reach.facts()

    def scheduler(self, name: str) -> Scheduler:
        """The scheduler of that name (``slurm``, ``local``, ``auto``); raises NoScheduler."""
        return self._reach.scheduler(name)

    # -- submitting ------------------------------------------------------------------------------------------------

    def plan(self, asked: SubmitArgs, *, named: bool = True) -> Plan:
        """Decide everything about a run and write nothing.

        With ``named`` False it is called RUN_ID and TOKEN, as ``render`` prints it, and no cluster is needed.
        """
        from clusterrun.free.estimate import plan

        return plan(self._asker(asked, named=named), self.user, named=named)

    def soonest(self, asked: SubmitArgs) -> StartEstimates:
        """Where a job would start soonest: asked of Slurm by partition and shape, nothing submitted or written."""
        from clusterrun.free.estimate import soonest

        return soonest(self._asker(asked, scheduler="slurm"), self.free())

    def free(self) -> ClusterSnapshot:
        """What the cluster has free, and this user's limits; raises SchedulerError where Slurm does not answer."""
        from clusterrun.free import snapshot

        return snapshot.load_snapshot(self.scheduler("slurm"), self.user)

    def check(self, plan: Plan) -> None:
        """What can be known before queueing: the Python has torch, the script is bash; raises RequestError."""
        from clusterrun.submit import request

        request.check_python(plan.spec, self.environ)
        request.check_setup(plan.spec, plan.script, self.environ)

    def submit(self, plan: Plan) -> RunRecord:
        """Write the run down, submit it, and return its record with the job id.

        Raises RequestError or SchedulerError, after which nothing is left, or Ambiguous, which names the run.
        """
        self.check(plan)
        store = self.store(plan.record.root)
        store.prepare(plan.spec.shared)
        scheduler = self.scheduler(plan.record.scheduler)
        store.stage(plan.record, plan.spec_json(), plan.script)
        with store.submitting(plan.record):
            return protocol.submit(store, scheduler, plan.record, plan.order, tell=self.tell)

    def submit_function(
        self, function: Callable[..., Any], *args: Any, flags: Mapping[str, Value], **kwargs: Any
    ) -> Any:
        """Run a callable once per rank on Slurm, by submitit's own pickling through our script.

        ``flags`` are as in :class:`Asked`. Returns submitit's job, whose ``results()`` holds a value per rank. The
        callable must be importable by the job's Python, or small enough to pickle by value.
        """
        from clusterrun.scheduler.slurm.executor import TrainExecutor
        from clusterrun.submit.request import SubmitArgs

        plan = self.plan(SubmitArgs(function=getattr(function, "__name__", "function"), flags=flags))
        scheduler = self.scheduler(plan.record.scheduler)
        if scheduler.name == LOCAL:
            raise RequestError("a callable needs Slurm", hint="submit a script on the local scheduler")
        self.check(plan)
        store = self.store(plan.record.root)
        store.prepare(plan.spec.shared)
        store.stage(plan.record, plan.spec_json(), plan.script)
        order = replace(plan.order, env={**plan.order.env, "SUBMITIT_EXECUTOR": "slurm"})

        def send(argv: Sequence[str]) -> str:
            # the whole protocol stands where submitit would run sbatch once and believe what it prints
            with store.submitting(plan.record):
                return str(protocol.submit(store, scheduler, plan.record, order, tell=self.tell).job_id)

        return TrainExecutor(order, send).submit(function, *args, **kwargs)

    def recover(self, run_id: str) -> RunRecord:
        """Settle a run whose submission was cut off: find its job, or submit it now with the same token.

        Raises RequestError or NoSuchJob for what is no run here, and what :func:`clusterrun.submit.recover.recover`
        raises.
        """
        if not is_run_id(run_id):
            raise RequestError(f"not a run id: {run_id[:40]!r}", hint="it looks like 20261121-034501-k3v7qa")
        run = self.store().by_run_id(run_id)
        if run is None:
            raise NoSuchJob(f"no run {run_id} is known here", hint="go to the folder it was submitted from")
        return recovering.recover(run, self.store(run.root), self._scheduler_of, self.environ, self.tell)

    # -- asking ----------------------------------------------------------------------------------------------------

    def run(self, text: str) -> RunRecord | None:
        """The run behind a job id or run id, None where it has no record; an id given out twice means the newest."""
        if is_run_id(text):
            run = self.store().by_run_id(text)
            if run is None:
                raise NoSuchJob(f"no run {text} is known here", hint="`clusterrun list --all` shows what is")
            return run
        job = JobId.parse(text)
        store = self.store()
        known = store.by_job(job)
        # one id on two clusters is two jobs: without a cluster's name the one this shell is configured for is meant
        here = [run for run in known if job.is_local or job.cluster or self._is_at_hand(run)]
        if not here and self._reach.may_know(job):
            folders, exists = external.run_folders(job, self.scheduler("slurm"))
            here = store.by_job(job, hint=folders) if folders else []
            if exists and not any(run.run_dir in folders for run in here):
                return None  # Slurm has a job of that id, and no run here is that job's
        known = here or known
        if len(known) > 1:
            older = ", ".join(run.run_id for run in known[:-1])
            self.tell(f"job id {job} was given out more than once; this is the newest run (older: {older})")
        return known[-1] if known else None

    def states(self, runs: Sequence[RunRecord], answer: Answer | None = None) -> list[RunState]:
        """How runs stand, in their order: one question to each scheduler, whatever their number.

        ``answer`` is Slurm's of this moment, where it is at hand.
        """
        return query.read(runs, self._reach, self.store(), answer)

    def lately(self, runs: Sequence[RunRecord]) -> tuple[list[RunState], float]:
        """The same for a command that goes on: what another of my windows heard some seconds ago will do, where it is
        as good; and how many seconds (0: of this moment)."""
        asked = [run for run in runs if run.scheduler != LOCAL and reconcile.worth_asking(run, time.time())]
        if not asked or self.facts() is None or not any(query.is_on(run, self.scheduler("slurm")) for run in asked):
            self.heard_ago = 0.0
            return self.states(runs), 0.0
        answer, self.heard_ago = self._heard(runs)
        return self.states(runs, answer), self.heard_ago

    def status(self, texts: Iterable[str]) -> list[RunState]:
        """How jobs stand, runs of ours and any other job that may be seen, an array by its tasks.

        Raises NoSuchJob for one that nobody knows, and for a part of a run that has none.
        """
        texts = list(texts)
        runs = {text: self.run(text) for text in texts}
        ours = self.states([run for run in runs.values() if run is not None])
        filters.refuse_parts(texts, ours)
        mine = {state.record.run_id: state for state in ours if state.record is not None}
        others = self._foreign([JobId.parse(text) for text, run in runs.items() if run is None])
        found = {text: [mine[run.run_id]] if run else others[JobId.parse(text)] for text, run in runs.items()}
        return [state for text in texts for state in found[text]]

    def listing(self, *, everything: bool = False, all_clusters: bool = False) -> list[RunState]:
        """My jobs that are not over: runs from any folder, and others in Slurm's queue, told by one squeue.

        Runs of clusters that this shell is not configured for are counted in one line, or with ``all_clusters`` shown.

        With ``everything`` the finished ones too: all runs that are known here, and what the queue still holds. With
        ``sparing`` another window of mine may have heard it, ``heard_ago`` seconds ago; else the answer is ``listed``.
        Raises SchedulerError where Slurm is silent and nothing is known to show.
        """
        store = self.store()
        known = store.all() if everything else open_runs.open_runs(store)
        known = known if all_clusters else self._at_hand(known)
        answer = Answer()
        if self.facts() is None:
            found = self.states(known)
        else:
            slurm = self.scheduler("slurm")
            anew = everything or not self._sparing
            answer, self.heard_ago = (slurm.query(), 0.0) if anew else self._heard(known)
            more, others = external.others(known, answer, everything=everything)
            if more and self.heard_ago:  # it may have ended since then, and what was heard would bring it back
                answer, self.heard_ago = slurm.query(), 0.0
                more, others = external.others(known, answer)
            self.listed = answer if not self.heard_ago else None
            found = [*self.states([*known, *more], answer), *others]
        shown = [s for s in found if everything or s.status.outcome in filters.OPEN]
        if not (answer.complete or shown):
            raise SchedulerError(
                "Slurm did not answer, and nothing is known here of jobs that are not over", said=answer.note,
                hint="ask `scontrol ping`, then try again",
            )  # fmt: skip
        if not answer.complete:
            self.tell(f"Slurm did not answer: {answer.note}")
        return shown

    def watches(self, runs: Sequence[RunRecord], ids: Sequence[JobId] = ()) -> list[Watch | ExternalWatch]:
        """Watches over runs, and over jobs without a record, whom Slurm is asked for now.

        Raises NoSuchJob for an id that nobody knows.
        """
        how = self.lately if self._sparing else None
        watches: list[Watch | ExternalWatch] = [Watch(runs, self.states, lately=how)] if runs else []
        return [*watches, ExternalWatch(ids, self._reach.slurm_for(ids))] if ids else watches

    def wait(
        self, runs: Sequence[RunRecord], ids: Sequence[JobId] = (), *, sleep: Callable[[float], None] = time.sleep
    ) -> list[RunState]:
        """Wait until runs, and jobs without a record, are over; a scheduler that does not answer is waited for too.

        Raises NoSuchJob for an id that nobody knows.
        """
        return until_over(self.watches(runs, ids), self.tell, sleep)

    # -- changing --------------------------------------------------------------------------------------------------

    def select(self, *, name: str = "", state: str = "") -> list[RunState]:
        """My runs that are not over and known by their records, by glob over the name's user part and by state."""
        wanted = filters.JobFilter(states=frozenset({state.upper()} if state else ()), name=name)
        mine = self.states(self._at_hand(open_runs.open_runs(self.store())))
        asked = filters.choose(mine, filters.JobFilter(name=name))
        silent = next((s for s in asked if s.note and s.status.outcome is Outcome.UNKNOWN), None)
        if silent is not None:
            raise SchedulerError(
                "the scheduler did not answer, so nothing was done", said=silent.note, hint="try again in a moment"
            )
        found = [s for s in filters.choose(mine, wanted) if s.status.outcome is Outcome.RUNNING]
        return [s for s in found if s.record is not None and s.record.mine]

    def cancel(self, targets: Sequence[RunState]) -> list[tuple[RunState, Cancelled]]:
        """Cancel jobs that are ours; raises NoSuchJob for another user's, before anything is cancelled."""
        return cancelling.cancel(targets, self.user, self._scheduler_of, lambda run: self.store(run.root))

    def hold(self, target: RunState, *, release: bool = False) -> None:
        """Hold a waiting job that is ours, or release it; raises NoSuchJob, RequestError or SchedulerError."""
        cancelling.hold(target, self.user, self._scheduler_of(target.record), release=release)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _is_at_hand(self, run: RunRecord) -> bool:
        """Whether the scheduler that a run went to can be asked from this shell."""
        if run.scheduler == LOCAL:
            return True
        return self.facts() is not None and query.is_on(run, self.scheduler("slurm"))

    def _at_hand(self, runs: Sequence[RunRecord]) -> list[RunRecord]:
        """The runs whose scheduler can be asked from this shell; the others are counted in a line."""
        here = [run for run in runs if self._is_at_hand(run)]
        away = sorted({run.cluster or "(not known)" for run in runs if not self._is_at_hand(run)})
        if away:
            count = plural(len(runs) - len(here), "job")
            self.tell(f"not shown: {count} of other clusters ({', '.join(away)}); see them with --all-clusters")
        return here

    def _heard(self, runs: Sequence[RunRecord]) -> tuple[Answer, float]:
        slurm = self.scheduler("slurm")
        here = [run for run in runs if run.scheduler != LOCAL and query.is_on(run, slurm)]
        since = max(map(changed_at, here), default=0.0)
        return cache.cached_query(slurm, [run.job_id for run in here if run.job_id is not None], since)

    def _foreign(self, ids: Sequence[JobId]) -> dict[JobId, list[RunState]]:
        return external.states(ids, self._reach.slurm_for(ids), time.time()) if ids else {}

    def _asker(self, asked: SubmitArgs, *, named: bool = True, scheduler: str = "") -> EstimateContext:
        from clusterrun.free.estimate import EstimateContext
        from clusterrun.submit import plan as planning
        from clusterrun.submit import request

        typed, found = request.read(asked, self.cwd, self.environ), None
        if named or typed.scheduler == LOCAL or self.facts() is not None:
            found = self.scheduler(scheduler or typed.scheduler)
        here = planning.Here(self.cwd, self.environ, self.user)
        return EstimateContext(typed, found, here, self._reach.has_gpus(found), asked)

    def _scheduler_of(self, run: RunRecord | None) -> Scheduler:
        return query.scheduler_of(run, self._reach)
