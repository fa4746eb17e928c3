"""The worker's modules that need no torch are tested as the package `clusterrun.worker`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.worker.training import stopping

WORKER = Path(__file__).resolve().parents[2] / "clusterrun" / "worker"


@pytest.fixture
def worker() -> Path:
    """The folder whose files are run by path."""
    return WORKER


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    """The loop takes signals; give them back, and forget those that came."""
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2)}
    stopping._received.clear()
    yield
    stopping._received.clear()
    for signum, handler in before.items():
        signal.signal(signum, handler)
