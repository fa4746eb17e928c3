"""What a launch says of its nodes: Slurm's, the driver's and the watchdog's word counts, a program's does not."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.run_folder.claims import JobIdentity
from clusterrun.run_folder.node_failures import BUS, CHECK, LAUNCH, LOST, MEMORY, SLOW, XID, load
from clusterrun.worker.job import node_evidence
from clusterrun.worker.node import batch_host
from tests.support.patience import HUNG

TOKEN = "abcdefgh22345672"
XID_LINE = "NVRM: Xid (PCI:0000:3b:00): {}, pid=7, words"


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a job of two nodes with two ranks each, whose log has these lines, after a launch with these files."""
    monkeypatch.setenv("CLUSTERRUN_STATE", str(tmp_path / "state"))

    def make(*log: str, nodes: str = "n1 n2", lost: tuple[str, ...] = (), restart: int = 0, launch: str = "0.0",
             began: float | None = None, progress: dict[int, Any] | None = None, **files: Any) -> Any:  # fmt: skip
        text = "".join(f"{line}\n" for line in log).encode()
        monkeypatch.setattr(batch_host, "log_tail", lambda number, most, begin, end=None: text if number == 2 else b"")
        folder = tmp_path / "attempts" / f"{TOKEN}.{launch}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nodes").write_text(nodes.replace(" ", "\n"))
        files["launch"] = {"began": time.time() if began is None else began}
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return SimpleNamespace(
            options=SimpleNamespace(local=False, workers_per_node=2, log_start="0 0"), lost_nodes={*lost}, key=TOKEN,
            identity=JobIdentity("lab", "5", "", restart), name="5", attempt_dir=folder, run_dir=tmp_path,
            record=SimpleNamespace(log_start=[0, 0]), records=(progress or {}, {}),
        )  # fmt: skip

    return make


def seen(tmp_path: Path) -> dict[str, list[tuple[str, str]]]:
    found = load(tmp_path / "state", "lab", time.time())
    return {node: [(one.kind, one.detail) for one in failures] for node, failures in found.items()}


@pytest.mark.parametrize(("line", "expected"), [
    ("2: " + XID_LINE.format(79), {"n2": [(XID, "79")]}),
    (" 1: [12.5] " + XID_LINE.format(48), {"n1": [(XID, "48")]}),
    ("3: RuntimeError: CUDA error: uncorrectable ECC error encountered", {"n2": [(MEMORY, "")]}),
    ("0: NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", {"n1": [(BUS, "")]}),
    ("0: sample: the boy had fallen off the bus", {}),
    ("srun: error: Node failure on n2", {"n2": [(LOST, "")]}),
    ("srun: error: Task launch for StepId=5.0 failed on node n1: Communication connection failure",
     {"n1": [(LAUNCH, "")]}),
    ("2: " + XID_LINE.format(31), {}),  # the program's
    ("2: " + XID_LINE.format(999), {}),
    ("2: Volatile Uncorr. ECC; uncorrectable ECC errors: 0", {}),
    ("9: " + XID_LINE.format(79), {}),  # no such rank
    (XID_LINE.format(79), {}),  # no rank's
    ("0: srun: error: Node failure on n2", {}),  # a program's words
    ("srun: error: Node failure on n7", {}),  # not of this launch
    ("srun: error: Task launch for StepId=5.0 failed on node n1: Requested node configuration is not available", {}),
    ("0: ValueError: the batch has 7 rows", {}),
    ("0: torch.OutOfMemoryError: CUDA out of memory", {}),
    ("srun: error: n1: task 0: Killed", {}),
])  # fmt: skip
def test_a_line_of_a_launch_that_failed(tmp_path: Path, make_job: Any, line: str, expected: dict[str, Any]) -> None:
    node_evidence.note_launch(make_job("0: hello", line), 1)
    assert seen(tmp_path) == expected


def test_a_node_has_one_failure_of_a_launch_and_none_if_the_launch_ran_well(tmp_path: Path, make_job: Any) -> None:
    log = ["2: " + XID_LINE.format(79), "3: " + XID_LINE.format(94), "srun: error: Node failure on n2"]
    node_evidence.note_launch(make_job(*log), 0)
    assert seen(tmp_path) == {}
    node_evidence.note_launch(make_job(*log), 1)
    assert seen(tmp_path) == {"n2": [(XID, "79")]}


def test_nodes_that_did_not_respond_are_lost_also_where_the_job_goes_on(tmp_path: Path, make_job: Any) -> None:
    node_evidence.note_launch(make_job(hang={"cause": "no progress", "lost_nodes": ["n2"]}), 124)
    node_evidence.note_launch(make_job(lost=("n1", "n7"), launch="1.0"), 85)
    assert seen(tmp_path) == {"n2": [(LOST, "")], "n1": [(LOST, "")]}


def test_a_launch_that_never_had_nodes_says_nothing(tmp_path: Path, make_job: Any) -> None:
    job = make_job(lost=("n1",), nodes="")
    node_evidence.note_launch(job, 1)
    assert seen(tmp_path) == {}


def test_a_later_launch_that_ran_well_clears_its_nodes_only(tmp_path: Path, make_job: Any) -> None:
    node_evidence.note_launch(make_job(lost=("n1", "n2")), 1)
    node_evidence.note_launch(make_job(nodes="n2", launch="1.0", began=time.time() - 60), 0)
    assert seen(tmp_path).keys() == {"n1", "n2"}, "it began before"
    for status in (1, 143):
        node_evidence.note_launch(make_job(nodes="n2", launch="2.0", began=time.time() + 2), status)
    assert seen(tmp_path).keys() == {"n1", "n2"}
    node_evidence.note_launch(make_job(nodes="n2", launch="3.0", began=time.time() + 2), 85)
    assert seen(tmp_path).keys() == {"n1"}


def finding(check: str, status: str, *where: str) -> dict[str, Any]:
    return {"status": status, "check": check, "text": "words", "where": where}


@pytest.mark.parametrize(("findings", "gpus", "expected"), [
    ([finding("devices", "broken", "n1")], 8, {"n1"}),
    ([finding("gemm", "differs", "n2")], 8, {"n2"}),
    ([finding("gemm", "differs", "n2")], 0, set()),  # cores may be shared
    ([finding("devices", "differs", "n1")], 8, set()),  # another process
    ([finding("devices", "broken", node) for node in ("n1", "n2", "n3")], 8, set()),  # the request is wrong
    ([finding("disk", "broken", "n1")], 8, set()),
    ([finding("links", "broken", "n1"), finding("links", "broken", "n2")], 8, set()),  # most of them
    ([finding("links", "differs", "n1", "n2")], 8, set()),
    ([{"where": 7}, "words"], 8, set()),
])  # fmt: skip
def test_what_a_check_found(tmp_path: Path, make_job: Any, findings: Any, gpus: int, expected: set[str]) -> None:
    job = make_job(nodes="n1 n2 n3", check={"findings": findings, "gpus_per_node": gpus})
    node_evidence.note_launch(job, 1)
    assert seen(tmp_path).keys() == expected
    assert all(kinds == [(CHECK, kinds[0][1])] for kinds in seen(tmp_path).values())


def test_a_slow_rank_is_remembered_and_is_no_failure_of_hardware(tmp_path: Path, make_job: Any) -> None:
    progress = {rank: {"data_s": 0.01, "compute_s": 0.4 if rank == 3 else 0.2} for rank in range(4)}
    node_evidence.note_launch(make_job(progress=progress), 0)
    assert seen(tmp_path) == {"n2": [(SLOW, "0.51")]}


def test_the_first_node_of_a_start_without_an_end_was_lost(tmp_path: Path, make_job: Any) -> None:
    make_job()
    node_evidence.note_lost_host(make_job(launch="1.0", restart=1))
    assert seen(tmp_path) == {"n1": [(LOST, "")]}


@pytest.mark.parametrize("why", ["end", "requeue", "log", "first", "none"])
def test_a_start_whose_end_is_explained_lost_no_node(tmp_path: Path, make_job: Any, why: str) -> None:
    if why != "none":  # of a start that Slurm requeued before the supervisor
        make_job(
            **(
                {"end": {"status": 1}}
                if why == "end"
                else {"requeue": {"why": "preempted"}}
                if why == "requeue"
                else {}
            )
        )
    line = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-29T01:00:00 DUE TO PREEMPTION ***"
    log = [line] if why == "log" else []
    node_evidence.note_lost_host(make_job(*log, launch="1.0", restart=0 if why == "first" else 1))
    assert seen(tmp_path) == {}


def test_a_home_folder_that_hangs_does_not_keep_the_job(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(node_evidence, "PATIENCE_S", 0.05)
    monkeypatch.setattr(node_evidence.node_failures, "note", lambda *words: release.wait(HUNG))
    node_evidence.note_launch(make_job(lost=("n1",)), 1)
    release.set()


def test_a_bug_is_said_and_ends_nothing(
    make_job: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_evidence, "_of_launch", lambda job, status: 1 / 0)
    node_evidence.note_launch(make_job(), 1)
    assert "cannot remember how the nodes did: ZeroDivisionError" in "".join(capfd.readouterr())
