"""Run a job again whose training is not done: put it back into the queue, else submit a successor. Standard library.

This is the only place that does so, and it does so once for each start of a job: at the time limit (--total-time), at a
preemption (--requeue), and for a node that was lost. It does nothing for a job that the user cancelled.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time

from ...base.decode import as_number
from ...run_folder import ends, launches, rank_records
from ...run_folder.ends import SAVED
from ...run_folder.files import write_record
from ...run_folder.launches import REQUEUE, Launch
from ...run_folder.rank_records import Records
from ...run_folder.submissions import is_cancelled
from ..node import batch_host
from ..node.batch_host import ANSWER_S, restarts, run_command
from ..node.log import say
from . import successor
from .job import Job
from .termination import Termination

PREEMPTED, CANCELLED = "preempted", "the user cancelled the job"
REQUEUED = "JOB REQUEUE"  # Slurm's words in the log of a job that was requeued
HURRY_S = 20.0  # SIGKILL follows SIGTERM after KillWait, 30 s by default
CONTROLLER_PAUSE_S = 5.0
PATIENCE_S = 600.0  # for a controller that is being restarted, while the job still has its nodes
WARNED_EARLY_S = 90.0  # Slurm sends the signal of --signal up to a minute early
WARNING_S = 60  # before the limit, if --signal names no time
SHORT_STARTS, SHORT_S = 3, 30.0  # as many such starts in a row end a chain: something ends them at once
# It starts a requeued job at once: Slurm would wait for the job's old credential to expire, two minutes by default.
START = (
    "for n in 1 2 3 4 5 6 7 8 9 10; do state=$(squeue -h -j {job} -o '%T %r');"
    " case $state in 'PENDING BeginTime') scontrol update JobId={job} StartTime=now && exit;;"
    " RUNNING*|TIMEOUT*|'') exit;; esac; sleep 5; done"
)


class Requeue:
    """Decides whether this job runs again after its ranks have ended, and sees to it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._lock = threading.Lock()
        self._at_term: threading.Thread | None = None
        self._limited_by_total = False
        options = job.options
        own_limit = options.time_limit if options.in_job else 0
        self._own_end = str(int(time.time() - options.elapsed + own_limit)) if own_limit else ""

    @property
    def used_seconds(self) -> float:
        """How much of --total-time this job has used, all its starts together."""
        return sum(durations(self.job))

    def on_term(self) -> None:
        """SIGTERM came, perhaps from the time limit: requeue the job while the ranks save, for SIGKILL follows."""
        is_asking = self._at_term is not None and self._at_term.is_alive()
        if not is_asking and self._is_wanted:
            self._at_term = threading.Thread(target=self._after_term, daemon=True)
            self._at_term.start()

    def end_time(self, limit: str) -> str:
        """Return when the ranks must have stopped: at the time limit, or before it at the end of --total-time.

        Both are in seconds since 1970. `limit` is the end of the Slurm job's time limit, empty if there is none; a run
        inside another job may have a limit of its own.
        """
        if self._own_end:
            return min(filter(None, (self._own_end, limit)), key=int)
        if not self.job.options.total_time:
            return limit
        end = int(time.time() + self.job.options.total_time - self.used_seconds)
        self._limited_by_total = not limit or end < int(limit)
        return str(end) if self._limited_by_total else limit

    def after(self, status: int, came: bool) -> int:
        """Requeue the job if its ranks ended early; return its exit status, 85 for a training that is not done.

        `status` is the ranks', `came` whether the job got SIGTERM.
        """
        if not self._is_wanted:
            return status
        if came:
            return self._after_sigterm(status)
        if self.job.runs_again:
            return SAVED
        signals = received_signals(self.job.records[1])
        was_warned = bool(signals) and (status == 0 or status > 128)
        if status != SAVED and not was_warned:
            return status
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue sends it to this job too
        facts = self._show(PATIENCE_S)
        why = self._why_ended(facts) or self._why_early(facts, signals)
        if not why:
            return status
        self._continue(why, facts)
        return SAVED  # also where the total time is used up: the training is not done

    def _after_sigterm(self, status: int) -> int:
        if self._at_term is not None:
            self._at_term.join(HURRY_S)
        return SAVED if self.job.runs_again and status in (0, SAVED) else status

    @property
    def _is_wanted(self) -> bool:
        options = self.job.options
        return not options.local and bool(options.total_time or options.requeue)

    def await_controller(self, termination: Termination) -> None:
        """Wait until Slurm answers: no step starts without it. SIGTERM raises Terminated.

        If only this node is cut off, Slurm or a rank on another node (orphans.py) starts the job elsewhere meanwhile.
        """
        if self.job.options.local:
            return
        termination.allow()
        is_first = True
        while run_command(["scontrol", "show", "job", "-o", self.job.slurm_id]).is_silence:
            if is_first:
                self._say("Slurm is not responding on this node: the ranks will restart once it responds")
            is_first = False
            time.sleep(CONTROLLER_PAUSE_S)
        termination.allow(may_raise=False)

    def leave(
        self, why: str, *, exclude: str = "", evidence: str = "", start_soon: bool = True,
        facts: dict[str, str] | None = None,
    ) -> bool:  # fmt: skip
        """Put the job back into the queue, or submit its successor; return whether it runs again.

        A node to `exclude` is left out from now on. `why` and `evidence` are for the log and the run's record.
        `start_soon` shortens the two minutes that Slurm lets a requeued job wait. `facts` are the job's fields if the
        caller has them: few commands fit into KillWait, so the requeue comes before all that can wait.
        """
        with self._lock:
            if self.job.runs_again:
                return True
            facts = self._show(HURRY_S) if facts is None else facts
            if restarts(facts) > self.job.identity.restart:  # Slurm or the script has requeued it
                self.job.runs_again, self.job.due = True, REQUEUED
                return True
            if exclude and facts.get("JobState", "RUNNING") != "RUNNING":  # the user has cancelled it
                return False
            next_job, refused = self._requeue_or_succeed()
            if refused:
                resume = f"clusterrun resume {self.job.name}"
                self._say(f"the job ended ({why}) and was not requeued: {refused}; run `{resume}` to continue")
                return False
            self.job.runs_again = True
            if not next_job:
                self.job.due = REQUEUED
                self._exclude(exclude)
            helper = self._start_helper(facts) if start_soon and not next_job else ""
            self._say(f"{_describe(next_job, exclude)} ({why}){helper}")
            document = {"why": why, "successor": next_job, "exclude": exclude, "evidence": evidence,
                        "cluster": self.job.identity.cluster, "time": time.time()}  # fmt: skip
            with contextlib.suppress(OSError):
                write_record(self.job.attempt_dir / REQUEUE, document)
            return True

    def _requeue_or_succeed(self) -> tuple[str, str]:
        """Put the job back into the queue, else submit its successor; return the successor's id, and why neither is."""
        next_job = ""
        refused, is_silence = self._requeue()
        if refused and not is_silence and not self._is_cancelled():  # after a silence it may be in the queue
            next_job, refused = successor.submit(self.job, self.used_seconds)
        if not refused and self._is_cancelled():  # meanwhile: scancel may have come before the requeue
            run_command(["scancel", next_job or self.job.identity.job_id])
            refused = CANCELLED
        return next_job, refused

    def _exclude(self, nodes: str) -> None:
        if not nodes:
            return
        excluded = batch_host.excluded_nodes(self.job.identity.job_id)
        nodes = f"{excluded},{nodes}" if excluded else nodes
        run_command(["scontrol", "update", f"JobId={self.job.identity.job_id}", f"ExcNodeList={nodes}"])

    def _after_term(self) -> None:
        facts = self._show(HURRY_S)
        if why := self._why_ended(facts):
            self._continue(why, facts)

    def _continue(self, why: str, facts: dict[str, str]) -> None:
        """Run the job again, unless its total time is used up; a preemption uses none."""
        if why == PREEMPTED or self._has_time():
            self.leave(why, start_soon=not _is_preempted(facts), facts=facts)

    def _why_ended(self, facts: dict[str, str]) -> str:
        """Return why Slurm ends this job, if that is a reason to run it again; a cancelled job has no reason."""
        if self.job.options.requeue and _is_preempted(facts):
            return PREEMPTED
        is_limit = self.job.options.total_time and facts.get("Reason") == "TimeLimit"
        return "the time limit" if is_limit else ""

    def _why_early(self, facts: dict[str, str], signals: set[str]) -> str:
        """Return why the ranks stopped by themselves, if that is a reason to run the job again."""
        options = self.job.options
        if facts.get("JobState", "RUNNING") != "RUNNING":  # it was cancelled meanwhile
            return ""
        stop = ends.find_stop(self.job.attempt_dir)
        stopped = stop is not None and stop.values.get("reason") == "the time limit"
        name, _, lead = str(options.signal).partition("@")
        end = batch_host.end_time(facts)
        warned = end and f"SIG{name.removeprefix('SIG')}" in signals and (
            int(end) - time.time() < int(lead or WARNING_S) + WARNED_EARLY_S
        )  # fmt: skip
        return "the time limit is near" if options.total_time and (stopped or warned) else ""

    def _has_time(self) -> bool:
        lasted = durations(self.job)
        if self._limited_by_total or sum(lasted) >= self.job.options.total_time:
            self._say("the total time (--total-time) is used up")
            return False
        if len(lasted) >= SHORT_STARTS and max(lasted[-SHORT_STARTS:]) < SHORT_S:
            ran = f"the job ran for less than {SHORT_S:.0f} s after each of its last {SHORT_STARTS} starts"
            self._say(f"{ran}, so it is not requeued")
            return False
        return True

    def _requeue(self) -> tuple[str, bool]:
        """Put the job back into the queue; return why not (empty if it is there), and whether Slurm was ever silent."""
        job_id, until = self.job.identity.job_id, time.monotonic() + HURRY_S
        allowed = is_silence = False
        while True:
            if self._is_cancelled():
                return CANCELLED, is_silence
            reply = run_command(["scontrol", "requeue", job_id])  # never requeuehold: the job could stay held for ever
            if reply.status == 0 or restarts(self._show(ANSWER_S)) > self.job.identity.restart:
                return "", is_silence
            is_silence |= reply.is_silence
            if not reply.is_silence:
                if allowed or "disabled" not in reply.text:
                    return reply.text, is_silence
                allowed = True  # it was submitted with --no-requeue
                run_command(["scontrol", "update", f"JobId={job_id}", "Requeue=1"])
            elif time.monotonic() > until:
                return reply.text or "Slurm is not responding", is_silence
            else:
                time.sleep(1)

    def _is_cancelled(self) -> bool:
        return is_cancelled(self.job.run_dir, self.job.token)

    def _start_helper(self, facts: dict[str, str]) -> str:
        """Submit the small job that starts this one at once, unless the user wants none; return the rest of a line."""
        if not self.job.options.helper_job:
            return ""
        same = {"partition": facts.get("Partition"), "account": facts.get("Account"), "qos": facts.get("QOS")}
        options = [f"--{name}={value}" for name, value in same.items() if value]
        reply = run_command([
            "sbatch", "--parsable", f"--job-name=clusterrun-start-{self.job.name}", "--begin=now+6", "--time=1",
            "--nodes=1", "--ntasks=1", "--output=/dev/null", "--error=/dev/null", "--no-requeue", *options,
            "--wrap", START.format(job=self.job.identity.job_id),
        ])  # fmt: skip
        if reply.status == 0:
            job_id = reply.text.strip()
            return f"; helper job {job_id} will start the job as soon as possible (disable with --no-helper-job)"
        return "; Slurm will start the job again in a few minutes"

    def _show(self, patience: float) -> dict[str, str]:
        """Return the job's fields, with more queries while the controller is silent; none after `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            facts = batch_host.show_job(self.job.identity.job_id, ANSWER_S)
            if facts or time.monotonic() > until:
                return facts
            time.sleep(1)

    def _say(self, text: str) -> None:
        say(f"job {self.job.name}: {text}")


def _describe(job_id: str, exclude: str) -> str:
    """Return a sentence on what continues the run: the job ``job_id``, or this job again if that is empty."""
    if not job_id:
        return "the job was requeued" + (f" and excludes {exclude}" if exclude else "")
    if job_id == successor.NOT_CONFIRMED:
        return "a job to continue the run was submitted, but not confirmed by Slurm"
    return f"job {job_id} continues the run"


def durations(job: Job) -> list[float]:
    """Return how many seconds each start of a job has lasted, oldest first, by what its launches recorded.

    This start lasts until now. One without a record of its end (its node was lost) ended with rank 0's last heartbeat.
    A file system that fails counts as no records: a job must be requeued all the same.
    """
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    for folder in launches.folders(job.run_dir, job.key):
        launch = launches.load_own(folder)
        if launch.began is not None:
            began[launch.start] = min(launch.began, began.get(launch.start, launch.began))
            ended[launch.start] = max(last_sign(launch, launch.began), ended.get(launch.start, launch.began))
    ended[f"{job.key}.{job.identity.restart}"] = time.time()
    return [max(0.0, ended[start] - began[start]) for start in began]


def last_sign(launch: Launch, began: float) -> float:
    """Return when a launch was last seen to run, in seconds since 1970."""
    end = ends.load_job_end(launch.folder)
    if recorded := [at for at in (launch.ended, end and end.time) if at is not None]:
        return max(recorded)
    with contextlib.suppress(OSError):
        heartbeat = as_number(rank_records.read_node(launch.folder, 0)[0].get(0, {}).get("time"))
        return began if heartbeat is None else heartbeat
    return began


def received_signals(ends: Records) -> set[str]:
    """Return the names of the signals in the ranks' end records (SIGTERM, SIGUSR1, SIGUSR2)."""
    return {str(name) for end in ends.values() for name in end.get("signals", ())}


def is_completed(job: Job) -> bool:
    """Return whether the previous start completed and Slurm only started the job again for an earlier preemption.

    Slurm 24.05 and later mark a job that they signal for a preemption. A job that was requeued in its grace time keeps
    the mark, so Slurm takes its next end for the preemption and requeues it, although the job completed (24.11.5).
    """
    folders = launches.folders(job.run_dir, job.key)
    if not any(launches.why_requeued(folder) == PREEMPTED for folder in folders):
        return False
    before = [folder for folder in folders if folder.name.startswith(f"{job.key}.{job.identity.restart - 1}.")]
    end = ends.load_job_end(before[-1]) if before else None
    return end is not None and end.status == 0 and not end.signal and not end.due


def _is_preempted(facts: dict[str, str]) -> bool:
    """Return whether Slurm ends this job for another one; a job that is cancelled in the grace time is not."""
    at = facts.get("PreemptTime")
    if at is None:
        return False
    # at the end of the grace time Slurm sets both times, at a scancel before it the EndTime (22.05, 24.11, 26.05)
    return facts.get("JobState") != "COMPLETING" or facts.get("EndTime", at) == at
