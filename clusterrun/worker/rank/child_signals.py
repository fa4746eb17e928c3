"""Signals in the processes that a rank starts: the rank's main process alone acts on them. Standard library only.

Slurm signals the tasks of a step or, as a site has it, all their processes (proctrack/linuxproc and pgid, or
SignalChildrenProcesses in cgroup.conf). Forked children would run the script's handlers, and a data loader's worker
would die of SIGTERM while its rank saves: the loader then raises in the rank. So they ignore these signals.
`Process.terminate()` in the rank still ends them: it sends SIGURG first, which does nothing to other processes.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

OF_THE_RANK = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
TOLD = signal.SIGURG
LOADERS = ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker")
SIGACTION_BYTES = 512  # more than any libc's struct sigaction


def leave_to_rank() -> None:
    """Ignore, in a forked child, the signals that the script handles. Call from the main thread."""
    handled = [signum for signum in OF_THE_RANK if callable(signal.getsignal(signum))]
    for signum in handled:
        signal.signal(signum, _ignore)
    if signal.SIGTERM in handled:
        signal.signal(TOLD, _end)


def install() -> None:
    """Let the data loaders' workers that this rank starts from now on ignore its signals, forked or not."""
    from multiprocessing import forkserver, popen_fork, resource_tracker

    start, terminate = popen_fork.Popen.__init__, popen_fork.Popen.terminate
    run_server = forkserver.ForkServer.ensure_running

    def start_process(popen: Any, process: Any) -> None:
        target = getattr(process, "_target", None)
        if getattr(target, "__module__", None) in LOADERS:
            process._target = LoaderWorker(target)
            with _blocked():  # until the worker has its handlers
                start(popen, process)
            return
        if popen.method == "forkserver":
            process._clusterrun = Unblock()  # its server has them blocked
        start(popen, process)

    def tell_and_terminate(popen: Any) -> None:
        popen._send_signal(TOLD)
        terminate(popen)

    def run_server_blocked(server: Any) -> None:
        resource_tracker.ensure_running()  # it would unblock SIGTERM
        with _blocked():
            run_server(server)

    popen_fork.Popen.__init__ = start_process  # type: ignore[assignment, method-assign]
    popen_fork.Popen.terminate = tell_and_terminate  # type: ignore[assignment, method-assign]
    forkserver.ForkServer.ensure_running = run_server_blocked  # type: ignore[assignment, method-assign]


@contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_RANK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Unblock:
    """Unblocks the rank's signals in the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.pthread_sigmask, (signal.SIG_UNBLOCK, OF_THE_RANK)


class LoaderWorker:
    """The main function of a data loader's worker, which first takes its signals from it.

    torch gives SIGTERM a handler in C: it ends the worker at once, and quietly if the sender is the rank. That handler
    becomes the one of SIGURG.
    """

    def __init__(self, target: Any) -> None:
        self.target = target

    def __call__(self, *arguments: Any) -> None:
        for signum in OF_THE_RANK:
            signal.signal(signum, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_RANK)
        with suppress(ImportError, AttributeError):  # of another torch
            self._extend_handlers()
        self.target(*arguments)

    def _extend_handlers(self) -> None:
        handling: Any = importlib.import_module("torch.utils.data._utils.signal_handling")
        set_handlers = handling._set_worker_signal_handlers

        def set_ours_too() -> None:
            with _blocked():
                set_handlers()
                _copy_action(signal.SIGTERM, TOLD)
                signal.signal(signal.SIGTERM, _ignore)

        handling._set_worker_signal_handlers = set_ours_too

    def __reduce__(self) -> tuple[Any, ...]:
        """Be loaded from this file in a spawned worker, which cannot import this package."""
        names = {"__name__": "clusterrun_loader", "__file__": __file__, "target": self.target}
        return eval, ("exec(open(__file__).read()) or LoaderWorker(target)", names)


def _copy_action(source: int, target: int) -> None:
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(source, None, action)
    libc.sigaction(target, action, None)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Do nothing. Not SIG_IGN: programs that the process starts would inherit that."""


def _end(signum: int, frame: FrameType | None) -> None:
    """End by SIGTERM, unless the process handles it itself."""
    if signal.getsignal(signal.SIGTERM) is _ignore:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
