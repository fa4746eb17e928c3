"""submit --after, --after-ok and --chain: a job waits for others, given by id or name."""

from __future__ import annotations

import json
import os
from pwd import getpwuid
from typing import Any

import pytest

from clusterrun.cli.common.submitting import How
from clusterrun.cli.submit import submit_chain
from clusterrun.cluster import Cluster
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.submit.request import SubmitArgs
from clusterrun.terminal.ui import Ui
from clusterrun.testing import FakeScheduler
from tests.support.command_desk import Desk, refused
from tests.support.listed_jobs import rows, run, run_row
from tests.support.run_records import attempt, claim, end, submitted

ME = getpwuid(os.getuid()).pw_name
DRY = ("--gpus-per-node", "1", "--dry-run", "--no-check", "--script", "--", "train.py")
KILL = "--kill-on-invalid-dep=yes"


@pytest.fixture
def runs(desk: Desk) -> list[RunRecord]:
    """Two active runs, train1 and train2, with the jobs 101 and 102; and job 7 of another tool."""
    store = Store(desk.project, desk.state)
    found = [run(store, number) for number in (1, 2)]
    desk.slurm.answer("squeue", rows(*(run_row(one, u=ME) for one in found), {"i": "7", "j": "theirs.sh", "u": ME}))
    return found


def over(desk: Desk, status: int) -> None:
    """Job 103, train3, has ended with this exit status."""
    third = run(Store(desk.project, desk.state), 3)
    claim(third)
    attempt(third, end=end(status))


def dependency(script: str) -> str:
    found = [line for line in script.splitlines() if "--dependency" in line]
    return found[0].partition("=")[2].strip('"') if found else ""


@pytest.mark.parametrize(("words", "expected"), [
    (("--after", "101"), "afterany:101"),
    (("--after", "train1"), "afterany:101"),
    (("--after-ok", "last"), "afterok:102"),
    (("--after-ok", "theirs.sh"), "afterok:7"),
    (("--after-ok", "101", "--after-ok", "train2", "--after", "7"), "afterany:7,afterok:101,afterok:102"),
    (("--dependency", "singleton", "--after", "101"), "singleton,afterany:101"),
])  # fmt: skip
@pytest.mark.usefixtures("runs")
def test_a_job_waits_for_others(desk: Desk, words: tuple[str, ...], expected: str) -> None:
    said = desk.type("submit", *words, *DRY)
    assert said.status == 0, said.err
    assert dependency(said.out) == expected


@pytest.mark.usefixtures("runs")
def test_a_resubmitted_job_waits_too(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "123\n")
    assert desk.type("submit", "--gpus-per-node", "1", "--no-check", "--", "train.py").status == 0
    said = desk.type("resubmit", "123", "--after", "101", "--dry-run", "--no-check", "--script")
    assert said.status == 0 and dependency(said.out) == "afterany:101"


@pytest.mark.usefixtures("runs")
def test_a_job_that_waits_for_success_is_cancelled_after_a_failure(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "123\n")
    for option, cancels in (("--after-ok", True), ("--after", False)):
        desk.slurm.forget()
        assert desk.type("submit", option, "101", "--gpus-per-node", "1", "--no-check", "--", "train.py").status == 0
        (call,) = [call for call in desk.slurm.calls if call[0] == "sbatch"]
        assert (KILL in call) is cancels


@pytest.mark.parametrize(("option", "status"), [("--after", 0), ("--after", 1), ("--after-ok", 0)])
@pytest.mark.usefixtures("runs")
def test_a_condition_that_is_met_already_is_left_out(desk: Desk, option: str, status: int) -> None:
    over(desk, status)
    said = desk.type("submit", option, "103", *DRY)
    assert said.status == 0 and dependency(said.out) == ""
    assert "job 103 has already ended; not waiting for it" in said.err


@pytest.mark.parametrize(("status", "verb"), [(1, "resubmit"), (85, "resume")])
@pytest.mark.usefixtures("runs")
def test_success_that_can_no_longer_come_is_refused(desk: Desk, status: int, verb: str) -> None:
    over(desk, status)
    said = desk.type("submit", "--after-ok", "train3", *DRY)
    assert (said.status, said.out) == (2, "")
    assert "job 103 is " in said.err and "would never start" in said.err and f"clusterrun {verb} 103" in said.err


@pytest.mark.usefixtures("runs")
def test_an_unknown_job_is_refused(desk: Desk) -> None:
    message, hint = refused(desk, "submit", "--after", "trian1", *DRY, status=4, calls=True)
    assert "no job is named trian1" in message and "train1" in hint


@pytest.mark.usefixtures("runs")
def test_conditions_of_which_any_one_is_enough_cannot_be_added_to(desk: Desk) -> None:
    either = ("--dependency", "afterok:1?afterok:2")
    message, _ = refused(desk, "submit", *either, "--after", "101", *DRY, calls=True)
    assert "--dependency afterok:1?afterok:2 starts the job as soon as one condition is met" in message


@pytest.mark.usefixtures("runs")
def test_a_job_on_another_cluster_cannot_be_waited_for(desk: Desk) -> None:
    store = Store(desk.project, desk.state)
    submitted(store, 4, cluster="other", user=ME)
    message, hint = refused(desk, "submit", "--after", "train4", *DRY, calls=True)
    assert "on cluster desk cannot wait for job 104 on cluster other" in message and "clusterrun wait 104" in hint


@pytest.mark.usefixtures("runs")
def test_an_external_job_on_another_cluster_cannot_be_waited_for(desk: Desk) -> None:
    desk.set(SLURM_CLUSTERS="desk,other")
    said = desk.type("submit", "--after", "7;other", *DRY)
    assert said.status == 2 and "cannot wait for job 7 on cluster other" in said.err


# -- a chain -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(desk: Desk) -> list[SubmitArgs]:
    """Three job files."""
    for name in ("a", "b", "c"):
        desk.write(f"{name}.toml", 'script = "train.py"\ngpus-per-node = 1\n')
    return [SubmitArgs(job=f"{name}.toml") for name in ("a", "b", "c")]


def chain(desk: Desk, scheduler: FakeScheduler, jobs: list[SubmitArgs], *, as_json: bool = False, **how: bool) -> int:
    cluster = Cluster(cwd=desk.project, scheduler=scheduler)
    return submit_chain(Ui("submit", as_json=as_json), cluster, jobs, (), How(**how))


def test_each_job_of_a_chain_waits_for_the_one_before(
    desk: Desk, files: list[SubmitArgs], capfd: pytest.CaptureFixture[str]
) -> None:
    scheduler = FakeScheduler()
    assert chain(desk, scheduler, files) == 0
    assert [one.dependency for one in scheduler.submissions] == ["", "afterok:100", "afterok:101"]
    out = capfd.readouterr().out
    assert "Submitted 3 jobs" in out and "clusterrun cancel 100 101 102" in out


def test_a_job_of_a_chain_keeps_its_own_dependency(desk: Desk, files: list[SubmitArgs]) -> None:
    desk.write("b.toml", 'script = "train.py"\ngpus-per-node = 1\ndependency = "singleton"\n')
    scheduler = FakeScheduler()
    assert chain(desk, scheduler, files) == 0
    assert [one.dependency for one in scheduler.submissions] == ["", "singleton,afterok:100", "afterok:101"]


def test_a_bad_job_of_a_chain_is_found_before_the_first_is_submitted(desk: Desk, files: list[SubmitArgs]) -> None:
    desk.write("c.toml", 'script = "train.py"\nnodse = 1\n')
    said = desk.type("submit", "a.toml", "b.toml", "c.toml", "--chain")
    assert said.status == 2 and "nodse" in said.err and desk.slurm.count("sbatch") == 0


def test_the_states_of_a_chain_are_printed_at_its_end(
    desk: Desk, files: list[SubmitArgs], capfd: pytest.CaptureFixture[str]
) -> None:
    class SecondFails(FakeScheduler):
        def query(self, ids: Any = None) -> Any:
            for job, state in zip(self.jobs, ("COMPLETED", "FAILED"), strict=False):
                if len(self.jobs) == 3 and not self.jobs[job].is_over:
                    self.set_state(job, state)
                    break
            return super().query(ids)

    assert chain(desk, SecondFails(), files, wait=True, as_json=True) == 1
    data = json.loads(capfd.readouterr().out)["data"]
    assert [one["state"] for one in data] == ["COMPLETED", "FAILED", "CANCELLED"]


def test_a_dry_run_of_a_chain_writes_nothing(desk: Desk, files: list[SubmitArgs]) -> None:
    before = desk.files().keys()
    said = desk.type("submit", "a.toml", "b.toml", "--chain", "--dry-run", "--no-check")
    assert said.status == 0 and "would submit 2 jobs, each starting after the previous one succeeds" in said.err
    assert desk.files().keys() == before and desk.slurm.count("sbatch") == 0


@pytest.mark.parametrize(("words", "expected"), [
    (("a.toml", "b.toml"), "clusterrun submit a.toml b.toml --chain"),
    (("torchrun", "train.py"), "clusterrun submit -- torchrun train.py"),
    (("a.toml", "--chain"), "--chain needs at least two job files"),
    (("a.toml", "b.toml", "--chain", "--", "train.py"), "--chain takes job files, not a script"),
    (("a.toml", "b.toml", "--chain", "--ladder"), "cannot be combined"),
    (("--recover", "20261121-000001-k3v7qa", "--dry-run"), "--recover cannot be combined with a job, --dry-run"),
])  # fmt: skip
@pytest.mark.usefixtures("files")
def test_mistyped_chains_are_refused(desk: Desk, words: tuple[str, ...], expected: str) -> None:
    assert expected in "\n".join(refused(desk, "submit", *words))


def test_a_job_whose_end_nobody_knows_is_no_success(desk: Desk) -> None:
    claim(run(Store(desk.project, desk.state)))  # it started, and left the queue without an end record
    said = desk.type("submit", "--after-ok", "101", *DRY)
    assert (said.status, said.out) == (75, "") and "it is not known how job 101 ended" in said.err
    assert dependency(desk.type("submit", "--after", "101", *DRY).out) == "afterany:101"


@pytest.mark.parametrize(("typed", "forgotten"), [
    ("afterok:9", "job 9 "), ("afterany:7:9,afterok:12_3", "job 9, 12 "), ("afterok:7", ""), ("singleton", ""),
])  # fmt: skip
@pytest.mark.usefixtures("runs")
def test_a_dependency_on_a_job_that_slurm_has_forgotten_gets_a_warning(desk: Desk, typed: str, forgotten: str) -> None:
    said = desk.type("submit", "--dependency", typed, "--gpus-per-node", "1", "--dry-run", "--", "train.py")
    assert (f"Slurm does not know {forgotten}(any more)" in said.err) == bool(forgotten), said
    assert said.status == 0
