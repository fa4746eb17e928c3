"""A rank ends the allocation once the job's supervisor is gone, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.worker import orphans
from clusterrun.worker.epoch import Superseded
from clusterrun.worker.orphans import ALIVE, CLAIM, INTERVALS, SupervisorWatch

SPARED = {"SLURM_JOB_ID": "7", "CLUSTERRUN_SPARE_NODES": "1"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(orphans.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    jobs: list[str] = []
    monkeypatch.setattr(orphans, "end_job", lambda job, reason: jobs.append(job) or True)
    return jobs


def test_one_of_the_ranks_ends_the_job_of_a_silent_supervisor(
    tmp_path: Path, clock: list[float], ended: list[str]
) -> None:
    ranks = [SupervisorWatch(tmp_path, 2.0, SPARED) for _ in range(2)]
    (tmp_path / ALIVE).write_text("1")
    for rank in ranks:
        rank.look()
    clock[0] += 2.0 * INTERVALS - 1
    ranks[0].look()
    assert ended == []
    clock[0] += 2
    ranks[0].look()
    with pytest.raises(FileExistsError):
        ranks[1].look()
    assert ended == ["7"] and (tmp_path / CLAIM).exists()


def test_a_rank_that_cannot_reach_slurm_leaves_it_to_another(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, tried = iter([False, True]), []
    monkeypatch.setattr(orphans, "end_job", lambda job, reason: tried.append(job) or next(answers))
    ranks = [SupervisorWatch(tmp_path, 2.0, SPARED) for _ in range(2)]
    (tmp_path / ALIVE).write_text("1")
    for rank in ranks:
        rank.look()
    clock[0] += 2.0 * INTERVALS + 1
    ranks[0].look()
    assert not (tmp_path / CLAIM).exists()
    ranks[1].look()
    assert tried == ["7", "7"] and (tmp_path / CLAIM).exists()


def test_a_supervisor_that_writes_is_alive(tmp_path: Path, clock: list[float], ended: list[str]) -> None:
    rank = SupervisorWatch(tmp_path, 2.0, SPARED)
    for beat in range(5):
        (tmp_path / ALIVE).write_text(str(beat))
        clock[0] += 2.0 * INTERVALS - 1
        rank.look()
    assert ended == []


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "7"}, {"CLUSTERRUN_SPARE_NODES": "1"}])
def test_a_job_without_spare_nodes_is_ended_by_slurm(
    tmp_path: Path, clock: list[float], ended: list[str], environ: dict[str, str]
) -> None:
    rank = SupervisorWatch(tmp_path, 2.0, environ)
    (tmp_path / ALIVE).write_text("1")
    for _ in range(3):
        rank.look()
        clock[0] += 1e6
    assert ended == []


def test_a_job_that_was_started_again_is_left_alone(
    tmp_path: Path, clock: list[float], ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "epoch").write_text("3")
    monkeypatch.setenv("CLUSTERRUN_EPOCH_FILE", str(tmp_path / "epoch"))
    monkeypatch.setenv("CLUSTERRUN_EPOCH", "2")
    rank = SupervisorWatch(tmp_path, 2.0, SPARED)
    (tmp_path / ALIVE).write_text("1")
    rank.look()
    clock[0] += 1e6
    with pytest.raises(Superseded):
        rank.look()
    assert ended == []


@pytest.mark.parametrize(("accepts", "done"), [("requeue", "requeued"), ("scancel", "cancelled")])
def test_a_job_is_requeued_or_where_that_is_refused_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], accepts: str, done: str
) -> None:
    for name in ("scontrol", "scancel"):
        (tmp_path / name).write_text(f'#!/bin/sh\ncase "$0 $*" in *{accepts}*) exit 0;; esac\nexit 1\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    orphans.end_job("7", "gone")
    assert capfd.readouterr().err == f"clusterrun: gone: job 7 was {done}\n"
