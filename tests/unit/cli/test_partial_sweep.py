"""A sweep of which only some tasks were submitted: its commands work on these, and ``--recover`` submits the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.base.errors import NotDelivered
from clusterrun.base.job import JobId
from clusterrun.scheduler import Answer, Submission
from clusterrun.scheduler.local.client import LocalScheduler
from tests.support.command_desk import CONFIG, Desk
from tests.support.listed_jobs import rows

SWEEP = ("sweep", "--no-check", "--grid", "lr=0..4", "--", "train.py", "{lr}")


@pytest.fixture
def runs(desk: Desk) -> list[Path]:
    """Five tasks in three arrays, of which Slurm refused the third; their folders in the order of the tasks."""
    count = desk.slurm.folder / "count"
    (desk.slurm.folder / "sbatch").write_text(
        f"""#!/bin/bash
n=$(($(cat {count} 2>/dev/null || echo 0) + 1)); echo $n >{count}
[ $n != 3 ] || {{ echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1; }}
echo $((100 + n))
"""
    )
    desk.slurm.answer("scontrol", f"{CONFIG}MaxArraySize            = 2\n")
    said = desk.type(*SWEEP)
    assert said.status == 3 and "1 task of the sweep was not submitted: " in said.err
    (file,) = (desk.project / ".clusterrun" / "sweeps").glob("*.json")
    return [desk.project / ".clusterrun" / "runs" / task[1][0] for task in json.loads(file.read_text())["tasks"]]


def tasks(desk: Desk, runs: list[Path], state: str) -> None:
    """The state in which squeue shows the four submitted tasks from now on."""
    names = [f"train.{next((run / 'submissions').glob('*.json')).stem[:8]}" for run in runs[:4]]
    ids = ("101_0", "101_1", "102_0", "102_1")
    desk.slurm.answer("squeue", rows(*({"i": i, "T": state, "j": j} for i, j in zip(ids, names, strict=True))))


def test_it_can_be_cancelled_at_once(desk: Desk, runs: list[Path]) -> None:
    tasks(desk, runs, "PENDING")
    assert desk.type("cancel", "train").status == 0
    (call,) = [call for call in desk.slurm.calls if call[0] == "scancel"]
    assert call[2:] == ["101_0", "101_1", "102_0", "102_1"]
    assert [run.exists() for run in runs] == [True] * 4 + [False]


def test_tasks_that_a_command_on_another_host_may_still_send_are_not_deleted(desk: Desk, runs: list[Path]) -> None:
    tasks(desk, runs, "PENDING")
    (one,) = (runs[4] / "submissions").glob("*.json")
    one.write_text(json.dumps(json.loads(one.read_text()) | {"submitter": ["another-host", 5, 7]}))
    said = desk.type("cancel", "train")
    assert said.status == 75 and "cannot tell whether" in said.err, said
    assert runs[4].exists() and desk.slurm.count("scancel") == 0


def test_a_cancel_that_fails_deletes_nothing(desk: Desk, runs: list[Path]) -> None:
    tasks(desk, runs, "PENDING")
    desk.slurm.answer("scancel", err="scancel: error: Unable to contact slurm controller\n", status=1)
    assert desk.type("cancel", "train").status != 0
    assert all(run.exists() for run in runs)


def test_after_its_cancel_the_commands_work_on_what_is_left(desk: Desk, runs: list[Path]) -> None:
    tasks(desk, runs, "PENDING")
    assert desk.type("cancel", "train").status == 0
    tasks(desk, runs, "CANCELLED")
    said = desk.type("status", "train", "--json")
    assert [one["run_id"] for one in said.data] == [run.name for run in runs[:4]]
    assert desk.type("cancel", "train").status == 0 and desk.type("wait", "train").status == 1
    again = desk.type("resubmit", "train", "--failed", "--no-check", "--dry-run", "--json")
    assert [one["lr"] for one in again.data] == [*"0123"] and "1 task not submitted again" in again.err


def test_a_set_whose_newest_run_was_deleted_has_its_older_one(desk: Desk, runs: list[Path]) -> None:
    tasks(desk, runs, "FAILED")
    (file,) = (desk.project / ".clusterrun" / "sweeps").glob("*.json")
    data = json.loads(file.read_text())
    data["tasks"][1][1].append("20261121-034501-k3v7qa")
    file.write_text(json.dumps(data))
    again = desk.type("resubmit", "train", "--failed", "--no-check", "--json")
    assert again.status == 0 and len(again.data["tasks"]) == 4, again
    added = [len(task[1]) for task in json.loads(file.read_text())["tasks"]]
    assert added == [2, 3, 2, 2, 1]


def test_recover_of_a_sweep_on_this_machine_submits_all_its_tasks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.submit.protocol.EMPTY_SECONDS", 0.0)
    monkeypatch.setattr("clusterrun.submit.protocol.KEEP_SENDING", 0.0)
    sent: list[tuple[str, str]] = []

    def submit(_: LocalScheduler, submission: Submission) -> JobId:
        if len(sent) == 2 and not finished:
            raise NotDelivered("interrupted")
        sent.append((submission.run_id, submission.dependency))
        return JobId(f"L{len(sent)}")

    finished: list[bool] = []
    monkeypatch.setattr(LocalScheduler, "submit", submit)
    monkeypatch.setattr(LocalScheduler, "find", lambda *_: Answer())
    said = desk.type(*SWEEP[:2], "--scheduler", "local", "--gpus-per-node", "0", "--max-running", "2", *SWEEP[2:])
    assert said.status != 0 and "3 tasks of the sweep were not submitted: " in said.err, said
    sweep_id = said.err.rpartition("--recover ")[2].strip()
    finished.append(True)
    assert sweep_id == sent[0][0] and desk.type("submit", "--recover", sweep_id).status == 0
    assert [dependency for _, dependency in sent] == ["", "", "afterany:L1", "afterany:L2", "afterany:L3"]
    (file,) = (desk.project / ".clusterrun" / "sweeps").glob("*.json")
    assert [run for run, _ in sent] == [task[1][0] for task in json.loads(file.read_text())["tasks"]]


def test_an_array_of_which_one_task_has_the_job_id_is_not_sent_again(desk: Desk, runs: list[Path]) -> None:
    """The command was killed between sbatch and its note; a query has recorded the id in one task since."""
    (file,) = (desk.project / ".clusterrun" / "sweeps").glob("*.json")
    sweep = json.loads(file.read_text())
    (one,) = (runs[0] / "submissions").glob("*.json")
    record = json.loads(one.read_text())
    sweep["jobs"][next(token for token, job in sweep["jobs"].items() if job == "101")] = ""
    file.write_text(json.dumps(sweep))
    one.write_text(json.dumps(record | {"state": "submitting", "job_id": "", "submitter": ["", 0, 0]}))
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller", status=1)
    desk.type("submit", "--recover", file.stem)
    assert json.loads(one.read_text())["job_id"].startswith("101")
