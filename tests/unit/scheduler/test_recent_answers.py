"""An answer of sacctmgr is used again for some minutes; an error, an old one or another command's is not."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun.scheduler import ClusterFacts
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.system.shell import Completed

QOS, ASSOC = ("sacctmgr", "show", "qos"), ("sacctmgr", "show", "assoc")


class Slurm:
    """A Slurm that counts the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.status = 0

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        self.calls.append(tuple(argv))
        return Completed(self.status, f"answer {len(self.calls)}\n", "")

    def client(self, state: Path, cluster: str = "core") -> SlurmScheduler:
        return SlurmScheduler(ClusterFacts(cluster, True, True), {}, run=self.run, cache=state)


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


def test_another_process_uses_the_answer_again(slurm: Slurm, tmp_path: Path) -> None:
    first = slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0)
    assert slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0).text == first.text == "answer 1\n"
    assert slurm.client(tmp_path).recent_answer(ASSOC, 1.0, 600.0).text == "answer 2\n"
    assert slurm.client(tmp_path, "other").recent_answer(QOS, 1.0, 600.0).text == "answer 3\n"
    assert slurm.calls == [QOS, ASSOC, QOS]


@pytest.mark.parametrize("age", [-60, 601])
def test_an_old_answer_and_one_from_the_future_are_not_used(slurm: Slurm, tmp_path: Path, age: int) -> None:
    slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0)
    (path,) = (tmp_path / "clusters").glob("*.answer")
    os.utime(path, (time.time() - age, time.time() - age))
    assert slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0).text == "answer 2\n"


def test_an_error_is_not_kept(slurm: Slurm, tmp_path: Path) -> None:
    slurm.status = 1
    assert slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0).note
    slurm.status = 0
    assert slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0).text == "answer 2\n"


def test_a_link_in_its_place_is_not_followed(slurm: Slurm, tmp_path: Path) -> None:
    slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0)
    (path,) = (tmp_path / "clusters").glob("*.answer")
    path.rename(tmp_path / "planted")
    path.symlink_to(tmp_path / "planted")
    assert slurm.client(tmp_path).recent_answer(QOS, 1.0, 600.0).text == "answer 2\n"
