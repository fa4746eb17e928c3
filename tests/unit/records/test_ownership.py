"""Which job belongs to a run, where the records of a project are stored, and the cluster of a job."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome, covers, one_cluster
from clusterrun.records.ownership import JobIndex
from clusterrun.records.store import Store, find_base
from tests.support.run_records import claim, submitted


def job(id: str, name: str = "train", script: str = "", user: str = "ann", state: str = "RUNNING") -> JobStatus:
    return JobStatus(id=JobId(id), state=state, outcome=Outcome.RUNNING, name=name, script=script, user=user)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


def test_a_renamed_job_is_still_the_runs(store: Store) -> None:
    run = submitted(store, job="101")
    renamed = job("101", "a-name-of-the-site", f"{run.run_dir}/script.sh")
    assert JobIndex([job("7"), renamed]).own(run) is renamed
    claim(run, "101")
    assert JobIndex([job("7"), renamed]).own(run) is renamed


def test_the_id_alone_is_not_enough(store: Store) -> None:
    run = submitted(store, job="101")
    assert JobIndex([job("101", "somebody-elses", "/elsewhere/script.sh")]).of(run) == []


def test_every_copy_is_found_and_the_one_that_claimed_is_the_runs_own(store: Store) -> None:
    run = submitted(store, job="101")
    copies = [job("103", f"x.{run.submission.token[:8]}"), job("101", script=f"{run.run_dir}/script.sh")]
    assert [str(one.id) for one in JobIndex(copies).of(run)] == ["101", "103"]
    claim(run, "103")
    assert JobIndex(copies).own(run) is copies[0]


def test_a_job_of_another_user_is_not_that_of_another_users_run(store: Store) -> None:
    run = replace(submitted(store, job="101"), owner=os.getuid() + 1, user="ann")
    token = run.submission.token[:8]
    assert [one.user for one in JobIndex([job("101", f"x.{token}", user="bob")]).of(run)] == []
    assert [one.user for one in JobIndex([job("101", f"x.{token}", user="ann")]).of(run)] == ["ann"]


@pytest.mark.parametrize(
    ("where", "cluster", "expected"),
    [
        ("lab", "lab", True),
        ("lab", "b", False),
        ("slurm", "lab", False),
        ("lab", "slurm", False),
        ("lab", "", True),
        ("", "lab", False),
        ("", "", True),
        ("a,b", "b", True),
        ("a,b", "c", False),
        ("all", "c", True),
    ],
)
def test_which_clusters_a_shell_can_ask_about(where: str, cluster: str, expected: bool) -> None:
    assert covers(where, cluster) is expected


def test_several_clusters_are_no_cluster_of_a_record() -> None:
    assert [one_cluster(where) for where in ("lab", "", "all", "a,b")] == ["lab", "", "", ""]


def test_records_stand_in_the_project_where_nobody_else_can_change_it(tmp_path: Path) -> None:
    assert find_base(tmp_path, tmp_path / "state") == (tmp_path, "")


def test_records_of_a_project_that_others_can_change_are_kept_in_the_state_folder(tmp_path: Path) -> None:
    project = tmp_path / "my project"
    project.mkdir()
    project.chmod(0o777)
    base, why = find_base(project, tmp_path / "state")
    assert base.parent == tmp_path / "state" / "projects" and base.name.startswith("my_project-")
    assert why == f"{project}: other users have write access"
    store = Store(project, tmp_path / "state")
    store.prepare(False)
    run = submitted(store)
    assert os.listdir(project) == [] and [one.run_id for one in store.all()] == [run.run_id]
    assert store.by_job(JobId("101"))[0].logs == base / "logs"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")  # chown refuses; CI is root
def test_records_of_another_user_in_a_project_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".clusterrun").mkdir()
    os.chown(tmp_path / ".clusterrun", 54321, 54321)
    base, why = find_base(tmp_path, tmp_path / "state")
    assert base != tmp_path and why == f"{tmp_path}/.clusterrun: owned by user 54321"
