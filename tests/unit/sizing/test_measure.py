"""The runs that measure how a job scales: what they request, and what becomes of them after Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun import Cluster
from clusterrun.errors import ClusterrunError, RequestError
from clusterrun.sizing.batches import BatchSettings, GpuPlan, Training, plan_batches
from clusterrun.sizing.measure import measure
from clusterrun.submit.request import SubmitArgs
from clusterrun.testing import FakeScheduler


class WatchedCluster(Cluster):
    """A cluster whose jobs end in ``ends`` as soon as they are waited for; an exception is raised."""

    fake: FakeScheduler
    ends: str | BaseException = "FAILED"

    def wait(self, runs: Sequence[Any], *_: Any, **__: Any) -> list[Any]:
        if isinstance(self.ends, BaseException):
            raise self.ends
        for run in runs:
            self.fake.set_state(run.job_id, self.ends, exit_status=1)
        return self.states(runs)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedCluster:
    monkeypatch.chdir(tmp_path)
    fake = FakeScheduler()
    made = WatchedCluster(scheduler=fake)
    made.fake = fake
    return made


def plans(*counts: int) -> list[GpuPlan]:
    return plan_batches(Training(samples=1000, batches=BatchSettings(micro_batch=2, grad_accum=1)), counts)


def run_it(cluster: Cluster, counts: Sequence[int], notes: list[str]) -> None:
    args = SubmitArgs(job="lm", command=(), flags={}, profile=None)
    measure(cluster, args, plans(*counts), gpus_per_node=2, steps=8, notify=notes.append)


def test_ctrl_c_cancels_the_job_that_nobody_will_read(cluster: WatchedCluster) -> None:
    cluster.ends = KeyboardInterrupt()
    notes: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_it(cluster, [1, 2], notes)
    assert [str(id) for id in cluster.fake.cancelled] == ["100"] and len(cluster.fake.submissions) == 1
    assert notes == ["job 100 measures 1 rank on 1 node", "cancelled job 100"]


def test_a_run_that_fails_ends_the_measurement_with_the_command_that_explains_it(cluster: WatchedCluster) -> None:
    with pytest.raises(ClusterrunError, match="job 100, which measures 1 rank, failed") as error:
        run_it(cluster, [1, 2], [])
    assert error.value.hint == "clusterrun why 100"
    assert len(cluster.fake.submissions) == 1


def test_gpus_that_do_not_fill_their_nodes_are_refused_before_anything_is_submitted(cluster: WatchedCluster) -> None:
    with pytest.raises(RequestError, match="3 GPUs are not a whole number of nodes with 2"):
        run_it(cluster, [1, 3], [])
    assert not cluster.fake.submissions
