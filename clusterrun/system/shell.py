"""The one door to other programs: run them with a time-out, a clean environment and no shell.

Nothing else in the package imports subprocess (the worker's own launcher aside), so what we run,
how long we wait and what we pass on can be read here.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clusterrun.errors import CommandError

#: Seconds we wait for a Slurm command: three times Slurm's default MessageTimeout, after which the
#: command itself has long given up, so a longer silence is a hung file system or wrapper.
SLURM_TIMEOUT = 30.0

# Signals whose handlers may raise while a program is being started.
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEATH = 2.0
"""Seconds to wait for killed processes to be gone."""

# What a Slurm session or another launcher leaves in a shell. It would bend our own commands
# (SQUEUE_USERS empties a list, SBATCH_JOB_NAME beats the script) or follow into the job
# (SLURM_CPU_BIND from a tmux born in a step slows every rank: seen).
_SCRUBBED = re.compile(
    r"(SBATCH|SQUEUE|SACCT|SCANCEL|SINFO|SLURM|SLURMD|SRUN|PMI|PMIX|TORCHELASTIC)_.*|PMI[A-Z0-9]*"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(NAME|RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    r"|CLUSTERRUN_(?!CONFIG|STATE).*"
)
_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})


@dataclass(frozen=True, slots=True)
class Completed:
    """What a program answered: its exit status (128+n for a signal) and its two streams, decoded."""

    status: int
    stdout: str
    stderr: str


def scrub(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment without what Slurm or a launcher left in it, and the sorted names that were dropped."""
    dropped = sorted(k for k in environ if _SCRUBBED.fullmatch(k) and k not in _KEPT)
    return {k: v for k, v in environ.items() if k not in set(dropped)}, dropped


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm commands whose answers we parse: scrubbed, with times as epoch seconds."""
    clean, _ = scrub(environ)
    return clean | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float = SLURM_TIMEOUT,
    umask: int = -1,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> Completed:
    """Run a program to its end and return what it answered, whatever its exit status.

    It runs in a session of its own, so a Ctrl-C in the terminal does not reach it. Raises CommandError
    where it cannot be started, or after ``timeout`` seconds, when its whole process group has been killed.
    Bytes that are not UTF-8 come back as ``\\xNN``.
    """
    process = None
    try:
        with _signals_deferred():
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                umask=umask,
                start_new_session=True,
            )
        out, err = process.communicate(None if stdin is None else stdin.encode("utf-8", "surrogateescape"), timeout)
    except subprocess.TimeoutExpired:
        assert process is not None
        _end_group(process)
        # a wrapper may leave a child holding the pipe: give it a moment, then stop listening
        try:
            out, err = process.communicate(timeout=2)
        except subprocess.TimeoutExpired as late:
            out, err = late.stdout or b"", late.stderr or b""
        raise CommandError(argv, status=None, stdout=_text(out), stderr=_text(err), timed_out=True) from None
    except BaseException as error:
        if process is not None:
            _end_group(process)
        elif isinstance(error, OSError):
            raise _not_started(argv, error) from error
        raise
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Completed(status, _text(out), _text(err))


def check(argv: Sequence[str], **kwargs: object) -> str:
    """Run a program and return its standard output; raises CommandError where it exits other than 0."""
    done = run(argv, **kwargs)  # type: ignore[arg-type]
    if done.status != 0:
        raise CommandError(argv, status=done.status, stdout=done.stdout, stderr=done.stderr)
    return done.stdout


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
    umask: int = -1,
    signal_at_parents_end: signal.Signals | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, detached from the terminal; raises CommandError.

    ``signal_at_parents_end`` is what the kernel sends it when the calling thread ends, however that happens; without
    it the program goes on alone. It runs Python between fork and exec, so a caller with several threads leaves it out.
    """
    process = None
    try:
        with _signals_deferred():
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout or subprocess.DEVNULL,
                stderr=stderr or subprocess.DEVNULL,
                env=dict(env),
                cwd=cwd,
                umask=umask,
                start_new_session=True,
                preexec_fn=None if signal_at_parents_end is None else _asking_for(signal_at_parents_end),  # noqa: PLW1509
            )
    except BaseException as error:
        if process is not None:  # interrupted: the caller never gets the process, so it could not end it
            _end_group(process)
        elif isinstance(error, OSError):
            raise _not_started(argv, error) from error
        raise
    return process


def _not_started(argv: Sequence[str], error: OSError) -> CommandError:
    return CommandError(argv, status=None, stderr=f"{error.strerror}: {error.filename or argv[0]}")


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Run the Python handlers of signals that arrive meanwhile only at the end.

    A handler that raises (Ctrl-C's does) inside Popen, after the fork, would lose the only reference to the process.
    Blocking the signals would not do: the program inherits the mask, and another thread may take the signal.
    """
    with contextlib.ExitStack() as arrived, contextlib.ExitStack() as replaced:

        def keep(signum: int, _: object) -> None:
            arrived.callback(signal.raise_signal, signum)

        for signum in _INTERRUPTING if threading.current_thread() is threading.main_thread() else ():
            handler = signal.getsignal(signum)
            if callable(handler):  # an ignored signal stays ignored: the program inherits that
                replaced.callback(signal.signal, signum, handler)
                signal.signal(signum, keep)
        yield


def _asking_for(signum: signal.Signals) -> Callable[[], None]:
    """What a new process runs to be sent ``signum`` at its parent's end (PR_SET_PDEATHSIG, which exec keeps)."""
    import ctypes

    try:
        prctl = ctypes.CDLL(None).prctl  # looked up before the fork: the child should do as little as it can
    except (OSError, AttributeError):
        return lambda: None
    parent = os.getpid()

    def ask() -> None:
        prctl(1, int(signum), 0, 0, 0)
        if os.getppid() != parent:  # it ended before we had asked
            os.kill(os.getpid(), signum)

    return ask


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the program's process group and wait until none of it runs: the kernel ends them after SIGKILL is sent.

    A process that the kernel cannot end yet (on a hung file system) is left after ``_DEATH`` seconds.
    """
    deadline = time.monotonic() + _DEATH
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.poll() is not None and not _group_runs(process.pid):
            return
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _group_runs(group: int) -> bool:
    """Whether a process of the group still runs; a zombie does not, and its parent may never collect it."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
