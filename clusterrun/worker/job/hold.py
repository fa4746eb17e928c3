"""Keep the nodes of a job that has failed, so that its user can look at them: --on-failure hold. Standard library only.

The end record is written before. `hold.json` in the attempt's folder says until when; removing it ends the hold.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from ...run_folder import attempt_number, ends
from ...run_folder.files import write_record
from ..node import batch_host
from ..node.batch_host import run_command
from ..node.log import say
from .job import Job

POLL_S = 2.0
AFTER_S = 60.0  # between the end of the hold and that of the time limit: the hold ends first
NO_FAILURE = (0, ends.SAVED, 130, 143)  # done, stopped, ended by Ctrl-C, by SIGTERM (preemption, the time limit)


def hold_nodes(job: Job, status: int, was_terminated: bool) -> None:
    """Keep the allocation of a job that failed for --on-failure seconds, or until SIGTERM or the removal of hold.json.

    Does nothing without that option, for a job that Slurm ends or that runs again, and before its ranks started.
    """
    if not _may_hold(job, status, was_terminated) or not _is_newest():
        return
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: ended.set())  # scancel, the time limit
    facts = batch_host.show_job(job.identity.job_id)
    if facts.get("JobState") in batch_host.ENDING:  # SIGTERM came while the end was recorded
        return
    until = time.time() + job.options.on_failure
    _keep_allocation(job, until, batch_host.end_time(facts))
    file, is_written, shell = job.attempt_dir / ends.HOLD, False, _shell_line(job)
    with suppress(OSError):
        write_record(file, {"until": int(until), "shell": shell})
        is_written = True
    at = time.strftime("%H:%M", time.localtime(until))
    say(f"job {job.name} failed with status {status}; its nodes are held until {at} (--on-failure hold)")
    say(f"to open a shell on a held node: {shell}")
    say(f"to release the nodes earlier: clusterrun cancel {job.name} or rm {shlex.quote(str(file))}")
    while time.time() < until and not (is_written and _is_gone(file)) and not ended.wait(POLL_S):
        pass


def _may_hold(job: Job, status: int, was_terminated: bool) -> bool:
    is_over = was_terminated or job.runs_again or job.options.ended is not None
    return bool(job.options.on_failure) and not is_over and status not in NO_FAILURE


def _keep_allocation(job: Job, until: float, limit: str) -> None:
    """Keep Slurm from starting the job again, and from keeping the nodes after the hold; `limit` ends the job."""
    update = ["scontrol", "update", f"JobId={job.identity.job_id}"]
    run_command([*update, "Requeue=0"])  # a preempted job would come back and start the ranks again
    if job.options.spare_nodes and not (limit and int(limit) < until + AFTER_S):
        # with --no-kill Slurm would keep the other nodes to the time limit if the first one were lost
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(until + AFTER_S))
        run_command([*update, f"EndTime={at}"])


def _shell_line(job: Job) -> str:
    """Return the command that opens a shell on the node that failed first, else on the first one."""
    node = failed_node(job.attempt_dir) or "".join(job.nodes[:1])
    number = os.environ.get("SLURM_JOB_ID", job.identity.job_id)  # of an array's task: srun takes no 123_4
    return f"srun --jobid={number} --overlap {f'--nodelist={node} ' if node else ''}--pty bash"


def failed_node(attempt_dir: Path) -> str:
    """Return the node on which the launch failed first, or that of the rank that hung it; empty if not known."""
    hang, failure = ends.find_hang(attempt_dir), ends.find_failure(attempt_dir)
    return (hang.node if hang else "") or (failure.node if failure else "")


def _is_newest() -> bool:
    """Return whether no later start of the job is running: on a node that was cut off, this one may have lived on."""
    try:
        attempt_number.check()
    except (OSError, attempt_number.Superseded):
        return False
    return True


def _is_gone(file: Path) -> bool:
    try:
        file.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # the file system may answer later
    return False
