"""The local scheduler: it runs jobs on this machine, with one detached supervisor per job and no daemon.

This is the client side: it creates the job's folder, starts its supervisor, reads the state that it writes, and cancels
jobs. The supervisor is :mod:`clusterrun.scheduler.local.supervisor`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from clusterrun.base.errors import Ambiguous, CommandError, Refused
from clusterrun.base.job import LOCAL, JobId
from clusterrun.scheduler import KILL_ON_INVALID_DEP, Answer, Cancelled, Submission
from clusterrun.scheduler.local import dependency, steps
from clusterrun.scheduler.local.devices import visible
from clusterrun.scheduler.local.jobfiles import (
    STARTING,
    Job,
    State,
    Unreadable,
    check_root,
    create,
    is_id,
    is_supervised,
    job_folders,
    number_of,
    read_job,
    read_state,
    read_status,
    write_state,
)
from clusterrun.scheduler.local.processes import SUPERVISOR, TOKEN, end_members, members, send
from clusterrun.scheduler.slurm import allocation
from clusterrun.system import shell

START_TIMEOUT = 10.0
"""Seconds within which a new supervisor must answer."""
GRACE = 10.0
"""Seconds from TERM to KILL."""
STEP_GRACE = 30.0
"""Seconds from TERM to KILL of a run in a Slurm job: Slurm's default KillWait."""
_START = 10.0  # seconds that a submission in progress may take to write the first state
_MARGIN = 5.0  # seconds after the grace period for a supervisor to write the end

# The supervisor runs isolated (-I) and without site packages (-S): nothing in the current folder or in PYTHON*
# variables replaces the standard library. The package is loaded from its own path.
_BOOT = """
import sys
from importlib import util
package, folder = sys.argv[1:]
spec = util.spec_from_file_location("clusterrun", package + "/__init__.py", submodule_search_locations=[package])
sys.modules["clusterrun"] = module = util.module_from_spec(spec)
spec.loader.exec_module(module)
from clusterrun.scheduler.local.supervisor import main
sys.exit(main(folder))
"""


class LocalScheduler:
    """Runs jobs on this machine; ``folder`` is the user's state folder, ``grace`` the seconds from TERM to KILL."""

    name = "local"

    def __init__(self, folder: Path, environ: Mapping[str, str], grace: float = GRACE) -> None:
        self._root = folder.absolute() / "local"
        self._environ = environ
        self._grace = grace

    @property
    def cluster(self) -> str:
        return LOCAL

    @property
    def slurm(self) -> None:
        return None

    @property
    def local(self) -> LocalScheduler:
        return self

    @property
    def folder(self) -> Path:
        """The folder of the local jobs, which have a folder each."""
        return self._root

    @property
    def devices(self) -> tuple[str, ...]:
        """The CUDA devices that this machine shows to a job."""
        return visible(self._environ)

    def submit(self, submission: Submission) -> JobId:
        """Start a supervisor for the run and return when it has accepted the job.

        Raises Refused for an invalid dependency, a state folder that cannot be written or a supervisor that does not
        start, Ambiguous if it does not respond in time, and what :meth:`place` raises.
        """
        for _, id in dependency.parse(submission.dependency):
            if read_status(self._root / id) is None:
                raise Refused(
                    f"--dependency: there is no local job {id}", hint="`clusterrun list --all` shows your jobs"
                )
        job = self._job(submission)
        try:
            folder, request = create(self._root, job)
        except OSError as error:
            raise Refused(
                f"cannot write {self._root}: {error.strerror}",
                hint="free some space, or set CLUSTERRUN_STATE to a writable folder on a local disk",
            ) from error
        with request:
            self._start(folder, request, submission)
        return JobId(folder.name)

    def place(self, submission: Submission) -> dict[str, Any]:
        """Return what a run may use of the Slurm job that it is to start in: fields of :class:`Job`; none without one.

        Raises Refused if the run cannot start there, and NotDelivered if Slurm does not respond.
        """
        if not submission.in_job:
            return {}
        found = allocation.load(submission.in_job, self._environ)
        slots = [f"{submission.in_job}/{node}/{n}" for node, gpus in found.gpus.items() for n in range(gpus)]
        return {
            "in_job": submission.in_job,
            "job_nodes": tuple(found.gpus),
            "slots": tuple(slots),
            "cpus_per_task": allocation.cpus_per_task(found, submission),
            "grace": max(self._grace, STEP_GRACE),
        }

    def _job(self, submission: Submission) -> Job:
        job = Job(
            token=submission.token,
            run_dir=str(submission.run_dir.absolute()),
            script=str(submission.script.absolute()),
            workdir=str(submission.workdir.absolute()),
            logs=str(submission.logs.absolute()),
            umask=submission.umask,
            nodes=submission.nodes,
            tasks_per_node=submission.tasks_per_node,
            gpus_per_node=submission.gpus_per_node,
            time_limit=submission.time_limit,
            dependency=submission.dependency,
            kill_on_invalid_dep=KILL_ON_INVALID_DEP in submission.argv,
            submitted=int(time.time()),
            grace=self._grace,
        )
        return replace(job, **self.place(submission))

    def _start(self, folder: Path, request: BinaryIO, submission: Submission) -> None:
        """Start the supervisor and wait for its answer, through a pipe that closes when it ends."""
        # the job's environment is passed in the supervisor's own, so that no secret is written to disk
        env = {k: v for k, v in submission.env.items() if k != TOKEN} | {SUPERVISOR: folder.name}
        package = str(Path(__file__).absolute().parents[2])
        argv = [sys.executable, "-I", "-S", "-c", _BOOT, package, str(folder)]
        log = folder / "supervisor.log"
        reader, writer = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(reader, "rb") as answer:
            try:
                with os.fdopen(writer, "wb") as out, open(log, "ab", opener=_private) as err:
                    process = shell.start(
                        argv, env=env, cwd=Path("/"), stdin=request, stdout=out, stderr=err, umask=0o077
                    )
            except (OSError, CommandError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                detail = error.detail if isinstance(error, CommandError) else str(error)
                raise Refused("the job's supervisor could not be started", detail=detail) from error
            if not select.select([answer], [], [], START_TIMEOUT)[0]:
                raise Ambiguous(
                    f"the supervisor of job {folder.name} did not respond within {START_TIMEOUT:.0f} s",
                    hint=f"run `clusterrun submit --recover {submission.run_id}` to finish the submission",
                )
            is_ready = bool(answer.read1(64))
        process.wait()  # it forked and ended
        if not is_ready:
            detail = _tail(log)
            shutil.rmtree(folder, ignore_errors=True)
            raise Refused(
                "the job's supervisor exited before the job started",
                detail=detail,
                hint="if the disk is full, free some space, then submit again",
            )

    def find(self, token: str, since: int = 0, script: Path = Path()) -> Answer:
        """Return the job with the token, ended or not; not complete while it is just starting."""
        answer = self._read(lambda: [folder for folder in job_folders(self._root) if _token_of(folder) == token])
        starting = [str(status.id) for status in answer.jobs if status.reason == STARTING.reason]
        if starting:
            return Answer((), False, f"still starting: job {', '.join(starting)}")
        return answer

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        """Return the states of this user's local jobs, or of those ids, after checking each supervisor."""
        if ids is None:
            return self.query_since(JobId("L0"))
        return self._read(lambda: [self._root / text for text in dict.fromkeys(map(str, ids)) if is_id(text)])

    def query_since(self, first: JobId) -> Answer:
        """Return the states of this user's local jobs from this id on, without opening the files of older ones."""
        return self._read(lambda: [folder for folder in job_folders(self._root) if number_of(folder) >= first.number])

    def _read(self, find_folders: Callable[[], list[Path]]) -> Answer:
        try:
            check_root(self._root)
            statuses = [read_status(folder) for folder in find_folders()]
        except OSError as error:
            return Answer((), False, f"cannot read {error.filename}: {error.strerror}")
        return Answer([status for status in statuses if status is not None])

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """Return nothing: ``query`` knows ended jobs too."""
        return Answer()

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        """Cancel jobs in parallel; return when they have ended, or a little after the grace period."""
        began = time.monotonic()
        results = {id: _request_end(self._root / str(id), id, self._grace, self._environ) for id in ids}
        return [
            result or _await_end(self._root / str(id), id, began + self._grace_of(id) + _MARGIN)
            for id, result in results.items()
        ]

    def _grace_of(self, id: JobId) -> float:
        with contextlib.suppress(Unreadable):
            job = read_job(self._root / str(id))
            if job is not None and job.in_job:
                return job.grace
        return self._grace

    def hold(self, id: JobId, *, release: bool = False) -> None:
        """Raise Refused: local jobs cannot be held."""
        raise Refused(f"local job {id} cannot be held", hint=f"use `clusterrun cancel {id}` to end the job")


def _token_of(folder: Path) -> str:
    """Return the token of a job's submission; empty if it cannot be read."""
    try:
        job = read_job(folder)
    except Unreadable:
        return ""
    return job.token if job is not None else ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _tail(path: Path) -> str:
    """Return the last 2,000 characters of a file; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "backslashreplace")[-2000:].strip()
    except OSError:
        return ""


# -- cancelling ------------------------------------------------------------------------------------------------------


def _request_end(folder: Path, id: JobId, grace: float, environ: Mapping[str, str]) -> Cancelled | None:
    """Send TERM to the job's supervisor; return a result if there is nothing to wait for."""
    try:
        state = _started_state(folder) if is_id(folder.name) else None
        if state is None:
            return Cancelled(id, False, f"there is no local job {id}")
        if state.state == "UNKNOWN":
            return Cancelled(id, False, f"the job cannot be cancelled now: {_describe(state)}")
        if not is_supervised(folder):
            return _end_unsupervised(folder, id, state, grace, environ)
        if state.is_over:
            return Cancelled(id, False, f"the job had already ended: {_describe(state)}")
        if not send(*state.supervisor, signal.SIGTERM) and is_supervised(folder):
            return Cancelled(id, False, "the job is running in another container of this machine; cancel it there")
    except Unreadable as error:
        return Cancelled(id, False, f"the job cannot be cancelled now: UNKNOWN ({error})")
    return None


def _started_state(folder: Path) -> State | None:
    """Return the job's state; wait for the first one while a submission is in progress."""
    until = time.monotonic() + _START
    while (state := read_state(folder)) is STARTING and time.monotonic() < until:
        time.sleep(0.05)
    return state


def _end_unsupervised(folder: Path, id: JobId, state: State, grace: float, environ: Mapping[str, str]) -> Cancelled:
    job = read_job(folder)
    has_ended = state.is_over and state.state != "NODE_FAIL"  # which says only that nobody saw the end
    if job is not None and job.in_job and not has_ended:
        return _end_orphan_in_job(folder, id, job, environ)
    return _end_orphan(folder, id, state, grace)


def _end_orphan(folder: Path, id: JobId, state: State, grace: float) -> Cancelled:
    """End what is left of a job without a supervisor; mostly that is nothing, as the job has ended."""
    until = time.monotonic() + grace  # the kernel has sent the script TERM: let it write its record
    while state.state == "COMPLETING" and time.monotonic() < until:
        time.sleep(0.05)
        state = read_state(folder) or state
    job = read_job(folder)
    ended, left = end_members(job.token) if job is not None else (0, 0)
    if left:
        why = f"the job's supervisor had already exited, and {left} of the job's processes could not be killed"
        return Cancelled(id, False, why)
    state = read_state(folder) or state
    if ended == 0:
        return Cancelled(id, False, f"the job had already ended: {_describe(state)}")
    if state.state == "NODE_FAIL":  # without an end record of its own, the cancel is the end
        with contextlib.suppress(OSError):
            write_state(folder, replace(state, state="CANCELLED", reason="", ended=int(time.time())))
    noun = "process" if ended == 1 else "processes"
    return Cancelled(id, True, f"the job's supervisor was gone; killed {ended} remaining {noun}")


def _end_orphan_in_job(folder: Path, id: JobId, job: Job, environ: Mapping[str, str]) -> Cancelled:
    """End the steps of a run inside a Slurm job that has no supervisor: they have outlived it."""
    steps.request_end(job, environ)
    until = time.monotonic() + job.grace
    while (state := read_state(folder)) is not None and state.state == "COMPLETING" and time.monotonic() < until:
        time.sleep(0.05)
    if not steps.end(job, environ):
        why = f"the job's supervisor is gone, and its steps in job {job.in_job} may still run"
        return Cancelled(id, False, why)
    end_members(job.token)
    if state is not None and state.state in ("COMPLETING", "NODE_FAIL"):
        with contextlib.suppress(OSError):
            write_state(folder, replace(state, state="CANCELLED", reason="", ended=int(time.time())))
    return Cancelled(id, True, f"the job's supervisor was gone; ended its steps in job {job.in_job}")


def _await_end(folder: Path, id: JobId, until: float) -> Cancelled:
    """Wait for the last state that the supervisor writes, and return the result."""
    try:
        while (state := read_state(folder)) is not None and not state.is_over:
            if time.monotonic() >= until:
                return _still_running(folder, id, state)
            time.sleep(0.02)
    except Unreadable as error:
        return Cancelled(id, False, f"the job has not ended yet: UNKNOWN ({error})")
    if state is None:
        return Cancelled(id, False, f"the folder of job {id} was removed")
    if state.state == "CANCELLED":
        return Cancelled(id, True)
    return Cancelled(id, False, f"the job ended before the cancel took effect: {_describe(state)}")


def _still_running(folder: Path, id: JobId, state: State) -> Cancelled:
    """Return the result for a job that has not ended in time; only its supervisor may be left, on a full disk."""
    job = read_job(folder)
    if job is not None and state.started is not None and not members(job.token, state.supervisor[0]):
        return Cancelled(id, True, f"its processes have ended, but its state in {folder} cannot be written")
    return Cancelled(id, False, f"the job has not ended yet: {_describe(state)}")


def _describe(state: State) -> str:
    return f"{state.state} ({state.reason})" if state.reason else state.state
