"""The worker's modules that need no torch are tested as the package `clusterrun.worker`."""

from __future__ import annotations

from pathlib import Path

import pytest

WORKER = Path(__file__).resolve().parents[2] / "clusterrun" / "worker"


@pytest.fixture
def worker() -> Path:
    """The folder whose files are run by path."""
    return WORKER
