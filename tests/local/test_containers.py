"""Local jobs of a container: pid namespaces of this machine, whose processes are not seen by the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from clusterrun.base.job import JobId, Outcome
from tests.support.patience import until

TWO = {"CUDA_VISIBLE_DEVICES": "0,1"}
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SUBMIT = """
import os, sys, time
from pathlib import Path
from clusterrun.scheduler import Submission
from clusterrun.scheduler.local.client import LocalScheduler
state, script, token, logs, gpus = sys.argv[1:]
run = Path(script).parent
LocalScheduler(Path(state), os.environ, grace=1.0).submit(Submission(run_id=run.name, run_dir=run, token=token,
    script=Path(script), workdir=run, logs=Path(logs), env=dict(os.environ), gpus_per_node=int(gpus)))
time.sleep(300)
"""
UNTIL_GO = "echo > here; until [ -e go ]; do sleep 0.02; done"
pytestmark = pytest.mark.skipif(
    subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0,
    reason="no pid namespace can be made here",
)


class Container:
    """A pid namespace with one local job in it."""

    def __init__(self, bench, body: str) -> None:
        given = bench.submission(body)
        self.run = given.run_dir
        argv = [*NAMESPACE, sys.executable, "-c", SUBMIT, str(bench.state), str(given.script), given.token]
        env = dict(os.environ) | TWO
        self.process = subprocess.Popen([*argv, str(bench.logs), "2"], env=env)
        until((self.run / "here").exists)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def container(bench) -> Iterator[Container]:
    made = Container(bench, UNTIL_GO)
    bench.wait(JobId("L1"), "RUNNING")
    yield made
    made.end()


def test_a_job_in_another_container_runs_and_keeps_its_devices(bench, container):
    status = bench.status(JobId("L1"))
    assert (status.state, status.outcome) == ("RUNNING", Outcome.RUNNING)
    waiter = bench.submit("true", env=TWO, gpus_per_node=1)
    until(lambda: bench.status(waiter).reason == "Resources")
    (answer,) = bench.scheduler.cancel([JobId("L1")])
    assert (answer.done, answer.detail) == (
        False,
        "the job is running in another container of this machine; cancel it there",
    )
    (container.run / "go").touch()
    bench.wait(JobId("L1"), "COMPLETED")
    bench.wait(waiter, "COMPLETED")


def test_a_job_whose_container_is_gone_is_over_and_its_devices_are_free(bench, container):
    waiter = bench.submit("true", env=TWO, gpus_per_node=2)
    until(lambda: bench.status(waiter).reason == "Resources")
    container.end()
    bench.wait(JobId("L1"), "NODE_FAIL")
    bench.wait(waiter, "COMPLETED")
    (answer,) = bench.scheduler.cancel([JobId("L1")])
    assert (answer.done, answer.detail) == (
        False,
        "the job had already ended: NODE_FAIL (the job's supervisor was killed)",
    )
