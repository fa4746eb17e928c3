"""The claim on a run: one job has it, a restart of that job renews it, and each start begins an attempt."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.run_folder import attempt_number
from clusterrun.run_folder.claims import JobIdentity, claim, own_folders, read

TOKEN = "k3v7qaabcdefghij"


def job(number: int | str = 7, restart: int = 0, task: str = "") -> JobIdentity:
    return JobIdentity("lab", str(number), task, restart)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    own_folders(tmp_path / "run")
    return tmp_path / "run"


def owner(run: Path, task: str = "") -> str:
    return (run / "claims" / (TOKEN + task) / "owner").read_text()


def claims(arguments: tuple[Path, int]) -> bool:
    try:
        claim(arguments[0], TOKEN, job(arguments[1]), 0o700)
    except WorkerError as error:
        assert error.status == 75, error
        return False
    return True


def test_of_many_copies_that_start_together_one_has_the_run(run: Path) -> None:
    with ProcessPoolExecutor(8) as pool:
        won = list(pool.map(claims, [(run, number) for number in range(40)]))
    assert won.count(True) == 1 and owner(run) == f"lab {won.index(True)} 0\n"
    assert os.listdir(run / "claims") == [TOKEN], "what a copy staged is removed"


def test_a_restart_renews_the_claim_and_an_earlier_start_cannot(run: Path) -> None:
    claim(run, TOKEN, job(restart=0), 0o700)
    claim(run, TOKEN, job(restart=2), 0o700)
    assert owner(run) == "lab 7 2\n"
    with pytest.raises(WorkerError, match=r"job 7 \(restart 2\) is already running run: this copy, job 7 \(restart 1"):
        claim(run, TOKEN, job(restart=1), 0o700)


@pytest.mark.parametrize(("number", "task"), [("7", ""), ("7_3", "_3"), ("none", "")])
def test_a_command_reads_the_claim_that_a_job_made(run: Path, number: str, task: str) -> None:
    assert read(run, TOKEN + task) is None
    claim(run, TOKEN, job(number, restart=2, task=task), 0o700)
    found = read(run, TOKEN + task)
    if number == "none":  # a script run by hand is no job
        assert found is None
    else:
        assert found is not None and (found.cluster, found.job, found.restart) == ("lab", "7", 2)


@pytest.mark.parametrize(
    "text", ["", "lab 7", "lab 7 -1", "lab 7 1 9", "../x 7 0", "lab x 0", "lab 7 \N{SUPERSCRIPT TWO}"]
)
def test_a_claim_that_no_job_makes_is_none(run: Path, text: str) -> None:
    (run / "claims" / TOKEN).mkdir()
    (run / "claims" / TOKEN / "owner").write_text(text)
    assert read(run, TOKEN) is None


def test_tasks_of_an_array_have_claims_of_their_own(run: Path) -> None:
    for task in ("_1", "_2"):
        claim(run, TOKEN, job(task=task), 0o700)
        assert attempt_number.begin_next(run, TOKEN, job(task=task)) == 1
    assert {path.name for path in run.glob("attempt_number*")} == {"attempt_number_1", "attempt_number_2"}


def test_each_launch_is_a_new_attempt(run: Path) -> None:
    claim(run, TOKEN, job(), 0o700)
    assert [attempt_number.begin_next(run, TOKEN, job()) for _ in range(3)] == [1, 2, 3]


def test_a_start_that_was_taken_over_begins_no_attempt(run: Path) -> None:
    claim(run, TOKEN, job(restart=0), 0o700)
    claim(run, TOKEN, job(restart=1), 0o700)
    with pytest.raises(WorkerError, match="has been restarted") as error:
        attempt_number.begin_next(run, TOKEN, job(restart=0))
    assert error.value.status == 75 and not (run / "attempt_number").exists()


@pytest.mark.parametrize("text", ["", "-1", "1; x", "²"])
def test_an_attempt_number_that_is_none_is_refused(run: Path, text: str) -> None:
    claim(run, TOKEN, job(), 0o700)
    (run / "attempt_number").write_text(text)
    with pytest.raises(WorkerError, match="does not contain a number"):
        attempt_number.begin_next(run, TOKEN, job())


def test_a_claim_without_an_owner_is_somebody_elses(run: Path) -> None:
    (run / "claims" / TOKEN).mkdir()
    (run / "claims" / TOKEN / "x").touch()
    with pytest.raises(WorkerError) as error:
        claim(run, TOKEN, job(), 0o700)
    assert error.value.status == 75


def test_a_folder_that_takes_no_claim_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=f"in {tmp_path}/claims that this job owns the run: No such file"):
        claim(tmp_path, TOKEN, job(), 0o700)


def test_the_identity_is_slurms_then_the_local_schedulers() -> None:
    slurm = {"SLURM_CLUSTER_NAME": "lab", "SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "2"}
    assert JobIdentity.resolve(slurm) == JobIdentity("lab", "8", "", 2)
    task = {**slurm, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}
    assert JobIdentity.resolve(task) == JobIdentity("lab", "5_3", "_3", 2)
    assert JobIdentity.resolve({"CLUSTERRUN_LOCAL_JOB_ID": "L4"}) == JobIdentity("local", "L4", "", 0)
    assert JobIdentity.resolve({}) == JobIdentity("local", "none", "", 0)


def test_an_old_job_that_starts_again_leaves_the_run_to_its_newer_job(run: Path) -> None:
    newer = "abcdefgh22345672"
    (run / "submissions").mkdir()
    for token, at in ((TOKEN, 1_795_000_000), (newer, 1_795_000_500)):
        (run / "submissions" / f"{token}.json").write_text(f'{{"at": {at}}}')
    claim(run, TOKEN, job(7), 0o700)
    claim(run, newer, job(9), 0o700)
    with pytest.raises(WorkerError, match=r"job 9 \(restart 0\) is already running run: this copy, job 7 \(restart 1"):
        claim(run, TOKEN, job(7, restart=1), 0o700)
    claim(run, newer, job(9, restart=1), 0o700)
    assert owner(run) == "lab 7 0\n"
