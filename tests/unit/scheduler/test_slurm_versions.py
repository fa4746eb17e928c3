"""What Slurm 24.11.5 and 26.05.5 print where 22.05 prints something else, as recorded (names replaced)."""

from __future__ import annotations

import re

import pytest

from clusterrun.logs.locations import parse_locations
from clusterrun.scheduler.slurm.nodes import parse_nodes, parse_partitions
from clusterrun.scheduler.slurm.sacct import parse_sacct
from clusterrun.scheduler.slurm.sbatch import Start, parse_test_only
from clusterrun.scheduler.slurm.scontrol import parse_hold, parse_jobs, parse_show
from clusterrun.scheduler.slurm.squeue import parse_queue, parse_squeue
from clusterrun.system import shell
from clusterrun.why.causes import EndFacts, Line, first_cause
from clusterrun.worker.node.batch_host import CANCELLED
from tests.support.folders import DATA

SLURM_TEXTS = DATA / "slurm"


@pytest.fixture(params=["24.11", "26.05"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def recorded(name: str, version: str) -> str:
    return shell._text((SLURM_TEXTS / f"{name}-{version}.txt").read_bytes())


def test_a_nodes_reason_is_read_though_an_empty_line_stands_before_it(version: str) -> None:
    text = recorded("nodes", version)
    busy, drained = parse_nodes(text)
    assert (drained.name, drained.state, drained.reason, drained.reason_by) == (
        "node4", "IDLE+DRAIN", "bad fan x=1 y", "root"
    )  # fmt: skip
    assert drained.reason_at and busy.reason == ""
    assert (busy.gpus, busy.gpus_used, busy.cpus_used) == ((("", 4),), (("", 3),), 4)
    assert [block.get("NodeName") for block in parse_show(text)] == ["node1", "node4"]


def test_a_start_is_read_with_and_without_a_cluster(version: str) -> None:
    found = parse_test_only(recorded("test-only", version), "")
    assert isinstance(found, Start)
    assert found.at and found.at > 1795348000 and (found.nodes, found.partition) == ("node1", "gpu")


def test_accounting_gives_a_job_that_never_ran_no_start(version: str) -> None:
    jobs = {job.name: job for job in parse_sacct(recorded("sacct", version)) if job.id.task is None}
    cancelled = jobs["can"]
    assert (cancelled.state, cancelled.started, cancelled.nodes, cancelled.elapsed) == ("CANCELLED", None, "", 0)
    assert cancelled.ended and cancelled.submitted
    assert (jobs["fails"].exit_status, jobs["runs"].node_count) == (3, 2)


def test_the_queue_says_what_it_says_on_older_versions(version: str) -> None:
    jobs = {(job.name, job.tasks): job for job in parse_squeue(recorded("squeue", version))}
    assert jobs["can", ""].state == "CANCELLED" and jobs["runs", ""].nodes == "node[1-2]"
    assert jobs["arr", "2-9%2"].reason == "JobArrayTaskLimit"
    assert jobs["big", ""].reason.startswith("Nodes required for job are DOWN")
    queue = parse_queue(recorded("queue", version))
    running = next(job for job in queue if job.state == "RUNNING" and job.nodes == 2)
    assert running.holds("gres/gpu") == 4


def test_a_job_without_a_file_for_its_errors_has_one_file(version: str) -> None:
    blocks = parse_jobs(recorded("jobs", version))
    assert len(blocks) == 3
    found = parse_locations(blocks)
    assert {(str(place.out), place.err) for place in found} == {("/dev/null", None)}
    assert [place.is_pattern for place in found] == [False, False, True]


def test_a_request_and_what_was_allocated_are_two_lines(version: str) -> None:
    running = next(block for block in parse_jobs(recorded("jobs", version)) if block["JobState"] == "RUNNING")
    assert running["ReqTRES"] == running["AllocTRES"] == "cpu=2,mem=4000M,node=2,billing=2,gres/gpu=4"


def test_a_hold_that_is_refused_names_the_job(version: str) -> None:
    assert parse_hold(recorded("hold-theirs", version)).startswith("Invalid user id for job ")


def test_partitions_have_their_limits(version: str) -> None:
    found = {partition.name: partition for partition in parse_partitions(recorded("partitions", version))}
    assert (found["gpu"].default, found["gpu"].time_limit, found["short"].time_limit) == (True, None, 60)


#: What a batch script's own log says of its end, and the word of it that the end record keeps.
DUE = {"limit": "TIME LIMIT", "lost": "NODE FAILURE", "requeue": "JOB REQUEUE", "sigterm": "", "preempt": ""}


def logged(version: str) -> dict[str, str]:
    """The log of a job that ended in each way."""
    _, *parts = re.split(r"^== (\w+)\n", recorded("ended", version), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("way", DUE)
def test_the_job_reads_in_its_log_why_it_was_ended(version: str, way: str) -> None:
    text = logged(version)[way]
    assert CANCELLED.findall(text.encode())[-1].decode() == DUE[way]
    labelled = "".join(f"0: {line}\n" for line in text.splitlines())
    assert CANCELLED.findall(labelled.encode()) == [], "what a rank prints is not Slurm's word"


@pytest.mark.parametrize(("way", "kind"), [("limit", "time-limit"), ("lost", "node-failure"), ("sigterm", "cancelled")])
def test_why_reads_slurms_own_line(version: str, way: str, kind: str) -> None:
    lines = [Line("train_1.err", number, None, text) for number, text in enumerate(logged(version)[way].splitlines())]
    cause = first_cause([lines], EndFacts(state="FAILED", exit_status=143))
    assert (cause.kind, len(cause.evidence) > 0) == (kind, True)
