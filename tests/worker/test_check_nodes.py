"""Each broken thing of a node gives one finding that names it; nodes in order give none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.compare.check_report import load_report, overall, rows
from clusterrun.records.store import Store
from clusterrun.run_folder import launches
from clusterrun.run_folder.check_findings import BROKEN, DIFFERS, UNKNOWN, Finding
from clusterrun.worker.checks import report
from clusterrun.worker.checks.judge_nodes import judge_nodes
from clusterrun.worker.checks.measured import Link, Tries
from tests.support.run_records import submitted

NODES = ("n1", "n2", "n3")
GPU = {"name": "H100", "uuid": "u", "free_gib": 79.0, "total_gib": 80.0, "ecc_errors": 0, "slowed_down": False}


def document(rank: int, **changes: Any) -> dict[str, Any]:
    """What the first rank of a node in order writes; `changes` replace keys."""
    node = NODES[rank]
    return {
        "version": 1, "rank": rank, "local_rank": 0, "node": node, "host": node, "name": node, "stage": "done",
        "errors": {}, "links": [], "device": None, "backend": "gloo", "cuda": "", "visible": 0, "granted": ["0", "1"],
        "memory_gib": 100.0, "nofile": 65536, "addresses": [f"10.0.0.{rank + 1}"],
        "resolved": {name: [f"10.0.0.{i + 1}"] for i, name in enumerate(NODES)},
        "versions": {"python": "3.12.1", "torch": "2.9.0", "nccl": "", "driver": ""},
        "folders": {"run": {"path": "/r", "free_gib": 50.0, "write_s": 0.01}},
        "clock": 1000.0, "gemm": {"best": 1.0, "worst": 0.8, "correct": True},
    } | changes  # fmt: skip


def found(changes: dict[str, Any], gpus: int = 0) -> list[Finding]:
    """The findings if the second of three nodes has these changes."""
    return judge_nodes([document(i, **(changes if i == 1 else {})) for i in range(3)], NODES, gpus)


def test_nodes_in_order_give_no_finding() -> None:
    assert found({}) == []


@pytest.mark.parametrize(
    ("changes", "check", "text"),
    [
        ({"gemm": {"best": 0.1, "worst": 0.1, "correct": True}}, "gemm",
         "rank 1 on n2: 0.1 TFLOP/s; median of the other ranks: 1"),
        ({"gemm": {"best": 1.0, "worst": 0.8, "correct": False}}, "gemm",
         "a matrix multiplication on n2 gave a wrong result"),
        ({"memory_gib": 10.0}, "memory", "n2 has 10.0 GiB of free memory; the median of all nodes is 100.0 GiB"),
        ({"nofile": 256}, "open files", "n2 limits a process to fewer than 1024 open files"),
        ({"clock": 969.8}, "clock", "the clock of n2 is 30.2 s behind the clock of n1"),
        ({"folders": {"run": {"path": "/r", "error": "Read-only file system"}}}, "disk",
         "n2, /r: the folder is not writable (Read-only file system)"),
        ({"folders": {"run": {"path": "/r", "free_gib": 0.1, "write_s": 0.1}}}, "disk", "n2, /r: only 0.10 GiB free"),
        ({"folders": {"run": {"path": "/r", "free_gib": 9.0, "write_s": 40.0}}}, "disk",
         "n2, /r: writing 1 MiB took 40 s"),
        ({"versions": {"python": "3.12.1", "torch": "2.8.0", "nccl": "", "driver": ""}}, "torch version",
         "2.9.0 on n1, n3; 2.8.0 on n2"),
        ({"gpu": GPU | {"ecc_errors": 3}, "device": 0}, "devices", "n2, GPU 0: 3 uncorrected ECC errors"),
        ({"gpu": GPU | {"slowed_down": True}, "device": 0}, "devices",
         "n2, GPU 0: the hardware is throttling this GPU (heat or power)"),
        ({"gpu": GPU | {"free_gib": 40.0}, "device": 0}, "devices",
         "n2, GPU 0: another process is using 40.0 GiB of GPU memory"),
        ({"gpu": {"error": "CUDA error: out of memory"}, "device": 0}, "devices",
         "n2, GPU 0: cannot be opened (CUDA error: out of memory)"),
        ({"stage": "links"}, "ranks", "n2 stopped during the links check"),
        ({"errors": {"join": "cannot reach the store"}, "stage": "done"}, "join",
         "the join check failed on n2: cannot reach the store"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_node_is_named(changes: dict[str, Any], check: str, text: str) -> None:
    (finding,) = found(changes)
    assert (finding.check, finding.where) == (check, ("n2",))
    assert finding.text == text


def test_what_a_node_found_left_behind_is_a_finding() -> None:
    left = {"status": BROKEN, "check": "left behind", "text": "n2: process 31 …", "action": "kill 31", "where": ["n2"]}
    assert found({"left_behind": [left]}) == [Finding(BROKEN, "left behind", "n2: process 31 …", "kill 31", ("n2",))]


def test_small_differences_are_no_findings() -> None:
    changes = {
        "gemm": {"best": 0.7, "worst": 0.2, "correct": True},
        "memory_gib": 60.0,
        "clock": 1001.5,
    }
    assert found(changes) == []
    assert found({"gpu": GPU | {"ecc_errors": None, "slowed_down": None, "nvml": "no driver"}, "device": 0}) == []


def test_missing_gpu_is_named_and_torch_without_cuda_is_unknown() -> None:
    assert [(one.status, one.where) for one in found({"granted": ["0"]}, gpus=2)] == [
        (BROKEN, ("n2",)), (UNKNOWN, ()),
    ]  # fmt: skip
    seen = {"cuda": "12.4", "visible": 2, "granted": None}
    ranks = [document(i, **(seen | {"visible": 2 - (i == 1)})) for i in range(3)]
    (finding,) = judge_nodes(ranks, NODES, 2)
    assert finding.text == "n2 has 1 of 2 GPUs"


def test_gpus_that_a_site_shows_one_to_each_task_are_counted() -> None:
    one = {"cuda": "12.4", "visible": 1, "granted": ["0"], "device": 0}
    first = document(0, **one, gpu=GPU | {"uuid": "a"})
    second = {**first, "rank": 1, "local_rank": 1, "gpu": GPU | {"uuid": "b"}}
    assert judge_nodes([first, second], ("n1", "n1"), 2) == []


def test_wrong_address_is_named_with_the_nodes_that_got_it() -> None:
    wrong = {name: [f"10.0.0.{i + 1}"] for i, name in enumerate(NODES)} | {"n3": ["10.0.0.99"]}
    ranks = [document(i, **({"resolved": wrong} if i < 2 else {})) for i in range(3)]
    (finding,) = judge_nodes(ranks, NODES, 0)
    assert finding.where == ("n3",)
    assert finding.text == "n3 resolves to 10.0.0.99 on n1, n2; n3 has the address 10.0.0.3"


def test_own_name_on_loopback_is_in_order_but_not_that_of_another_node() -> None:
    answers = {name: [f"10.0.0.{i + 1}"] for i, name in enumerate(NODES)}
    assert found({"resolved": answers | {"n2": ["127.0.1.1"]}}) == []
    (finding,) = found({"resolved": answers | {"n1": ["127.0.0.1"]}})
    assert finding.text.startswith("n1 resolves to 127.0.0.1 on n2")


def test_site_whose_node_names_do_not_resolve_is_unknown() -> None:
    nothing = dict.fromkeys(NODES, "Name or service not known")
    ranks = [document(i, resolved=nothing) for i in range(3)]
    (finding,) = judge_nodes(ranks, NODES, 0)
    assert (finding.status, finding.check) == (UNKNOWN, "names")


def test_ranks_without_a_result_are_named_with_their_node() -> None:
    ranks = [document(i) for i in (0, 2)]
    (finding,) = judge_nodes(ranks, NODES, 0)
    assert (finding.text, finding.where) == ("no result from rank 1 on n2", ("n2",))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"gemm": {"best": 0.1, "worst": 0.1, "correct": True}}, DIFFERS),
        ({"gemm": {"best": 1.0, "worst": 0.8, "correct": False}}, BROKEN),
        ({"folders": {"run": {"path": "/r", "free_gib": 0.1, "write_s": 0.1}}}, DIFFERS),
        ({"folders": {"run": {"path": "/r", "error": "Read-only file system"}}}, BROKEN),
        ({"gpu": GPU | {"slowed_down": True}, "device": 0}, DIFFERS),
        ({"gpu": GPU | {"remap_failed": True}, "device": 0}, BROKEN),
        ({"errors": {"gemm": "CUDA error"}}, BROKEN),
    ],
)
def test_slow_is_not_broken(changes: dict[str, Any], status: str) -> None:
    assert [one.status for one in found(changes)] == [status]


def test_report_has_a_row_for_each_node_and_survives_json() -> None:
    pair = Link("pair", ("n1", "n2"), 2, 1 << 20, Tries(105e6, 50e6))
    first = json.loads(json.dumps(document(0, links=[pair._asdict()])))
    made = report.make([first, document(2)], NODES, 0)
    assert [one["text"] for one in made["findings"]] == ["no result from rank 1 on n2"] and not made["ok"]
    assert [(node["node"], node["busbw_between_nodes"], node["disk_gib"]) for node in made["nodes"]] == [
        ("n1", 105e6, 50.0), ("n3", None, 50.0),
    ]  # fmt: skip
    (link,) = json.loads(json.dumps(made))["links"]
    assert (link["nodes"], link["busbw"], link["correct"]) == (["n1", "n2"], 105e6, True)


def test_the_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    link = {
        "kind": "all",
        "nodes": [*NODES],
        "ranks": 3,
        "size": 4096,
        "busbw": [2e9, 1e9],
        "correct": True,
        "error": "",
    }
    written = report.make([document(0, links=[link], nofile=256), document(1), document(2)], NODES, 0)
    run = submitted(Store(tmp_path, tmp_path / "state"))
    file = launches.folder_of(run.run_dir, run.submission.token, 0, 0) / "check.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(written))
    found = load_report(run)
    assert found is not None and [one["check"] for one in found["findings"]] == ["open files"] and found["ok"] is False
    assert [row[0] for row in rows(found)] == [*NODES]
    assert overall(found) == "all-reduce over 3 ranks (gloo): 4 KiB at 2.0 GB/s"
    file.write_text('{"ok": 1, "findings": [7, {"status": 5}], "nodes": [{"node": []}], "links": {}}')
    found = load_report(run)
    assert found is not None and found["ok"] is False and len(found["findings"]) == 1 and overall(found) == ""
