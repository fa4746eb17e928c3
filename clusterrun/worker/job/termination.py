"""SIGTERM of the supervisor: it acts on it only when it may, and forwards signals to the step."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

TERMINATED = 128 + signal.SIGTERM


class Terminated(BaseException):
    """SIGTERM came while no ranks were running."""


class Termination:
    """SIGTERM: kept until the job may act on it, and forwarded to the step if one is running; so are USR1 and USR2."""

    def __init__(self) -> None:
        self.came = False
        self.step: subprocess.Popen[bytes] | None = None
        self.may_raise = False
        self.also: Callable[[], None] = lambda: None  # called for each SIGTERM
        signal.signal(signal.SIGTERM, self._on_term)
        for signum in (signal.SIGUSR1, signal.SIGUSR2):  # of --signal=B:USR1@60
            signal.signal(signum, self._forward)

    def _forward(self, signum: int, frame: object) -> None:
        if self.step is not None:
            self.step.send_signal(signum)

    def _on_term(self, signum: int, frame: object) -> None:
        self.came = True
        self.also()
        if self.step is not None:
            self.step.send_signal(signal.SIGTERM)
        elif self.may_raise:
            raise Terminated

    def take_word(self) -> None:
        """Take URG for a SIGTERM that the ranks got too: a cancel inside a Slurm job (scheduler/local/steps.py)."""
        signal.signal(signal.SIGURG, self._on_word)

    def _on_word(self, signum: int, frame: object) -> None:
        self.came = True
        self.also()
        if self.step is None and self.may_raise:
            raise Terminated

    def allow(self, may_raise: bool = True) -> None:
        """From now on raise Terminated at a SIGTERM, or for one that came before; or keep it again."""
        self.may_raise = may_raise
        if may_raise and self.came:
            raise Terminated

    def await_signal(self, limit: float) -> None:
        """Wait at most `limit` seconds for the SIGTERM of a job that Slurm is ending."""
        until = time.monotonic() + limit
        while not self.came and time.monotonic() < until:
            time.sleep(0.02)

    def watch(self, step: subprocess.Popen[bytes]) -> None:
        """Forward SIGTERM to the step, also one that came before."""
        self.step = step
        if self.came:
            step.send_signal(signal.SIGTERM)
