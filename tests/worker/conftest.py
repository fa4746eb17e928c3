"""The worker's modules that need no torch are tested as the package `clusterrun.worker`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.worker.training import stopping
from tests.support.slurm_stand_ins import Slurm

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


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Stand-ins for Slurm's commands, and no others, in PATH."""
    made = Slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    return made
