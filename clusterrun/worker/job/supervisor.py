"""The batch script's last command: claim the run, start its ranks, and record how they ended. Standard library only.

`python __main__.py supervise OPTIONS -- WORK` runs on the first node of a job, or on this machine for the local
scheduler. The run's ids are in the environment, so that no other user sees the token in the process list.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from ...base.errors import WorkerError
from ...base.fields import OF_JOB
from ...run_folder import ends, rank_records
from ...run_folder.attempt_number import FOLDER_GONE
from ...run_folder.ends import SAVED
from ...run_folder.files import write_text
from ...run_folder.launches import NODES
from ..node import batch_host
from ..node.log import say
from . import hold, node_evidence, requeue, restart, spares, step
from .job import Job
from .progress_follower import ProgressFollower
from .requeue import Requeue
from .restart import LaunchEnd
from .termination import TERMINATED, Terminated, Termination
from .time_limit import TimeLimit
from .watchdog import Watchdog

SIGTERM_AFTER_STEP_S = 10.0  # Slurm sends SIGTERM to the step and to this process, in any order


def run(job: Job, work: Sequence[str], termination: Termination, again: Requeue) -> int:
    """Start the ranks, again after a failure that a new start may mend, and return the job's exit status."""
    launches: list[LaunchEnd] = []
    termination.allow()
    job.staged.stage(job.options, job.run_dir, job.identity.job_id)
    while True:
        termination.allow()
        status = run_step(job, work, termination, again)
        if status in (0, SAVED) or termination.came:
            return status
        if job.options.max_restarts:
            again.await_controller(termination)
        lost = spares.find_lost_nodes(job, lambda: termination.came)
        job.lost_nodes |= lost
        if lost and not spares.can_replace(job, lost) and spares.requeue_without(job, again, lost):
            return SAVED
        if not job.options.max_restarts:
            return status
        launches.append(restart.read_launch(job.attempt_dir, job.records, job.checkpoints, status, job.workers))
        if reason := restart.why_not_again(launches, job.options.max_restarts):
            say(f"launch {job.launch} failed: {launches[-1].cause}; not restarting the ranks: {reason}")
            return status
        _begin_again(job, launches[-1], lost)


def _begin_again(job: Job, end: LaunchEnd, lost: set[str]) -> None:
    """Record the end of a launch, and begin the next one without the lost nodes."""
    if lost:
        say(f"nodes not used in the next launch (not responding): {' '.join(sorted(lost))}")
    say(f"launch {job.launch} failed: {end.cause}; restarting the ranks")
    job.notifier.send("restarted", end.cause)
    job.record_launch(end)
    node_evidence.note_launch(job, end.status)
    job.open_attempt(job.launch + 1)


def run_step(job: Job, work: Sequence[str], termination: Termination, again: Requeue) -> int:
    """Start the ranks, wait for their end, and return the exit status of the launch; raises WorkerError."""
    nodes, address = step.find_nodes(job)
    with suppress(OSError):  # only messages need the names
        write_text(job.attempt_dir / NODES, "\n".join(nodes))
    facts = {} if job.options.local else batch_host.show_job(job.slurm_id)
    if facts.get("JobState") in batch_host.ENDING:  # SIGTERM came while this program was being started
        termination.came = True
        raise Terminated
    job.note_queue(facts)
    end_time = again.end_time(batch_host.end_time(facts))
    environ = step.environment(job, nodes, address, end_time)
    ranks = job.workers = len(nodes) * job.options.workers_per_node
    holder, port = step.hold_port(job, address)
    environ["MASTER_PORT"] = port
    job.nodes = nodes
    if job.earlier_starts:
        work = [*work, *shlex.split(job.options.resume_args)]
    say(
        f"{os.environ.get('CLUSTERRUN_RUN_ID', '')}: job {job.name}, attempt {job.identity.restart}.{job.launch}:"
        f" {step.describe(ranks, nodes)}, rendezvous {address}:{port}"
    )
    if not job.earlier_starts:
        job.notifier.send("started", step.describe(ranks, nodes))
    umask = job.umask | (0o022 if _is_task(work) else 0)  # built-in tasks write into the run's folder
    termination.allow(may_raise=False)
    try:
        try:
            command = step.command(job, nodes, work)
            process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, umask=umask)
        except OSError as error:
            text = f"cannot start the ranks: {error.filename}: {error.strerror}"
            raise WorkerError(text, kind="launch-failed") from None
        status = _wait(job, process, termination, TimeLimit(job, end_time, again.end_time), work)
    finally:
        # it ignores TERM, which scancel and a requeue send to all processes here, because ranks that are still saving
        # use its store. It has nothing to clean up, so KILL is safe.
        holder.kill()
        holder.wait()
        job.records = rank_records.read(job.attempt_dir)  # once: there may be 10,000 files
    for dump in job.attempt_dir.glob("flight_recorder_*"):  # torch writes them with the ranks' umask
        with suppress(OSError):
            dump.chmod(dump.stat().st_mode & ~0o022)
    if status in (1, TERMINATED) and not termination.came:
        status = _find_cause(job, status, ranks)
    return _judge(job, status, ranks)


def _wait(
    job: Job, process: subprocess.Popen[bytes], termination: Termination, time_limit: TimeLimit, work: Sequence[str]
) -> int:
    """Watch the step until it ends, and return its status, 128+n after signal n."""
    is_task = _is_task(work)
    termination.watch(process)
    ends_it = job.options.hang_timeout is not None or is_task
    watchdog = Watchdog(job, process, job.workers, say, lambda: termination.came, ends_it)
    watchdog.start()
    follower = ProgressFollower(job.attempt_dir, say, work=work)
    follower.start()
    if is_task and not job.options.local:
        time_limit.start()
    try:
        status = process.wait()
        termination.step = None
        status = watchdog.close(status)
        if not job.options.local and not termination.came and batch_host.is_ending(job.slurm_id):
            termination.await_signal(SIGTERM_AFTER_STEP_S)
    finally:
        time_limit.close()
        follower.close()
    return 128 - status if status < 0 else status


def _is_task(work: Sequence[str]) -> bool:
    return "task" in (work[0], *(work[work.index("--") + 1 :][:1] if work[0] == "launch" else ()))


def _find_cause(job: Job, status: int, ranks: int) -> int:
    """Return the status of the rank that failed first; 1 if a rank that was killed left no record.

    srun returns the highest status, perhaps that of a rank it ended, or of one that lost its connection to the first.
    """
    is_ended_by_srun = status == TERMINATED and len(job.records[1]) < ranks
    first = ends.find_failure(job.attempt_dir)
    return (first and first.status) or (1 if is_ended_by_srun else status)


def _judge(job: Job, status: int, ranks: int) -> int:
    """Return the launch's status from the step's.

    Status 0 of the step does not prove success (srun exits 0 after a node failure), so every rank writes an end record.
    A shared file system may show those of other nodes late.
    """
    if status != 0:
        return status
    until = time.monotonic() + job.options.shown_late
    while (missing := ranks - len(job.records[1])) > 0 and time.monotonic() < until:
        time.sleep(max(1.0, len(job.nodes) / rank_records.READS_PER_S))
        job.records = rank_records.read(job.attempt_dir)
    job.unmarked = missing
    if job.unmarked > 0:
        is_gone = not job.attempt_dir.exists()
        why = f"{job.run_dir}: {FOLDER_GONE}" if is_gone else "a node or a rank was lost"
        say(f"the step ended with status 0, but only {ranks - missing} of {ranks} ranks recorded their end: {why}")
        return 1
    return SAVED if (job.attempt_dir / ends.STOPPED).exists() else 0


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options and the work; the template writes them (jobspec/render.py)."""
    split = list(argv).index("--") if "--" in argv else len(argv)
    about = "Supervise one execution of a job, until it ends or is requeued."
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    for option in OF_JOB:
        option.add_to(parser)
    parser.add_argument("--process-group", default="expected")
    parser.add_argument(
        "--check-gpus",
        help="check nodes and links before the launch; fail if a node has fewer GPUs than this",
    )
    step.add_options(parser)
    parser.add_argument("--time-limit", type=int, default=0, help="time limit of a local job, in seconds")
    parser.add_argument("--elapsed", type=int, default=0, help="seconds since the script began")
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--in-job", action="store_true", help="the job is a local one, inside a Slurm job")
    parser.add_argument("--log-start", default="0 0", help="sizes of both logs when the script began")
    parser.add_argument(
        "--shown-late", type=float, default=90.0, help="seconds to wait for other nodes' files to appear on NFS"
    )
    parser.add_argument("--script", default="script.sh", help="path of the script, shown in a hint")
    parser.add_argument("--ended", type=int, help="exit status of a script that ended before its last line")
    parser.add_argument("--failed-setup", default="", help="number and text of the setup line that failed")
    options = parser.parse_args(argv[:split])
    options.workers_per_node = 1 if options.launcher == "none" else options.tasks_per_node
    return options, list(argv[split + 1 :])


def _failed_setup(options: argparse.Namespace) -> WorkerError | None:
    number, _, line = options.failed_setup.partition(" ")
    if not number:
        return None
    text = f"setup line {number} failed with status {options.ended}: {line}"
    return WorkerError(text, kind="setup", number=number, status=options.ended, command=line)


def _as_problem(error: WorkerError | OSError) -> WorkerError:
    return error if isinstance(error, WorkerError) else WorkerError(str(error))


def main(argv: Sequence[str]) -> int:
    """Run the job from its claim to its end record, and return its exit status."""
    termination = Termination()
    options, work = parse(argv)
    if options.in_job:
        termination.take_word()
    job = Job(options, os.umask(0o027 if options.shared else 0o077))
    again = Requeue(job)
    termination.also = again.on_term
    if requeue.is_completed(job):
        say(f"job {job.name}: the run is already complete; Slurm requeued the job because of an earlier preemption")
        return 0
    try:
        job.begin(termination)
        node_evidence.note_lost_host(job)
    except (WorkerError, OSError) as error:
        say(str(error))
        return _as_problem(error).status
    status, problem = 1, _failed_setup(options)
    try:
        status = options.ended
        if status is None:
            status = again.after(run(job, work, termination, again), termination.came)
    except Terminated:
        status = TERMINATED
    except KeyboardInterrupt:
        status = 130
    except (WorkerError, OSError) as error:
        say(str(error))
        problem = _as_problem(error)
        status = problem.status
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the record
        job.record_end(status, termination.came or options.ended == TERMINATED)
        job.staged.remove()
        with suppress(OSError):
            job.notify_end(status, _record_last_launch(job, status, problem))
    hold.hold_nodes(job, status, termination.came)
    return status


def _record_last_launch(job: Job, status: int, problem: WorkerError | None) -> str:
    """Record how the last launch ended, and return why, in words."""
    if problem is not None:
        end = LaunchEnd(status, str(problem), kind=problem.kind, values=problem.values)
    else:
        end = restart.read_launch(job.attempt_dir, job.records, job.checkpoints, status, job.workers)
    job.record_launch(end)
    node_evidence.note_launch(job, end.status)
    return end.cause
