"""submit --ladder: each rung is submitted once, in order, and a failure leaves no rung in the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import Ambiguous, Refused
from clusterrun.base.job import JobId
from clusterrun.cli.common.submitting import How
from clusterrun.cli.submit import submit_ladder
from clusterrun.cluster import Cluster
from clusterrun.run_folder.files import read_json
from clusterrun.submit.request import SubmitArgs
from clusterrun.terminal.ui import Ui
from clusterrun.testing import FakeScheduler
from tests.support.command_desk import Desk, refused

ARGS = {"nodes": 2, "gpus_per_node": 2}


class Failing(FakeScheduler):
    """A scheduler that raises ``error`` at the submission of this number."""

    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__()
        self._number, self._error = number, error

    def submit(self, submission: Any) -> JobId:
        if len(self.submissions) + 1 == self._number:
            raise self._error
        return super().submit(submission)


def ladder(desk: Desk, scheduler: FakeScheduler, *, as_json: bool = False, **options: bool) -> int:
    cluster = Cluster(cwd=desk.project, scheduler=scheduler)
    args = SubmitArgs.of("train.py", **ARGS)
    return submit_ladder(Ui("submit", as_json=as_json), cluster, args, (), How(**options))


def test_three_jobs_each_after_the_one_before(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    scheduler = FakeScheduler()
    assert ladder(desk, scheduler) == 0
    assert [(one.nodes, one.tasks_per_node, one.dependency) for one in scheduler.submissions] == [
        (1, 1, ""), (1, 2, "afterok:100"), (2, 2, "afterok:101"),
    ]  # fmt: skip
    records = [read_json(one.run_dir / "record.json") or {} for one in scheduler.submissions]
    assert [record["rung_before"] for record in records] == ["", records[0]["run_id"], records[1]["run_id"]]
    said = capfd.readouterr()
    assert "rung 2  job 101  2 ranks on 1 node" in said.out and "clusterrun cancel 100 101 102" in said.out
    assert "each rung runs" in said.err


def test_status_of_a_rung_has_the_report_up_to_it(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    scheduler = FakeScheduler()
    ladder(desk, scheduler)
    cluster = Cluster(cwd=desk.project, scheduler=scheduler)
    (state,) = cluster.status(["102"])
    assert state.record is not None
    assert [str(run.job_id) for run in cluster.ladder(state.record)] == ["100", "101", "102"]


@pytest.mark.parametrize("error", [Refused("no such partition"), KeyboardInterrupt()], ids=["refused", "interrupt"])
@pytest.mark.parametrize("number", [2, 3])
def test_a_failed_submission_cancels_the_rungs_before(
    desk: Desk, capfd: pytest.CaptureFixture[str], number: int, error: BaseException
) -> None:
    scheduler = Failing(number, error)
    with pytest.raises(type(error)):
        ladder(desk, scheduler)
    assert [str(id) for id in scheduler.cancelled] == ["100", "101"][: number - 1]
    assert "cancelled" in capfd.readouterr().err


def test_rungs_that_cannot_be_cancelled_are_named(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    scheduler = Failing(3, Refused("no"))
    scheduler.cancel = lambda ids: (_ for _ in ()).throw(Ambiguous("no answer"))  # type: ignore[method-assign]
    with pytest.raises(Refused):
        ladder(desk, scheduler)
    assert "could not cancel jobs 100 101; try again: clusterrun cancel 100 101" in capfd.readouterr().err


def test_a_failed_rung_ends_the_wait_and_cancels_the_rest(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    class FailsSecond(FakeScheduler):
        def query(self, ids: Any = None) -> Any:
            for id, state in ((JobId("100"), "COMPLETED"), (JobId("101"), "FAILED")):
                if id in self.jobs and len(self.jobs) == 3 and not self.jobs[id].is_over:
                    self.set_state(id, state)
                    break
            return super().query(ids)

    scheduler = FailsSecond()
    assert ladder(desk, scheduler, wait=True, as_json=True) == 1
    data = json.loads(capfd.readouterr().out)["data"]
    assert [one["state"] for one in data["rungs"]] == ["COMPLETED", "FAILED", "CANCELLED"]
    assert data["stopped_at"] == "101"
    assert scheduler.cancelled == [JobId("102")]


def test_a_dry_run_prints_every_script_and_writes_nothing(desk: Desk) -> None:
    said = desk.type(
        "submit", "--nodes", "2", "--gpus-per-node", "2", "--ladder", "--dry-run", "--script", "--", "train.py"
    )
    assert said.status == 0 and said.out.count("#!/bin/bash -l\n") == 3 and "would submit 3 rungs of train" in said.err
    assert desk.files().keys() == {"train.py"} and desk.slurm.count("sbatch") == 0


def test_a_job_of_one_process_is_no_ladder(desk: Desk) -> None:
    line, hint = refused(desk, "submit", "--gpus-per-node", "1", "--ladder", "--", "train.py")
    assert line == "--ladder needs a job with more than one process" and hint == "add --nodes N or --gpus-per-node N"


def test_the_rungs_go_to_sbatch_with_the_option_that_cancels_them(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "123\n")
    said = desk.type("submit", "--nodes", "2", "--gpus-per-node", "2", "--ladder", "--json", "--", "train.py")
    assert said.status == 0, said.err
    calls = [call for call in desk.slurm.calls if call[0] == "sbatch"]
    assert ["--kill-on-invalid-dep=yes" in call for call in calls] == [False, True, True]
    scripts = [Path(one["run_dir"], "script.sh").read_text() for one in said.data]
    assert [text.count('#SBATCH --dependency="afterok:123"') for text in scripts] == [0, 1, 1]
