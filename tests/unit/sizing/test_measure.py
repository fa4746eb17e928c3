"""The runs that measure how a job scales: what they request, and what becomes of them after Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun import Cluster
from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.cli.common.submitting import run_to_end
from clusterrun.sizing.batches import GpuPlan, Training, plan_batches
from clusterrun.sizing.measure import measure
from clusterrun.state.reconcile import RunState
from clusterrun.submit.request import SubmitArgs
from clusterrun.terminal.ui import Ui
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
    return plan_batches(Training(samples=1000, micro_batch_size=2, grad_accum_steps=1), counts)


def run_it(cluster: Cluster, counts: Sequence[int]) -> None:
    def run(args: SubmitArgs) -> RunState:
        return run_to_end(Ui("plan"), cluster, args, "measures")

    measure(SubmitArgs(job="lm"), plans(*counts), run, gpus_per_node=2, on_gpus=False, steps=8)


def test_ctrl_c_cancels_the_job_that_nobody_will_read(
    cluster: WatchedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.ends = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_it(cluster, [1, 2])
    assert [str(id) for id in cluster.fake.cancelled] == ["100"] and len(cluster.fake.submissions) == 1
    said = capfd.readouterr().err
    assert "job 100 measures 1 node with 1 rank; Ctrl-C cancels it" in said and "cancelled job 100" in said


def test_a_run_that_fails_ends_the_measurement_with_the_command_that_explains_it(cluster: WatchedCluster) -> None:
    with pytest.raises(ClusterrunError, match="the measurement on 1 rank \\(job 100\\) failed") as error:
        run_it(cluster, [1, 2])
    assert error.value.hint == "clusterrun why 100"
    assert len(cluster.fake.submissions) == 1


def test_gpus_that_do_not_fill_their_nodes_are_refused_before_anything_is_submitted(cluster: WatchedCluster) -> None:
    with pytest.raises(RequestError, match=r"the number of GPUs \(3\) is not a multiple of the GPUs per node \(2\)"):
        run_it(cluster, [1, 3])
    assert not cluster.fake.submissions
