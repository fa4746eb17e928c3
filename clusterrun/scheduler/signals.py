"""The supervisor's ears: signals wake its sleep, and TERM is a wish to stop. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import signal


class Signals:
    """From its making on, TERM and INT set ``stop``, a hang-up does nothing, and any signal ends ``sleep``."""

    def __init__(self) -> None:
        self.stop = False
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # what the submitter blocked or ignored is not the job's
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(signum, signal.SIG_DFL)
        # a signal leaves a byte in the pipe, so one that comes just before the sleep is not slept over
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
