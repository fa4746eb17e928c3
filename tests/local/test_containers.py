"""Local jobs of a container: pid namespaces of this machine, whose processes are not seen by the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from clusterrun.base.job import JobId, Outcome
from clusterrun.scheduler.local import cancel, mark
from clusterrun.scheduler.local.devices import Devices
from clusterrun.scheduler.local.processes import Identity, Life
from tests.patience import until

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


def elsewhere(bench, id, **changes):
    """Let a job look as if a machine ran it that shares no locks with this one."""
    bench.change_state(id, supervisor={"boot": "another", "host": "elsewhere"} | changes)
    bench.unlock(id)


def test_a_job_in_another_container_runs_and_keeps_its_devices(bench, container):
    status = bench.status(JobId("L1"))
    assert (status.state, status.outcome) == ("RUNNING", Outcome.RUNNING)
    waiter = bench.submit("true", env=TWO, gpus_per_node=1)
    until(lambda: bench.status(waiter).reason == "Resources")
    (container.run / "go").touch()
    bench.wait(JobId("L1"), "COMPLETED")
    bench.wait(waiter, "COMPLETED")


def test_a_job_whose_container_is_gone_is_over_and_its_devices_are_free(bench, container):
    waiter = bench.submit("true", env=TWO, gpus_per_node=2)
    until(lambda: bench.status(waiter).reason == "Resources")
    container.end()
    status = bench.wait(JobId("L1"), "NODE_FAIL")
    assert status.reason == "the job's supervisor was killed, or its container stopped"
    bench.wait(waiter, "COMPLETED")
    (answer,) = bench.scheduler.cancel([JobId("L1")])
    assert (answer.done, answer.detail) == (False, f"the job had already ended: NODE_FAIL ({status.reason})")


def test_a_cancel_reaches_a_job_in_another_container(bench, container):
    (answer,) = bench.scheduler.cancel([JobId("L1")])
    assert answer.done
    assert bench.status(JobId("L1")).state == "CANCELLED"
    assert list(bench.local.glob("devices/*/cuda*")) == []


def test_a_job_of_a_machine_that_cannot_be_seen_is_given_up_at_a_second_cancel(bench, monkeypatch):
    id = bench.submit(UNTIL_GO, env=TWO, gpus_per_node=2)
    bench.wait(id, "RUNNING")
    real = bench.state_of(id)["supervisor"]
    os.kill(real["pid"], 9)
    monkeypatch.setattr(cancel, "_MARGIN", 0.2)
    elsewhere(bench, id)
    assert bench.status(id).reason == "running on elsewhere; the job's processes are not visible from here"
    (first,) = bench.scheduler.cancel([id])
    assert not first.done
    assert first.detail.endswith("run `clusterrun cancel L1` again after 90 s")
    (soon,) = bench.scheduler.cancel([id])
    assert not soon.done
    alive = bench.local / "L1" / mark.NAME
    os.utime(alive, (time.time() - 100,) * 2)
    (later,) = bench.scheduler.cancel([id])
    assert later.done
    assert "has not responded since" in later.detail
    assert bench.status(id).state == "CANCELLED"


def test_the_devices_of_a_job_that_was_given_up_are_free(tmp_path):
    mine = Identity.mine()
    far = Identity(mine.pid, mine.start, mine.boot, mine.host, "pid:[1]")
    (tmp_path / "L1").mkdir()
    assert Devices(tmp_path, "L1", "a", far).take(("0",), 1) == ("0",)
    assert Devices(tmp_path, "L2", "b", mine).take(("0",), 1) == ()
    (tmp_path / "L1" / "cancelled.json").write_text(json.dumps({"version": 1}))
    assert Devices(tmp_path, "L2", "b", mine).take(("0",), 1) == ("0",)


def test_a_machine_that_was_cut_off_ends_a_job_that_was_given_up(bench):
    id = bench.submit(UNTIL_GO)
    bench.wait(id, "RUNNING")
    mark.request_end(bench.local / "L1" / mark.NAME)
    bench.wait(id, "CANCELLED")


def test_without_locks_a_job_in_another_container_is_not_judged(tmp_path):
    mine = Identity.mine()
    assert mine.life(tmp_path / "none") is Life.ALIVE
    assert Identity(mine.pid, mine.start, mine.boot, mine.host, "pid:[1]").life(tmp_path / "none") is Life.ELSEWHERE
    (tmp_path / "alive").write_bytes(b"")  # made on a file system without locks
    assert Identity(mine.pid, mine.start, mine.boot, "x", "pid:[1]").life(tmp_path / "alive") is Life.ELSEWHERE
    (tmp_path / "alive").write_bytes(b"locked\n")
    assert Identity(mine.pid, mine.start, mine.boot, "x", "pid:[1]").life(tmp_path / "alive") is Life.GONE
    assert Identity(mine.pid, mine.start, "other", "x", mine.namespace).life(tmp_path / "alive") is Life.ELSEWHERE
