"""The queue cache on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from clusterrun.scheduler.slurm.cache import QueueCache


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, target: str, **folders: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", name)

    monkeypatch.setattr(os, "rename", full)
    QueueCache(tmp_path / "clusters", "default", "desk").save("1|RUNNING\n", 0.0)
    assert list((tmp_path / "clusters").iterdir()) == []
