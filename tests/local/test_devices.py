"""CUDA devices among local jobs: counted, claimed, taken over from the dead. No device is needed for it."""

from __future__ import annotations

import os
import signal

import pytest

from clusterrun.scheduler.local.devices import free_devices, visible
from clusterrun.scheduler.local.jobfiles import State, create, write_state
from clusterrun.system.processes import boot_id, host_name
from clusterrun.why.pending import explain_local
from tests.local.conftest import job
from tests.support.opened import Opened

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
    os.kill(bench.state_of(dead)["supervisor"][0], signal.SIGKILL)
    bench.wait(dead, "COMPLETING")
    heir = bench.submit(SHOW, env=TWO, gpus_per_node=2)
    bench.until(lambda: bench.status(heir).reason == "Resources")
    (bench.work / "goL1").touch()
    bench.wait(heir, "COMPLETED")
    assert bench.out(heir) == "cuda [0,1]\n"


def test_a_cancelled_waiter_leaves_the_queue(bench):
    bench.submit(HOLD, env=TWO, gpus_per_node=1)
    bench.wait_file("hereL1")
    large = bench.submit(SHOW, env=TWO, gpus_per_node=2)
    bench.until(lambda: bench.status(large).reason == "Resources")
    assert bench.scheduler.cancel([large])[0].done
    small = bench.submit(SHOW, env=TWO, gpus_per_node=1)
    bench.wait(small, "COMPLETED")
    assert bench.out(small) == "cuda [1]\n"


@pytest.mark.parametrize(
    ("boot", "host", "free"),
    [(boot_id(), host_name(), ["1"]), ("another boot", "elsewhere", ["0", "1"])],
)
def test_a_device_is_taken_while_its_job_lives_on_this_machine(tmp_path, boot, host, free):
    folder, request = create(tmp_path, job("a" * 20))
    with request:
        write_state(folder, State(supervisor=(1, 1), boot=boot, host=host, state="RUNNING", devices=("0",)))
        assert free_devices(tmp_path / "L2", ("0", "1"), set()) == free
    assert free_devices(tmp_path / "L2", ("0", "1"), set()) == ["0", "1"]


def test_a_job_that_is_over_is_not_read_again(tmp_path):
    folder, request = create(tmp_path, job("a" * 20))
    request.close()
    write_state(folder, State(supervisor=(1, 1), boot=boot_id(), host=host_name(), state="COMPLETED"))
    over: set[str] = set()
    assert free_devices(tmp_path / "L2", ("0",), over) == ["0"]
    assert over == {"L1"}
    with Opened() as opened:
        free_devices(tmp_path / "L2", ("0",), over)
    assert folder not in opened


def test_why_names_the_jobs_that_use_the_devices(bench):
    first = bench.submit(HOLD, env=TWO, gpus_per_node=1)
    bench.wait_file("hereL1")
    bench.wait(first, "RUNNING")
    second = bench.submit(SHOW, env=TWO, gpus_per_node=2)
    bench.until(lambda: bench.status(second).reason == "Resources")
    evidence = explain_local(bench.local, bench.status(second), ("0", "1"))
    assert evidence.here == ("the job requests 2 GPUs; this machine has 2", "GPUs in use by local jobs: 0 (job L1)")
    bench.change_state(first, boot="another boot", host="elsewhere")
    evidence = explain_local(bench.local, bench.status(second), ("0", "1"))
    assert evidence.here[1] == "none of your local jobs uses a GPU"
    bench.change_state(first, boot=boot_id(), host=host_name())
