"""`exec`: one srun step inside a running job of the user, and nothing for any other job."""

from __future__ import annotations

import os
from pwd import getpwuid

import pytest

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.support.command_desk import Desk, refused
from tests.support.listed_jobs import rows, run, run_row
from tests.support.run_records import attempt

ME = getpwuid(os.getuid()).pw_name
RANKS = [{"rank": rank, "task": rank, "node": f"n{1 + rank // 2}"} for rank in range(4)]


@pytest.fixture
def job(desk: Desk) -> RunRecord:
    """A run of two ranks on each of two nodes, and an srun."""
    found = run(Store(desk.project, desk.state))
    attempt(found, start={"version": 1, "ranks": RANKS})
    show(desk, found)
    srun = desk.slurm.folder / "srun"
    srun.write_bytes((desk.slurm.folder / "squeue").read_bytes())
    srun.chmod(0o755)
    return found


def show(desk: Desk, found: RunRecord, **more: str) -> None:
    desk.slurm.answer("squeue", rows(run_row(found, **{"u": ME, "N": "n[1-2]", "D": "2", **more})))


@pytest.mark.parametrize(("options", "node"), [
    ([], "n1"), (["--rank", "1"], "n1"), (["--rank", "3"], "n2"), (["--node", "n2"], "n2"),
])  # fmt: skip
@pytest.mark.usefixtures("job")
def test_the_command_runs_once_on_the_chosen_node(desk: Desk, options: list[str], node: str) -> None:
    desk.slurm.answer("srun", status=3)
    assert desk.type("exec", "101", *options, "--", "nvidia-smi", "-L").status == 3
    (call,) = [call for call in desk.slurm.calls if call[0] == "srun"]
    assert call[1:] == [
        "--jobid=101", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--cpu-bind=none", "--",
        "nvidia-smi", "-L",
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "text"), [
    (["101"], "a shell needs a terminal"),
    (["101", "--"], "no command after --"),
    (["101", "--rank", "9", "--", "true"], "job 101 has no rank 9"),
    (["101", "--node", "n3", "--", "true"], "job 101 is not running on n3"),
    (["101", "--node", "n1", "--rank", "1", "--", "true"], "--node and --rank cannot be combined"),
])  # fmt: skip
@pytest.mark.usefixtures("job")
def test_a_mistake_is_one_line(desk: Desk, words: list[str], text: str) -> None:
    message, _ = refused(desk, "exec", *words, calls=True)
    assert text in message and desk.slurm.count("srun") == 0


@pytest.mark.parametrize(("row", "status", "text"), [
    ({"T": "PENDING", "N": ""}, 2, "job 101 is PENDING"),
    ({"T": "COMPLETING"}, 2, "job 101 is COMPLETING"),
])  # fmt: skip
def test_a_job_that_does_not_run_is_refused(
    desk: Desk, job: RunRecord, row: dict[str, str], status: int, text: str
) -> None:
    show(desk, job, **row)
    message, _ = refused(desk, "exec", "101", "--", "true", status=status, calls=True)
    assert text in message and desk.slurm.count("srun") == 0


def test_a_job_of_another_user_is_refused(desk: Desk, job: RunRecord) -> None:
    desk.slurm.answer("squeue", rows({"i": "7", "u": "mallory", "N": "n1"}))
    message, _ = refused(desk, "exec", "7", "--", "true", status=4, calls=True)
    assert "belongs to another user" in message and desk.slurm.count("srun") == 0


@pytest.mark.parametrize(("words", "line"), [
    (["101", "hostname"], "clusterrun exec 101 -- hostname"),
    (["101", "ls", "-l", "a b"], "clusterrun exec 101 -- ls -l 'a b'"),
    (["101", "--rank", "1", "nvidia-smi"], "clusterrun exec 101 -- nvidia-smi"),
])  # fmt: skip
def test_a_command_without_the_two_dashes_gets_the_line_to_type(desk: Desk, words: list[str], line: str) -> None:
    assert refused(desk, "exec", *words) == ("the command must follow --", line)


def test_a_mistyped_option_is_not_taken_for_the_command(desk: Desk) -> None:
    message, hint = refused(desk, "exec", "101", "--nod", "n1")
    assert message == "no such option: --nod" and hint == "did you mean --node?"
