"""`clusterrun check` on the local scheduler: two nodes of gloo ranks are measured, and Ctrl-C cancels the job."""

from __future__ import annotations

import os
import signal

import pytest

from clusterrun.worker.entry import GPU_DEVICES
from tests.support.installed_command import Job, Site, until
from tests.support.patience import HUNG

TWO = ("--scheduler", "local", "--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2")


def test_nodes_and_links_are_measured_and_the_run_itself_can_be_listed(site: Site) -> None:
    found = site.json("check", *TWO, status=None)  # 1 where other programs slow one of the two down
    assert {finding["status"] for finding in found["findings"]} <= {"differs"}
    assert found["backend"] == "gloo" and found["ranks"] == 4
    kinds = {(link["kind"], tuple(link["nodes"])) for link in found["links"]}
    both = ("local0", "local1")
    assert kinds == {("node", ("local0",)), ("node", ("local1",)), ("pair", both), ("all", both)}
    assert all(link["correct"] and link["busbw"] > 0 for link in found["links"])
    for node in found["nodes"]:
        assert node["tflops"] > 0 and node["memory_gib"] > 0 and node["disk_gib"] > 0 and node["versions"]["torch"]
    (state,) = site.json("status", found["job_id"])
    assert (state["state"], state["name"]) == ("COMPLETED", "check")
    again = site.json("check", found["job_id"], status=None)
    assert again == found


QUICK = ("steps=3", "vocab=300", "seq_len=16", "global_batch_size=8", "eval_every=0")
TRAIN = ("--nodes", "2", "--check", *(word for setting in QUICK for word in ("--set", setting)), "lm")


@pytest.fixture(scope="module")
def trained(site: Site) -> Job:
    """A job that has checked first and then trained."""
    job = site.submit("--gpus-per-node", "0", *TRAIN)
    site.cli("wait", job.id)
    return job


def test_job_that_checks_first_trains_if_no_node_is_broken(trained: Job) -> None:
    assert "0: clusterrun: check: no broken node or link found (" in trained.err.read_text()
    assert "0: step 3/3" in trained.out.read_text()


def test_run_is_compared_with_what_was_requested(site: Site, trained: Job) -> None:
    found = site.json("check", trained.id)
    assert {one["check"]: one["status"] for one in found["findings"]} == dict.fromkeys(
        ("processes", "process group", "nodes", "devices", "backend", "precision", "samples", "steps per epoch",
         "versions"), "ok",
    )  # fmt: skip


@pytest.mark.skipif(any(map(os.path.exists, GPU_DEVICES)), reason="no GPU of this machine is missing")  # CI has none
def test_broken_node_ends_the_job_before_it_trains_and_why_names_it(site: Site) -> None:
    job = site.submit("--gpus-per-node", "1", *TRAIN)
    site.cli("wait", job.id, status=1)
    assert site.state(job)["state"] == "FAILED"
    assert "step" not in job.out.read_text()
    lines = [line for line in job.err.read_text().splitlines() if "check: broken: " in line]
    assert [line.partition(" has ")[0] for line in lines] == [
        f"0: clusterrun: check: broken: {node}" for node in ("local0", "local1")
    ]
    assert "local0 has 0 of 1 GPUs" in site.cli("why", job.id).stdout
    assert not site.json("check", job.id, status=1)["ok"]


def test_ctrl_c_cancels_the_job(site: Site) -> None:
    command = site.start("check", *TWO[:-1], "1")
    until(lambda: site.listed("--state", "RUNNING"), 60, pause=0.2)
    command.send_signal(signal.SIGINT)
    text, _ = command.communicate(timeout=HUNG)
    assert command.returncode == 130, text
    assert "cancelled job L" in text
    until(lambda: not site.listed(), 60, pause=0.2)
