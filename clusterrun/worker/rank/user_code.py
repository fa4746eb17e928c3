"""Run the user's script, module or command in this rank, as Python or the shell would run it."""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType

from ...base.errors import WorkerError
from ...run_folder.ends import Outcome
from ..node.local_launcher import die_with_parent
from ..node.probe import children
from .failures import describe_error, exception_kind, locate
from .progress import here
from .saved_code import search_path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
PR_SET_CHILD_SUBREAPER = 36
ORPHANS_S = 30.0  # the time that Slurm gives between SIGTERM and SIGKILL, if its administrators do not change it


def run_script(file: str, arguments: list[str]) -> Outcome:
    """Run `python FILE ARGS…` in this process: same __main__, sys.argv and sys.path; prints tracebacks like it."""
    sys.argv = [file, *arguments]
    if os.path.isdir(file) or not _readable(file):
        return _guard(lambda: runpy.run_path(file, run_name="__main__"))  # a folder or archive with a __main__.py
    if not getattr(sys.flags, "safe_path", False):
        sys.path[:0] = search_path(os.path.dirname(os.path.realpath(file)))
    # not runpy.run_path: it removes the module when the script returns, while threads, atexit handlers and pickle
    # may still need it
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=os.path.abspath(file), __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main

    def work() -> None:
        with io.open_code(os.path.abspath(file)) as source:
            code = compile(source.read(), os.path.abspath(file), "exec", dont_inherit=True)
        exec(code, main.__dict__)

    return _guard(work)


def run_module(module: str, arguments: list[str]) -> Outcome:
    """Run `python -m MODULE ARGS…` in this process."""
    sys.argv = [module, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[:0] = search_path(os.getcwd())
    return _guard(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def run_command(argv: list[str]) -> Outcome:
    """Run an executable as a child, forward TERM, INT, USR1 and USR2 to it, and return its exit status."""
    child: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if child is not None and child.poll() is None:
            child.send_signal(signum)

    for signum in FORWARDED:
        signal.signal(signum, forward)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # so that a shell's programs are ours when it has ended
    try:
        child = subprocess.Popen(argv, preexec_fn=die_with_parent(os.getpid()))
    except OSError as error:
        status = 127 if isinstance(error, FileNotFoundError) else 126
        raise WorkerError(f"cannot run {argv[0]}: {error.strerror or error}", status=status) from None
    here.process = child.pid
    for early in tuple(received):
        child.send_signal(early)
    status = child.wait()
    if -status in received:
        _await_orphans(-status)
    return _judge(argv[0], status)


def _judge(program: str, status: int) -> Outcome:
    """Return the outcome of a program that ended with this status, which is -n after signal n."""
    if status == 0:
        return Outcome(0)
    if status > 0:
        return Outcome(status, f"{program} exited with {status}", kind="command-exited", values={"status": status})
    how = "crashed" if -status in CRASHES else "interrupted"
    kind = "command-killed" if -status == signal.SIGKILL else f"command-{how}"
    name = signal.Signals(-status).name
    return Outcome(128 - status, f"{program} was killed by {name}", kind=kind, values={"signal": name})


def _await_orphans(signum: int) -> None:
    """Wait for the programs of a shell that a signal has ended: they may be saving.

    A shell without a trap ends at once and forwards nothing. srun has sent the signal to all its programs.
    """
    if "SLURM_STEP_ID" not in os.environ:
        for pid in children():
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
    until = time.monotonic() + ORPHANS_S
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)


def _guard(work: Callable[[], object]) -> Outcome:
    """Return how the user's code ends, with the output and exit status that Python gives it."""
    try:
        work()
    except SystemExit as error:
        if error.code is None:
            return Outcome(0)
        if isinstance(error.code, int):
            status = error.code & 0xFF
            text = f"exited with status {status}" if status else ""
            return Outcome(status, text, locate(error.__traceback__), "exited", {"status": status})
        print(error.code, file=sys.stderr)
        text = f"exited: {(str(error.code).splitlines() or [''])[0][:300]}"
        return Outcome(1, text, locate(error.__traceback__), "exited")
    except BaseException as error:
        trace = _without_our_frames(error.__traceback__)
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
        _print_traceback(error.with_traceback(trace))
        return Outcome(status, describe_error(error), locate(trace), exception_kind(error))
    return Outcome(0)


def _print_traceback(error: BaseException) -> None:
    """Print a traceback as the interpreter does, with the user's excepthook."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        traceback.print_exception(error)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    ours = str(Path(__file__).parents[1])
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith((ours, "<frozen runpy>")):
            break
        trace = trace.tb_next
    return trace


def _readable(file: str) -> bool:
    try:
        with open(file, "rb") as source:
            return not source.read(4).startswith(b"PK\x03\x04")
    except OSError:
        return False
