"""Python callables go submitit's pickling way through the same script."""

from __future__ import annotations

from clusterrun.cluster import Cluster
from clusterrun.fields import Value

CODE = """
import os

def add(a, b):
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), a + b
"""


def test_a_callable_runs_once_per_rank_and_its_values_come_back(lab, tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)
    from sums import add

    cluster = Cluster(cwd=tmp_path, environ={**lab.full_env(), "CLUSTERRUN_STATE": str(tmp_path / "state")})
    flags = {
        "nodes": Value(2, "test"),
        "gpus-per-node": Value(0, "test"),
        "env": Value({"PYTHONPATH": str(tmp_path)}, "test"),
    }

    job = cluster.submit_function(add, 2, flags=flags, b=3)

    assert job.results() == [(0, 2, 5), (1, 2, 5)]
    assert job.paths.stdout == tmp_path / "logs" / f"train_{job.job_id}.out"
    assert job.paths.stdout.exists()
