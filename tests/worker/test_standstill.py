"""A rank of a large job announces that it does not advance; a rank of a small job does not need to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterrun.run_folder.rank_records import ANNOUNCE_S
from clusterrun.worker.rank.progress import Progress
from tests.support.rank_files import progress_of, recorder


class LargeJob:
    """A rank of 75,000 on a clock of its own, which is polled every second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.folder, self.progress = 1000.0, folder, Progress()
        monkeypatch.setattr("clusterrun.worker.rank.progress.time.monotonic", lambda: self.now)
        self.recorder = recorder(self.progress, folder, world_size=75_000)
        self.progress.step = 1
        self.recorder.write_if_due()

    def polls(self, seconds: float) -> int:
        """How many records are written meanwhile."""
        wrote = 0
        for _ in range(int(seconds)):
            self.now += 1.0
            wrote += self.recorder.write_if_due()
        return wrote

    @property
    def announced(self) -> bool:
        return progress_of(self.folder)[0].get("still") is True


def test_a_rank_of_a_large_job_announces_that_it_stands_still_and_that_it_advances_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = LargeJob(tmp_path, monkeypatch)
    assert job.polls(29) == 0
    assert job.polls(2 + ANNOUNCE_S) == 1 and job.announced
    assert job.polls(30) == 0, "once"
    job.progress.step = 2
    assert job.polls(1 + ANNOUNCE_S) == 1 and not job.announced


def test_long_steps_are_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = LargeJob(tmp_path, monkeypatch)
    wrote = 0
    for step in range(2, 40):
        wrote += job.polls(45)
        job.progress.step = step
        assert step == 2 or not job.announced
    assert wrote <= 2 + 38 * 45 / 80, "the first step and the usual heartbeats"


def test_a_pause_does_not_move_the_last_advance_into_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = LargeJob(tmp_path, monkeypatch)
    job.progress.step = 2
    job.now += 100.0
    job.recorder.write_if_due()
    assert job.recorder.document()["advanced"] <= time.time()


def test_a_rank_of_a_small_job_announces_nothing_since_its_heartbeats_say_it(tmp_path: Path) -> None:
    progress = Progress()
    one = recorder(progress, tmp_path)
    progress.step = 1
    one.write_if_due()
    one._advanced = 0.0
    one._due = 0.0
    assert one.write_if_due() and "still" not in progress_of(tmp_path)[0]
