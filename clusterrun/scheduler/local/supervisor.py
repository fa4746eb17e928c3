"""The supervisor of a local job: it waits for the job's turn, runs the script and records the end.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from clusterrun.base.errors import CommandError
from clusterrun.base.job import JobStatus
from clusterrun.scheduler.local import dependency, mark
from clusterrun.scheduler.local.devices import Devices, visible
from clusterrun.scheduler.local.jobfiles import (
    Job,
    State,
    clock,
    is_starting,
    read_job,
    read_state,
    read_status,
    write_state,
)
from clusterrun.scheduler.local.processes import (
    SUPERVISOR,
    TOKEN,
    Identity,
    adopt_orphans,
    end_members,
    environment,
)
from clusterrun.system import shell
from clusterrun.system.processes import find_process


class Signals:
    """Handle signals: TERM and INT set ``stop``, HUP is ignored, and any signal ends ``sleep``."""

    def __init__(self) -> None:
        self.stop = False
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # what the submitter blocked or ignored is not the job's
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(signum, signal.SIG_DFL)
        # a signal writes a byte to the pipe, so a signal just before the sleep also ends it
        self._wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._stop)
        for signum in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)  # a handler and not SIG_IGN, which the script would inherit

    def _stop(self, _signum: int, _frame: object) -> None:
        self.stop = True

    def sleep(self, seconds: float) -> None:
        """Sleep until a signal comes, at most that long."""
        select.select([self._wake], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)


READY = b"ready\n"
"""What the supervisor writes to its standard output after its first state."""
_PENDING_POLL = (0.1, 2.0)  # seconds between two checks of what a pending job waits for: the first, the longest
_END_POLL = 2.0  # seconds between two checks for a cancel from another machine or container
_LAST_WRITE = 60.0  # seconds for which writing the final state is retried on a full disk


class Supervisor:
    """One job's life, from its first state to its last."""

    def __init__(self, folder: Path, job: Job, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._job = job
        self._environ = {k: v for k, v in environ.items() if k not in (SUPERVISOR, TOKEN)}
        self._state = State(supervisor=Identity.mine())
        self._devices = Devices(folder.parent, job.id, job.token, self._state.supervisor)
        self._script: Any = None  # the shell's Popen
        self._signals = Signals()

    def first_state(self) -> None:
        """Write the first state, for which the submitter waits. Raises OSError."""
        mark.create(self._folder / mark.NAME)
        verdict = self._verdict()
        self._state = replace(self._state, reason="" if verdict is dependency.Verdict.MET else verdict.value)
        write_state(self._folder, self._state)

    def run(self) -> None:
        """Wait, run, and write the end."""
        try:
            if self._wait_for_turn():
                self._run_script()
            else:
                self._end("CANCELLED", self._state.reason if self._is_never_to_start() else "")
        finally:
            self._devices.release()
        self._write_last()

    # waiting

    def _wait_for_turn(self) -> bool:
        """Wait for the dependency and the devices; return False if the job is cancelled before."""
        pause, most = _PENDING_POLL
        while not self._is_to_stop():
            verdict = self._verdict()
            if verdict is dependency.Verdict.MET:
                reason = "" if self._take_devices() else "Resources"
            else:
                reason = verdict.value
            if not reason:
                return True
            if reason != self._state.reason:
                self._set(reason=reason)
            if self._is_never_to_start():
                return False
            self._signals.sleep(pause)
            pause = min(pause * 1.5, most)
        return False

    def _is_never_to_start(self) -> bool:
        return self._job.kill_on_invalid_dep and self._state.reason == dependency.Verdict.NEVER.value

    def _verdict(self) -> dependency.Verdict:
        def status_of(id: str) -> JobStatus | None:
            return read_status(self._folder.parent / id)

        return dependency.parse(self._job.dependency).judge(status_of)

    def _take_devices(self) -> bool:
        """Claim the job's devices; a job that needs none, or more than there are, claims none."""
        seen, wanted = visible(self._environ), self._job.nodes * self._job.gpus_per_node
        if not 0 < wanted <= len(seen) or self._job.tasks_per_node > self._job.gpus_per_node:
            return True
        try:
            taken = self._devices.take(seen, wanted)
        except OSError as error:
            self._log(f"cannot claim devices: {error}")
            return False
        self._state = replace(self._state, devices=taken)
        return bool(taken)

    # running

    def _run_script(self) -> None:
        try:
            self._start_script()
        except (OSError, CommandError) as error:
            reason = error.detail if isinstance(error, CommandError) else f"{error.strerror}: {error.filename}"
            self._end("FAILED", reason)
            return
        state, reason = self._watch()
        if state != "DONE":
            self._stop_script()
        _, left = end_members(self._job.token, os.getpid(), reap=self._reap, sleep=self._signals.sleep)
        if left:
            self._log(f"{left} of the job's processes could not be killed")
        self._reap()
        if self._script.returncode is None:
            self._log("the job's script could not be killed")
        status = self._script.returncode
        status = 128 - status if status is not None and status < 0 else status
        if state == "DONE":
            state, reason = _end_of(status)
        self._end(state, reason, status)

    def _start_script(self) -> None:
        job, devices = self._job, self._state.devices
        env = self._environ | {
            TOKEN: job.token,
            "CLUSTERRUN_LOCAL_JOB_ID": job.id,
            "CLUSTERRUN_LOCAL_DEVICES": "cuda" if devices else "cpu",
            # without a claim the job may use no device: empty hides them all
            "CUDA_VISIBLE_DEVICES": ",".join(devices),
        }
        base = Path(job.logs) / f"train_{job.id}"
        with _open_log(f"{base}.out", job.umask) as out, _open_log(f"{base}.err", job.umask) as err:
            self._script = shell.start(
                ["/bin/bash", "-l", job.script],
                env=env,
                cwd=Path(job.workdir),
                stdout=out,
                stderr=err,
                umask=job.umask,
                signal_at_parents_end=signal.SIGTERM,
            )
        process = find_process(self._script.pid)
        self._set(
            state="RUNNING",
            reason="",
            started=int(time.time()),
            started_clock=clock(),
            script_pid=self._script.pid,
            script_start=process.start if process else None,
        )

    def _watch(self) -> tuple[str, str]:
        """Wait for the script's end, a cancel or the time limit; return the resulting state and its reason."""
        while True:
            self._reap()
            if self._script.returncode is not None:
                return "DONE", ""
            if self._is_to_stop():
                return "CANCELLED", ""
            left = _END_POLL
            if self._job.time_limit:  # 0 is no limit, as in Slurm
                left = self._job.time_limit - (clock() - (self._state.started_clock or 0.0))
                if left <= 0:
                    return "TIMEOUT", "TimeLimit"
            self._signals.sleep(min(left, _END_POLL))

    def _is_to_stop(self) -> bool:
        """Return whether a signal, or a request from where signals do not reach, ends the job."""
        return self._signals.stop or mark.end_requested_at(self._folder / mark.NAME) is not None

    def _stop_script(self) -> None:
        """Send TERM to the script's process group, and wait up to the grace period for its end record."""
        for signum in (signal.SIGTERM, signal.SIGCONT):  # a stopped one could not act on TERM
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._script.pid, signum)
        until = clock() + self._job.grace
        while self._script.returncode is None and (left := until - clock()) > 0:
            self._signals.sleep(left)
            self._reap()

    def _reap(self) -> None:
        """Reap ended children, adopted ones too; the script through its Popen, which needs the status."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if self._script is not None and ended.si_pid == self._script.pid:
                self._script.poll()
            else:
                os.waitpid(ended.si_pid, 0)

    # writing

    def _set(self, **changes: Any) -> None:
        """Change the state; if it cannot be written, the old file stays and the job continues."""
        self._state = replace(self._state, **changes)
        try:
            write_state(self._folder, self._state)
        except OSError as error:
            self._log(f"cannot write the state {self._state.state}: {error}")

    def _end(self, state: str, reason: str = "", exit_status: int | None = None) -> None:
        started, since = self._state.started, self._state.started_clock
        elapsed = max(0, int(clock() - since)) if since is not None else None
        # the end is the start plus the run time: a clock that is set back cannot put it before the start
        ended = started + elapsed if started is not None and elapsed is not None else int(time.time())
        self._state = replace(
            self._state, state=state, reason=reason, exit_status=exit_status, elapsed=elapsed, ended=ended
        )

    def _write_last(self) -> None:
        until = clock() + _LAST_WRITE
        while True:
            try:
                write_state(self._folder, self._state)
                return
            except OSError as error:
                self._log(f"cannot write the state {self._state.state}: {error}")
                if clock() >= until or not self._folder.exists():
                    return
                self._signals.sleep(1.0)

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"{time.strftime('%F %T')} {text}", file=sys.stderr, flush=True)


def _end_of(status: int) -> tuple[str, str]:
    """Return Slurm's state and reason for the script's own exit status."""
    if status == 0:
        return "COMPLETED", ""
    if status > 128 and status - 128 in signal.valid_signals():
        return "FAILED", f"RaisedSignal:{status - 128}({signal.strsignal(status - 128)})"
    return "FAILED", "NonZeroExitCode"


def _open_log(path: str, umask: int) -> BinaryIO:
    """Open a log for appending, with the submitter's umask. Raises OSError for a link or anything but a file."""
    before = os.umask(umask)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(path, flags, 0o666)
    finally:
        os.umask(before)
    os.set_blocking(handle, True)  # non-blocking was for a named pipe without a reader
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(22, "not a regular file", path)
    return os.fdopen(handle, "ab")


def main(argument: str) -> int:
    """Run the supervisor of the job in that folder; return 0 after its end, 1 if it could not start."""
    folder = Path(argument)
    if os.fork():  # the submitter waits for this process, so that it has no zombie
        os._exit(0)
    os.chdir("/")  # hold no file system
    os.umask(0o077)
    try:
        job = read_job(folder)
        if job is None or read_state(folder) is not None or not is_starting(folder):
            raise RuntimeError(f"{folder} has no job to start")
        adopt_orphans()
        supervisor = Supervisor(folder, job, environment())
        supervisor.first_state()
        with contextlib.suppress(BrokenPipeError):  # the submitter has ended; the job continues
            os.write(1, READY)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        supervisor.run()
    except Exception:
        traceback.print_exc()
        return 1
    return 0
