"""Python callables go submitit's pickling way through the same script, and only their owner's pickles are opened."""

from __future__ import annotations

import os
import pickle

import pytest
from submitit.core import utils

from clusterrun.base.errors import RequestError
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.scheduler.slurm.executor import load_own
from clusterrun.worker.rank import callable as worker_callable

CODE = """
import os

def add(a, b):
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), a + b
"""


@pytest.fixture
def submit(lab, tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)
    from sums import add

    cluster = Cluster(cwd=tmp_path, environ={**lab.full_env(), "CLUSTERRUN_STATE": str(tmp_path / "state")})

    def submit(*setup):
        flags = {
            "nodes": Value(2, "test"),
            "gpus-per-node": Value(0, "test"),
            "env": Value({"PYTHONPATH": str(tmp_path)}, "test"),
            "setup": Value(list(setup), "test"),
        }
        return cluster.submit_function(add, 2, flags=flags, b=3)

    return submit


def test_a_callable_runs_once_per_rank_and_its_values_come_back(submit, tmp_path):
    before = os.umask(0o002)
    try:
        job = submit()
    finally:
        os.umask(before)
    assert job.results() == [(0, 2, 5), (1, 2, 5)]
    assert job.paths.stdout == tmp_path / "logs" / f"train_{job.job_id}.out"
    assert job.paths.stdout.exists()
    folder = job.paths.folder
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o600"}
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")  # chown refuses; CI is root
def test_a_pickle_of_another_user_is_not_opened_by_the_ranks(submit, tmp_path):
    until = "until ls *_submitted.pkl; do sleep 0.1; done"
    plant = f"cd $CLUSTERRUN_RUN_DIR/submitit; {until}; chown nobody *_submitted.pkl; cd -"
    job = submit(plant)
    job.wait()
    assert "refusing to unpickle" in job.paths.stderr.read_text()
    # the first rank to fail ends the others, which may then leave no result
    assert any("PermissionError" in str(error) for error in (job.task(rank).exception() for rank in range(2)))


def test_calls_of_a_function_are_one_array_and_results_and_exceptions_come_back_in_order(lab, tmp_path):
    cluster = Cluster(cwd=tmp_path, environ={**lab.full_env(), "CLUSTERRUN_STATE": str(tmp_path / "state")})

    def divide(number):
        return os.environ["SLURM_ARRAY_JOB_ID"], 6 / number

    before = os.umask(0o002)
    try:
        first, wrong, last = cluster.map(divide, [1, 0, 3], gpus_per_node=0, return_exceptions=True)
    finally:
        os.umask(before)
    assert first[1:] == (6.0,) and last[1:] == (2.0,) and first[0] == last[0]
    assert isinstance(wrong, ZeroDivisionError) and f"in job {first[0]}_1:" in wrong.__notes__[0]
    folders = list(tmp_path.glob(".clusterrun/runs/*/submitit"))
    assert {oct(path.stat().st_mode & 0o777) for path in folders} == {"0o700"} and len(folders) == 3
    assert {oct(path.stat().st_mode & 0o777) for one in folders for path in one.iterdir()} == {"0o600"}


class Planted:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("load", [load_own, worker_callable.load])
@pytest.mark.parametrize("how", ["group", "others", "owner", "link", "pipe"])
def test_a_file_that_another_user_could_have_written_is_not_unpickled(load, how, tmp_path):
    path, ran = tmp_path / "result.pkl", tmp_path / "ran"
    path.write_bytes(pickle.dumps(("success", Planted(ran))))
    path.chmod({"group": 0o620, "others": 0o602}.get(how, 0o600))
    if how == "owner":
        if os.geteuid() != 0:
            pytest.skip("gives a file to another user")  # chown refuses; CI is root
        os.chown(path, 65534, 65534)
    elif how == "link":
        path.rename(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    with pytest.raises((RequestError, OSError)):
        load(path)
    assert not ran.exists()


def test_an_own_file_is_unpickled(tmp_path):
    worker_callable.dump(("success", 7), tmp_path / "result.pkl")
    assert load_own(tmp_path / "result.pkl") == worker_callable.load(tmp_path / "result.pkl") == ("success", 7)


def test_what_is_replaced_in_submitit_is_what_it_calls():
    """submission.process_job and DelayedSubmission look the two up in `utils` at each call."""
    from submitit.core import submission

    assert {"pickle_load", "cloudpickle_dump"} <= vars(utils).keys()
    assert "utils.cloudpickle_dump(" in open(submission.__file__).read()
    assert "pickle_load" in utils.DelayedSubmission.load.__func__.__code__.co_names
    assert "cloudpickle_dump" in utils.DelayedSubmission.dump.__code__.co_names
