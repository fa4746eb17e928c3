"""What the first node finds out: its address for the other nodes, the time limit, and why Slurm ended the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.node import batch_host
from tests.support.slurm_stand_ins import squeue_line


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of PATH for stand-ins of scontrol and hostname."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_name_that_resolves_is_the_address(programs: Path) -> None:
    program(programs, "scontrol", "echo NodeName=n1 NodeAddr=10.0.0.9 x")
    assert batch_host.head_address("localhost", 1) == "localhost"


def test_a_name_that_leads_to_another_network_gives_way_to_slurms_address(programs: Path) -> None:
    program(programs, "scontrol", "echo NodeName=n1 NodeAddr=127.0.0.1 NodeHostName=n1")
    assert batch_host.head_address("192.0.2.7", 1) == "127.0.0.1"


def test_a_name_stays_if_this_node_has_none_of_the_addresses(programs: Path) -> None:
    program(programs, "scontrol", "echo NodeName=n1 NodeAddr=192.0.2.9 NodeHostName=n1")
    program(programs, "hostname", "exit 1")
    assert batch_host.head_address("192.0.2.7", 2) == "192.0.2.7"


def test_a_loopback_name_is_no_address_for_other_nodes(programs: Path) -> None:
    program(programs, "hostname", "exit 1")
    program(programs, "scontrol", "echo NodeName=n1 NodeAddr=192.0.2.9 NodeHostName=n1")
    assert batch_host.head_address("localhost", 2) == "192.0.2.9"


def test_the_nodes_own_address_is_the_last_choice(programs: Path) -> None:
    program(programs, "scontrol", "exit 1")
    program(programs, "hostname", "echo 192.0.2.11 10.0.0.1")
    assert batch_host.head_address("localhost", 2) == "192.0.2.11"


def test_no_address_at_all_is_an_error(programs: Path) -> None:
    program(programs, "scontrol", "exit 1")
    program(programs, "hostname", "exit 1")
    with pytest.raises(WorkerError, match="localhost has no address that other nodes can reach"):
        batch_host.head_address("localhost", 2)


def test_a_squeue_that_hangs_costs_its_limit_and_no_more(programs: Path) -> None:
    program(programs, "squeue", "exec sleep 60")
    assert batch_host.show_job("7", limit=0.2) == {}


def test_the_end_of_the_time_limit_is_an_epoch_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch_host.end_time({"EndTime": "Unknown"}) == batch_host.end_time({}) == ""
    assert 1_700_000_000 < int(batch_host.end_time({"EndTime": "2026-11-23T02:00:00"})) < 1_900_000_000


def test_when_a_job_was_submitted_and_eligible_is_an_epoch_time_where_slurm_tells() -> None:
    times = batch_host.queue_times({"SubmitTime": "2026-11-23T02:00:00", "EligibleTime": "2026-11-23T02:01:00"})
    assert times.keys() == {"submitted", "eligible"} and times["eligible"] - times["submitted"] == 60


def test_a_node_list_that_nobody_expands_is_named(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "scontrol", "exit 1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    with pytest.raises(WorkerError, match=r"cannot read the node list 'n\[1-2\]'"):
        batch_host.node_names()


STEPD = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-21T10:00:00"


@pytest.mark.parametrize(
    ("line", "due"),
    [
        (f"{STEPD} DUE TO TIME LIMIT ***", "TIME LIMIT"),
        (f"{STEPD} DUE TO PREEMPTION ***", "PREEMPTION"),
        (f"{STEPD} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "NODE FAILURE"),
        (f"{STEPD} ***", ""),
        (f"{STEPD} DUE to SIGNAL Terminated ***", ""),
        (f"[2026-11-21T10:00:00.1] error: {STEPD[19:]} DUE TO JOB REQUEUE ***", "JOB REQUEUE"),
        ("0: said: CANCELLED AT 10 DUE TO TIME LIMIT ***", ""),
    ],
)  # fmt: skip
def test_the_cause_of_a_sigterm_is_in_slurms_line_of_this_start(programs: Path, line: str, due: str) -> None:
    (programs / "answer").write_text(squeue_line({"JobState": "COMPLETING", "Reason": "TimeLimit"}))
    program(programs, "squeue", f"cat {programs}/answer")
    log = programs / "log"
    old = f"{STEPD} DUE TO JOB REQUEUE ***\n"
    log.write_text(f"{old}this start\n{line}\n")
    code = f"from clusterrun.worker.node import batch_host; print(batch_host.cancel_reason('5', {len(old)}))"
    with log.open("a") as err:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=err, text=True, check=True)
    assert done.stdout == f"{('TimeLimit', due)}\n"


TWO_BLOCKS = """case "$*" in
"show hostnames n[1-4]") printf 'n1\\nn2\\nn3\\nn4\\n';;
"show hostnames n[1,3]") printf 'n1\\nn3\\n';;
"show hostnames n[2,4]") printf 'n2\\nn4\\n';;
"show hostnames n[1-4],m") printf 'n1\\nn2\\nn3\\nn4\\nm\\n';;
"show topology node=n1") echo 'BlockName=a BlockIndex=0 Nodes=n[1,3] BlockSize=2'
    echo 'BlockName=all BlockIndex=1 Nodes=n[1-4],m BlockSize=4';;
"show topology node=n2") echo 'BlockName=b BlockIndex=1 Nodes=n[2,4] BlockSize=2';;
*) exit 1;;
esac"""


def test_nodes_of_a_block_are_neighbours_where_the_job_has_segments(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs, "scontrol", TWO_BLOCKS)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    assert batch_host.node_names() == ["n1", "n2", "n3", "n4"]
    monkeypatch.setenv("SLURM_JOB_SEGMENT_SIZE", "2")
    assert batch_host.node_names() == ["n1", "n3", "n2", "n4"]


def test_nodes_keep_their_order_where_slurm_does_not_say_the_block_of_one(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs, "scontrol", TWO_BLOCKS)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4],m")
    monkeypatch.setenv("SLURM_JOB_SEGMENT_SIZE", "2")
    assert batch_host.node_names() == ["n1", "n2", "n3", "n4", "m"]
