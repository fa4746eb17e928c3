"""The supervisor of a local job: it waits for the job's turn, runs the script and records the end.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
from clusterrun.base.job import JobId, JobStatus, log_paths
from clusterrun.scheduler.local import dependency, steps
from clusterrun.scheduler.local.devices import choose, free_devices, visible
from clusterrun.scheduler.local.jobfiles import (
    STARTING,
    Job,
    State,
    nodes_in_job,
    read_job,
    read_state,
    read_status,
    write_state,
)
from clusterrun.scheduler.local.processes import SUPERVISOR, TOKEN, adopt_orphans, end_members, environment
from clusterrun.system import shell
from clusterrun.system.processes import boot_id, clock, find_process, host_name


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

    def sleep(self, seconds: float | None) -> None:
        """Sleep until a signal comes, at most that long."""
        select.select([self._wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)


READY = b"ready\n"
"""What the supervisor writes to its standard output after its first state."""
_PENDING_POLL = (0.1, 2.0)  # seconds between two checks of what a pending job waits for: the first, the longest
_CONTINUE_EVERY = 1.0
_LONGEST_SLEEP = 60.0
_LAST_WRITE = 60.0  # seconds for which writing the final state is retried on a full disk


class Supervisor:
    """One job's life, from its first state to its last."""

    def __init__(self, folder: Path, job: Job, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._job = job
        self._environ = {k: v for k, v in environ.items() if k not in (SUPERVISOR, TOKEN)}
        self._state = State(supervisor=_process(os.getpid()), host=host_name(), boot=boot_id())
        self._over: set[str] = set()  # jobs that hold no device any more
        self._script: Any = None  # the shell's Popen
        self._signals = Signals()

    def first_state(self) -> None:
        """Write the first state, for which the submitter waits. Raises OSError."""
        self._state = replace(self._state, reason=self._awaited())
        write_state(self._folder, self._state)

    def run(self) -> None:
        """Wait, run, and write the end."""
        if self._wait_for_turn():
            self._run_script()
        else:
            self._end("CANCELLED", "" if self._signals.stop else self._state.reason)
        self._write_last()

    # waiting

    def _wait_for_turn(self) -> bool:
        """Wait for the dependency and the devices; return False if the job is never to start."""
        pause, longest = _PENDING_POLL
        while not self._signals.stop:
            reason = self._why_pending()
            if not reason:
                return True
            if reason != self._state.reason:
                self._set(reason=reason)
            if reason == dependency.NEVER and self._job.kill_on_invalid_dep:
                return False
            self._signals.sleep(pause)
            pause = min(pause * 1.5, longest)
        return False

    def _why_pending(self) -> str:
        """Return Slurm's reason why the job does not start now; empty if it does."""
        return self._awaited() or ("" if self._take_devices() else "Resources")

    def _awaited(self) -> str:
        def status_of(id: str) -> JobStatus | None:
            return read_status(self._folder.parent / id)

        return dependency.judge(dependency.parse(self._job.dependency), status_of)

    def _take_devices(self) -> bool:
        """Take the job's devices if they are free; a job that needs none, or more than there are, takes none."""
        job = self._job
        seen = job.slots if job.in_job else visible(self._environ)
        has_enough = 0 < job.nodes * job.gpus_per_node <= len(seen)
        if not has_enough or (job.tasks_per_node > job.gpus_per_node and not job.in_job):
            return True
        try:
            with (self._folder.parent / "devices.lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                chosen = choose(free_devices(self._folder, seen, self._over, job.in_job), job)
                if chosen is None:
                    return False
                taken = replace(self._state, devices=chosen)
                write_state(self._folder, taken)  # before another job looks
        except BlockingIOError:
            return False
        except OSError as error:
            self._log(f"cannot take devices: {error}")
            return False
        self._state = taken
        return True

    # running

    def _run_script(self) -> None:
        try:
            self._start_script()
        except (OSError, CommandError) as error:
            reason = error.detail if isinstance(error, CommandError) else f"{error.strerror}: {error.filename}"
            self._end("FAILED", reason)
            return
        stopped = self._watch()
        if stopped:
            self._stop_script()
        exit_status = self._end_processes()
        if stopped:
            self._end(stopped, "TimeLimit" if stopped == "TIMEOUT" else "", exit_status)
            return
        outer = steps.why_cancelled(self._job, self._environ) if self._job.in_job else ""
        self._end(*(("CANCELLED", outer) if outer else _end_of(exit_status)), exit_status)

    def _start_script(self) -> None:
        job, devices = self._job, self._state.devices
        env = self._environ | {TOKEN: job.token, "CLUSTERRUN_LOCAL_JOB_ID": self._folder.name}
        log, errors = log_paths(Path(job.logs), JobId(self._folder.name))
        if job.in_job:
            argv = steps.start_argv(job, nodes_in_job(job, self._state), log, errors)
        else:
            argv = ["/bin/bash", "-l", job.script]
            # without devices the job may use none: empty hides them all
            env |= {"CLUSTERRUN_LOCAL_DEVICES": "cuda" if devices else "cpu", "CUDA_VISIBLE_DEVICES": ",".join(devices)}
        with _open_log(log, job.umask) as out, _open_log(errors, job.umask) as err:
            self._script = shell.start(
                argv,
                env=env,
                cwd=Path(job.workdir),
                stdout=out,
                stderr=err,
                umask=job.umask,
                # not for srun, which would kill the script at once: without this process the run continues
                signal_at_parents_end=None if job.in_job else signal.SIGTERM,
            )
        script = _process(self._script.pid)
        self._set(state="RUNNING", reason="", started=int(time.time()), started_clock=clock(), script=script)

    def _watch(self) -> str:
        """Wait for the script's end, a cancel or the time limit; return Slurm's state for the latter two, else ""."""
        while True:
            self._reap()
            if self._script.returncode is not None:
                return ""
            if self._signals.stop:
                return "CANCELLED"
            left = self._time_left()
            if left is not None and left <= 0:
                return "TIMEOUT"
            # the timer of a sleep stands still while the machine is suspended
            self._signals.sleep(None if left is None else min(left, _LONGEST_SLEEP))

    def _time_left(self) -> float | None:
        """Return the seconds to the job's time limit; None without one (0 is none, as in Slurm)."""
        if not self._job.time_limit:
            return None
        return self._job.time_limit - (clock() - (self._state.started_clock or 0.0))

    def _stop_script(self) -> None:
        """Send TERM to the script's process group, and wait up to the grace period for its end record."""
        if self._job.in_job:
            steps.request_end(self._job, self._environ)
        self._signal_group(signal.SIGTERM)
        until = clock() + self._job.grace
        while self._script.returncode is None and (left := until - clock()) > 0:
            # a stopped one cannot act on TERM; again, as one that was being forked may have missed the first (seen)
            self._signal_group(signal.SIGCONT)
            self._signals.sleep(min(left, _CONTINUE_EVERY))
            self._reap()

    def _signal_group(self, signum: int) -> None:
        """Signal the script's process group; not that of srun, whose ranks are elsewhere."""
        if not self._job.in_job:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._script.pid, signum)

    def _end_processes(self) -> int | None:
        """Kill what is left of the job; return the script's exit status, None if it could not be killed."""
        if self._job.in_job and not steps.end(self._job, self._environ):
            self._log(f"the run's steps in job {self._job.in_job} may still run: Slurm shows them, or does not respond")
        _, left = end_members(self._job.token, os.getpid())
        if left:
            self._log(f"{left} of the job's processes could not be killed")
        self._reap()
        status: int | None = self._script.returncode
        if status is None:
            self._log("the job's script could not be killed")
            return None
        return shell.exit_status(status)

    def _reap(self) -> None:
        """Reap ended children, adopted ones too; the script through its Popen, which needs the status."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if self._script is not None and ended.si_pid == self._script.pid:
                    self._script.poll()
                else:
                    os.waitpid(ended.si_pid, 0)

    # writing

    def _set(self, **changes: Any) -> None:
        """Change the state; if it cannot be written, the old file stays and the job continues."""
        self._state = replace(self._state, **changes)
        self._write()

    def _end(self, state: str, reason: str = "", exit_status: int | None = None) -> None:
        started, since = self._state.started, self._state.started_clock
        elapsed = None if since is None else max(0, int(clock() - since))
        # the end is the start plus the run time: a clock that is set back cannot put it before the start
        ended = int(time.time()) if started is None or elapsed is None else started + elapsed
        self._state = replace(
            self._state, state=state, reason=reason, exit_status=exit_status, elapsed=elapsed, ended=ended
        )

    def _write_last(self) -> None:
        until = clock() + _LAST_WRITE
        while not self._write() and clock() < until and self._folder.exists():
            self._signals.sleep(1.0)

    def _write(self) -> bool:
        try:
            write_state(self._folder, self._state)
        except OSError as error:
            self._log(f"cannot write the state {self._state.state}: {error}")
            return False
        return True

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"{time.strftime('%F %T')} {text}", file=sys.stderr, flush=True)


def _process(pid: int) -> tuple[int, int]:
    """Return a process's pid and start time; zeros, which are no process's, if it has ended."""
    process = find_process(pid)
    return (process.pid, process.start) if process else (0, 0)


def _end_of(status: int | None) -> tuple[str, str]:
    """Return Slurm's state and reason for the script's own exit status."""
    if status == 0:
        return "COMPLETED", ""
    signum = (status or 0) - 128
    if signum in signal.valid_signals():
        return "FAILED", f"RaisedSignal:{signum}({signal.strsignal(signum)})"
    return "FAILED", "NonZeroExitCode"


def _open_log(path: Path, umask: int) -> BinaryIO:
    """Open a log for appending, with the submitter's umask. Raises OSError for a link or anything but a file."""
    before = os.umask(umask)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(path, flags, 0o666)
    finally:
        os.umask(before)
    os.set_blocking(handle, True)  # non-blocking was for a named pipe without a reader
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "ab")


def main(argument: str) -> int:
    """Run the supervisor of the job in that folder; return 0 after its end, 1 if it could not start.

    Standard input is the job's request, whose lock says that the supervisor is alive.
    """
    folder = Path(argument)
    if os.fork():  # the submitter waits for this process, so that it has no zombie
        os._exit(0)
    os.chdir("/")  # hold no file system
    os.umask(0o077)
    try:
        job = read_job(folder)
        if job is None or read_state(folder) is not STARTING:
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
