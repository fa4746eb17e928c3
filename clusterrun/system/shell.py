"""Run other programs with a timeout, a clean environment and no shell.

Apart from the worker's launcher, no other module imports subprocess.
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
from pathlib import Path
from typing import IO, Any, NamedTuple

from clusterrun.base.errors import CommandError

#: Seconds to wait for a Slurm command: three times Slurm's default MessageTimeout. The command itself gives up
#: earlier, so a longer silence means a hung file system or wrapper.
SLURM_TIMEOUT = 30.0

# Signals whose handlers may raise while a program is being started.
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEATH = 2.0
"""Seconds to wait until killed processes have ended."""

# Variables that a Slurm session or another launcher leaves in a shell. They would change our own commands
# (SQUEUE_USERS empties a list, SBATCH_JOB_NAME overrides the script) or reach the job
# (SLURM_CPU_BIND from a tmux started in a step slows every rank: observed).
_SCRUBBED = re.compile(
    r"(SBATCH|SQUEUE|SACCT|SCANCEL|SINFO|SLURM|SLURMD|SRUN|PMI|PMIX|TORCHELASTIC)_.*|PMI[A-Z0-9]*"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(NAME|RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    r"|CLUSTERRUN_(?!CONFIG|STATE).*"
)
_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})


class Completed(NamedTuple):
    """The result of a program: its exit status (128+n for a signal) and its two streams, decoded."""

    status: int
    stdout: str
    stderr: str


def scrub(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment without variables of Slurm or a launcher, and the sorted names of those."""
    dropped = sorted(k for k in environ if _SCRUBBED.fullmatch(k) and k not in _KEPT)
    return {k: v for k, v in environ.items() if k not in set(dropped)}, dropped


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm commands whose output is parsed: scrubbed, times in epoch seconds."""
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
    errors: str = "backslashreplace",
) -> Completed:
    """Run a program and return its result, whatever its exit status.

    It runs in its own session, so a Ctrl-C in the terminal does not reach it. Raises CommandError if it cannot be
    started, or after ``timeout`` seconds, once its process group is killed. A NUL and bytes that are not UTF-8 become
    ``\\xNN``; with ``errors`` "surrogateescape" the standard output can be encoded again, as file names must be.
    """
    data = None if stdin is None else stdin.encode("utf-8", "surrogateescape")
    process = None
    try:
        process = _start_session(
            argv,
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            umask=umask,
        )
        out, err = process.communicate(data, timeout)
    except subprocess.TimeoutExpired:
        assert process is not None
        _end_group(process)
        out, err = _rest_of_output(process)
        raise CommandError(argv, status=None, stdout=_text(out), stderr=_text(err), timed_out=True) from None
    except BaseException:
        if process is not None:
            _end_group(process)
        raise
    text = _text(out) if errors == "backslashreplace" else out.decode("utf-8", errors)
    return Completed(exit_status(process.returncode), text, _text(err))


def _rest_of_output(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return what a killed program has written."""
    # a wrapper may leave a child that holds the pipe: wait a moment, then stop reading
    try:
        return process.communicate(timeout=2)
    except subprocess.TimeoutExpired as late:
        return late.stdout or b"", late.stderr or b""


def exit_status(returncode: int) -> int:
    """Return a program's exit status as a shell has it: 128+n for a signal."""
    return 128 - returncode if returncode < 0 else returncode


def check_output(argv: Sequence[str], **kwargs: object) -> str:
    """Run a program and return its standard output. Raises CommandError for an exit status other than 0."""
    done = run(argv, **kwargs)  # type: ignore[arg-type]
    if done.status != 0:
        raise CommandError(argv, status=done.status, stdout=done.stdout, stderr=done.stderr)
    return done.stdout


def run_here(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a program on this process's own terminal or streams, and return its exit status; Ctrl-C is the program's.

    Raises CommandError if it cannot be started.
    """
    clean, _ = scrub(environ)
    # a handler that does nothing: the program would inherit SIG_IGN
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        return exit_status(subprocess.Popen(argv, env=clean).wait())
    except OSError as error:
        raise _not_started(argv, error) from error
    finally:
        signal.signal(signal.SIGINT, before)


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
    umask: int = -1,
    signal_at_parents_end: signal.Signals | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in its own session, detached from the terminal. Raises CommandError.

    The kernel sends it ``signal_at_parents_end`` when the calling thread ends; without it the program keeps running.
    This runs Python between fork and exec, so it is not for callers with several threads.
    """
    before_program = None if signal_at_parents_end is None else _set_parent_death_signal(signal_at_parents_end)
    return _start_session(
        argv,
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout or subprocess.DEVNULL,
        stderr=stderr or subprocess.DEVNULL,
        env=dict(env),
        cwd=cwd,
        umask=umask,
        preexec_fn=before_program,
    )


def _start_session(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program in its own session with these options of Popen. Raises CommandError.

    If the handler of a signal raises meanwhile, the caller never gets the program, so it is ended here.
    """
    process = None
    try:
        with _signals_deferred():
            process = subprocess.Popen(list(argv), start_new_session=True, **options)
    except BaseException as error:
        if process is not None:
            _end_group(process)
        elif isinstance(error, OSError):
            raise _not_started(argv, error) from error
        raise
    return process


def start_fed(
    argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes | None, piped: bool = False, detached: bool = False
) -> subprocess.Popen[bytes]:
    """Start a program with a given input (None: this process's), and this process's standard error.

    ``piped``: its output is read from ``stdout``. ``detached``: it runs in its own session, so a Ctrl-C in the
    terminal does not reach it, and it cannot ask for a password. Raises CommandError.
    """
    clean, _ = scrub(env)
    try:
        process = subprocess.Popen(
            list(argv), stdin=None if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE if piped else None,
            env=clean, start_new_session=detached,
        )  # fmt: skip
    except OSError as error:
        raise _not_started(argv, error) from error
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit status says why
            process.stdin.write(stdin or b"")
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    return process


def _not_started(argv: Sequence[str], error: OSError) -> CommandError:
    return CommandError(argv, status=None, stderr=f"{error.strerror}: {error.filename or argv[0]}")


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Delay the Python handlers of signals until the end of the block.

    A handler that raises (as Ctrl-C's does) inside Popen, after the fork, would lose the only reference to the process.
    Blocking the signals does not work: the program inherits the mask, and another thread may get the signal.
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


def _set_parent_death_signal(signum: signal.Signals) -> Callable[[], None]:
    """Return a function for a child process: the kernel sends it ``signum`` when its parent ends (PR_SET_PDEATHSIG)."""
    import ctypes

    try:
        prctl = ctypes.CDLL(None).prctl  # looked up before the fork: the child should do as little as possible
    except (OSError, AttributeError):
        return lambda: None
    parent = os.getpid()

    def request_signal() -> None:
        prctl(1, int(signum), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the request
            os.kill(os.getpid(), signum)

    return request_signal


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the program's process group and wait until all its processes have ended.

    After ``_DEATH`` seconds it gives up on a process that the kernel cannot end (on a hung file system).
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
    """Return whether a process of the group still runs. Zombies do not count: they may never be collected."""
    for folder in Path("/proc").iterdir():  # glob raises when a process ends meanwhile (ESRCH)
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            state, its_group, threads = fields[0], int(fields[2]), int(fields[17])
            if its_group == group and (state not in "ZX" or threads > 1):  # its main thread may end before the others
                return True
    return False


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\0", "\\x00")  # with a NUL no path can be looked at
