"""CUDA devices among local jobs: counted, claimed, taken over from the dead. No device is needed for it."""

from __future__ import annotations

import os
import signal

import pytest

from clusterrun.scheduler.local.devices import Devices, visible
from clusterrun.scheduler.local.processes import Identity

TWO = {"CUDA_VISIBLE_DEVICES": "0,1"}
SHOW = 'echo "$CLUSTERRUN_LOCAL_DEVICES [$CUDA_VISIBLE_DEVICES]"\n'
HOLD = SHOW + 'echo > "here$CLUSTERRUN_LOCAL_JOB_ID"; until [ -e "go$CLUSTERRUN_LOCAL_JOB_ID" ]; do sleep 0.02; done'


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0,1", ("0", "1")),
        (" 3 , 1", ("3", "1")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("0,0", ("0",)),
        ("GPU-5e2d0f6a,MIG-GPU-1/2/3", ("GPU-5e2d0f6a", "MIG-GPU-1/2/3")),
        ("NoDevFiles", ()),
    ],
)
def test_devices_are_read_as_cuda_reads_them(text, devices):
    assert visible({"CUDA_VISIBLE_DEVICES": text}) == devices


def test_two_jobs_that_want_all_devices_run_one_after_the_other(bench):
    first = bench.submit(HOLD, env=TWO, nodes=2, gpus_per_node=1)
    bench.wait_file("hereL1")
    second = bench.submit(SHOW, env=TWO, gpus_per_node=2)
    bench.until(lambda: bench.status(second).reason == "Resources")
    on_cpu = bench.submit(SHOW, env=TWO)
    bench.wait(on_cpu, "COMPLETED")  # it needs no device, and waits for none
    assert bench.status(second).state == "PENDING"
    (bench.work / "goL1").touch()
    bench.wait(first, "COMPLETED")
    bench.wait(second, "COMPLETED")
    assert bench.status(second).started >= bench.status(first).ended
    assert bench.out(first) == bench.out(second) == "cuda [0,1]\n"
    assert bench.out(on_cpu) == "cpu []\n"
    (folder,) = (bench.local / "devices").iterdir()
    assert [path.name for path in folder.iterdir() if path.name.startswith(("cuda", "."))] == []
    assert list((folder / "queue").iterdir()) == []


def test_jobs_share_the_devices_there_are(bench):
    first = bench.submit(HOLD, env=TWO, gpus_per_node=1)
    bench.wait_file("hereL1")
    second = bench.submit(HOLD, env=TWO, gpus_per_node=1)
    bench.wait_file("hereL2")
    assert (bench.out(first), bench.out(second)) == ("cuda [0]\n", "cuda [1]\n")
    bench.wait(second, "RUNNING")
    assert bench.state_of(second)["devices"] == ["1"]


def test_a_large_job_is_not_overtaken_for_ever(bench):
    bench.submit(HOLD, env=TWO, gpus_per_node=1)
    bench.wait_file("hereL1")
    large = bench.submit(SHOW + "echo large >> order", env=TWO, gpus_per_node=2)
    bench.until(lambda: bench.status(large).reason == "Resources")
    small = bench.submit(SHOW + "echo small >> order", env=TWO, gpus_per_node=1)
    bench.until(lambda: bench.status(small).reason == "Resources")  # a device is free, and not for it
    (bench.work / "goL1").touch()
    bench.wait(small, "COMPLETED")
    assert (bench.work / "order").read_text().split() == ["large", "small"]


@pytest.mark.parametrize("asked", [{"nodes": 3, "gpus_per_node": 1}, {"gpus_per_node": 1, "tasks_per_node": 2}])
def test_more_ranks_than_devices_run_on_the_cpu(bench, asked):
    id = bench.submit(SHOW, env=TWO, **asked)
    bench.wait(id, "COMPLETED")
    assert bench.out(id) == "cpu []\n"


def test_claims_of_a_killed_supervisor_are_taken_over_once_its_processes_are_gone(bench):
    dead = bench.submit("trap '' TERM\n" + HOLD, env=TWO, gpus_per_node=2)
    bench.wait_file("hereL1")
    bench.wait(dead, "RUNNING")
    os.kill(bench.state_of(dead)["supervisor"]["pid"], signal.SIGKILL)
    bench.wait(dead, "COMPLETING")
    heir = bench.submit(SHOW, env=TWO, gpus_per_node=2)
    bench.until(lambda: bench.status(heir).reason == "Resources")
    (bench.work / "goL1").touch()
    bench.wait(heir, "COMPLETED")
    assert bench.out(heir) == "cuda [0,1]\n"


def test_a_cancelled_waiter_leaves_the_queue(bench):
    bench.submit(HOLD, env=TWO, gpus_per_node=2)
    bench.wait_file("hereL1")
    waiter = bench.submit(SHOW, env=TWO, gpus_per_node=1)
    bench.until(lambda: bench.status(waiter).reason == "Resources")
    assert bench.scheduler.cancel([waiter])[0].done
    assert list(bench.local.glob("devices/*/queue/*")) == []


def test_claims_are_all_or_none_and_outlast_no_boot(tmp_path):
    mine = Identity.mine()
    first, second = (Devices(tmp_path, id, id, mine) for id in ("L1", "L2"))
    assert first.take(("0", "1", "2"), 2) == ("0", "1")
    assert second.take(("0", "1", "2"), 2) == ()
    assert second.take(("0", "1", "2"), 1) == ("2",)
    first.release()
    earlier = Identity(mine.pid, mine.start, "an earlier boot", mine.host, mine.namespace)
    assert Devices(tmp_path, "L3", "L3", earlier).take(("0", "1"), 2) == ("0", "1")
    assert Devices(tmp_path, "L4", "L4", mine).take(("0", "1"), 2) == ("0", "1")
