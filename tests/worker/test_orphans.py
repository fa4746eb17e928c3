"""A rank ends the allocation once the job's supervisor is gone, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.run_folder.attempt_number import Superseded
from clusterrun.worker.rank import orphans
from clusterrun.worker.rank.orphans import ALIVE, CLAIM, CLAIM_S, INTERVALS, SupervisorWatch
from tests.support.slurm_stand_ins import squeue_line

SPARED = {"SLURM_JOB_ID": "7", "CLUSTERRUN_SPARE_NODES": "1"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(orphans.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    jobs: list[str] = []
    monkeypatch.setattr(orphans, "end_job", lambda job, restart, reason: jobs.append(job) or True)
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
    monkeypatch.setattr(orphans, "end_job", lambda job, restart, reason: tried.append(job) or next(answers))
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
    (tmp_path / "attempt_number").write_text("3")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER_FILE", str(tmp_path / "attempt_number"))
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER", "2")
    rank = SupervisorWatch(tmp_path, 2.0, SPARED)
    (tmp_path / ALIVE).write_text("1")
    rank.look()
    clock[0] += 1e6
    with pytest.raises(Superseded):
        rank.look()
    assert ended == []


def test_a_rank_that_could_not_reach_slurm_lets_another_try_first(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def try_for_long(job: str, restart: int, reason: str) -> bool:
        tried.append(job)
        clock[0] += 3 * INTERVALS
        return False

    monkeypatch.setattr(orphans, "end_job", try_for_long)
    rank = SupervisorWatch(tmp_path, 2.0, SPARED)
    (tmp_path / ALIVE).write_text("1")
    rank.look()
    clock[0] += 2.0 * INTERVALS + 1
    rank.look()
    clock[0] += 2.0 * INTERVALS - 1
    rank.look()
    assert tried == ["7"]


def test_a_rank_without_the_claim_tries_again_at_its_next_look(
    tmp_path: Path, clock: list[float], ended: list[str]
) -> None:
    rank = SupervisorWatch(tmp_path, 2.0, SPARED)
    (tmp_path / ALIVE).write_text("1")
    (tmp_path / CLAIM).touch()
    rank.look()
    clock[0] += 2.0 * INTERVALS + 1
    with pytest.raises(FileExistsError):
        rank.look()
    (tmp_path / CLAIM).unlink()
    rank.look()
    assert ended == ["7"]


def test_the_claim_of_a_rank_that_was_killed_expires(tmp_path: Path, clock: list[float], ended: list[str]) -> None:
    rank = SupervisorWatch(tmp_path, 2.0, SPARED)
    (tmp_path / ALIVE).write_text("1")
    (tmp_path / CLAIM).touch()
    old = (tmp_path / CLAIM).stat().st_mtime - CLAIM_S - 1
    os.utime(tmp_path / CLAIM, (old, old))
    rank.look()
    clock[0] += 2.0 * INTERVALS + 1
    rank.look()
    assert ended == ["7"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Replace Slurm's commands: how squeue and the command that would end the job answer."""

    def answer(shown: str, ending: str) -> None:
        for name in ("squeue", "scontrol", "scancel"):
            text = f"#!/bin/sh\n{shown if name == 'squeue' else ending}\n"
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return answer


def shows(state: str, restarts: int) -> str:
    return f"printf %s '{squeue_line({'JobState': state, 'Restarts': str(restarts)})}'"


RUNNING = shows("RUNNING", 1)


@pytest.mark.parametrize(("accepts", "done"), [("requeue", "requeued"), ("scancel", "cancelled")])
def test_a_job_is_requeued_or_where_that_is_refused_cancelled(
    slurm: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], accepts: str, done: str
) -> None:
    slurm(RUNNING, f'case "$0 $*" in *{accepts}*) exit 0;; esac; echo refused >&2; exit 1')
    assert orphans.end_job("7", 1, "gone")
    assert capsys.readouterr().err == f"clusterrun: gone: job 7 was {done}\n"


@pytest.mark.parametrize(
    ("shown", "ending", "ends"),
    [
        pytest.param("exit 1", "exit 0", False, id="slurm cannot be reached"),
        pytest.param(RUNNING, "echo Unable to contact slurm controller >&2; exit 1", False, id="no answer"),
        pytest.param(shows("PENDING", 2), "exit 0", True, id="requeued already"),
        pytest.param(shows("RUNNING", 2), "exit 0", True, id="started again"),
    ],
)
def test_a_job_that_may_have_been_requeued_is_not_cancelled(
    slurm: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], shown: str, ending: str, ends: bool
) -> None:
    slurm(shown, ending)
    assert orphans.end_job("7", 1, "gone") == ends
    assert capsys.readouterr().err == ""
