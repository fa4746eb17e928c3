"""The measurements of `clusterrun check`: who is paired with whom, names, folders, deadlines, and two real ranks."""

from __future__ import annotations

import math
import os
import resource
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.worker.checks import connect, links, node
from clusterrun.worker.rank.versions import find_versions
from clusterrun.worker.training import facts


@pytest.mark.parametrize("count", range(2, 18))
def test_every_pair_of_few_nodes_is_measured_once_and_rounds_are_disjoint(count: int) -> None:
    rounds = links.pair_rounds(count)
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes))
    if count <= 16:
        found = [pair for pairs in rounds for pair in pairs]
        assert sorted(found) == [(a, b) for a in range(count) for b in range(a + 1, count)]


@pytest.mark.parametrize("count", [17, 32, 33, 100, 1000])
def test_many_nodes_have_few_rounds_in_which_each_node_has_a_partner(count: int) -> None:
    rounds = links.pair_rounds(count)
    assert len(rounds) == math.ceil(math.log2(count))
    assert {node for pairs in rounds for pair in pairs for node in pair} == set(range(count))
    assert all(0 <= a < b < count for pairs in rounds for a, b in pairs)


def test_pairs_are_measured_twice_and_all_ranks_together_once_at_the_end() -> None:
    rounds = links.plan_rounds({"a": [0, 1], "b": [2, 3], "c": [4, 5]}, "gloo", 2)
    assert [kind for kind, _, _ in rounds] == ["node", *["pair"] * 6, "all"]
    assert [kind for kind, _, _ in links.plan_rounds({"a": [0, 1]}, "nccl", 2)] == ["node", "all"]
    assert links.plan_rounds({"a": [0]}, "gloo", 2) == []


def test_names_are_resolved_and_unknown_ones_have_a_reason() -> None:
    found = connect.resolve(["localhost", "no-such-host.invalid"], 20)
    assert set(found["localhost"]) & {"127.0.0.1", "::1"} and isinstance(found["no-such-host.invalid"], str)


def test_name_server_that_does_not_answer_costs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect.socket, "getaddrinfo", lambda *args, **more: time.sleep(5) or [])
    assert connect.resolve(["a", "b"], 0.2) == {}


def test_own_addresses_are_those_that_others_can_reach() -> None:
    found = connect.own_addresses()
    assert not any(address.startswith(("127.", "fe80:")) for address in found)


def test_folder_that_cannot_be_written_has_the_error(tmp_path: Path) -> None:
    good = node.folder(tmp_path)
    assert good["free_gib"] > 0 and good["write_s"] >= 0 and not list(tmp_path.iterdir())
    assert "No such file" in node.folder(tmp_path / "none")["error"]


def test_rate_of_matrix_products_is_measured_on_a_cpu() -> None:
    found = node.gemm(None, 0.1)
    assert found["best"] >= found["worst"] > 0 and found["correct"]


def test_health_of_a_gpu_leaves_out_what_its_driver_does_not_support() -> None:
    nvml: Any = SimpleNamespace(
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1, NVML_VOLATILE_ECC=0, nvmlClocksThrottleReasonHwSlowdown=8,
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: 2,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 9,
        nvmlDeviceGetRemappedRows=lambda handle: (0, 0, 0, 1),
    )  # fmt: skip
    assert node.health(nvml, None) == {
        "ecc_errors": 2, "remap_failed": True, "slowed_down": True,
    }  # fmt: skip
    assert set(node.health(SimpleNamespace(), None).values()) == {None}


class Counters(dict[str, int]):
    """The counters of a store."""

    def add(self, key: str, more: int) -> int:
        self[key] = self.get(key, 0) + more
        return self[key]


def test_connection_that_is_refused_is_named_and_the_other_rank_learns_of_it() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]
    listener = connect.Listener(["127.0.0.1"])
    here = ("127.0.0.1", listener.place[1])
    store = Counters()
    store["group/done"] = 1  # the other rank has come
    assert "cannot connect to n2 (127.0.0.1): Connection refused" in connect.reach(
        store, "group", 2, {"n2": ("127.0.0.1", closed)}
    )
    assert connect.reach(store, "group", 2, {"n1": here}) == "the nodes can connect in only one direction"
    assert connect.reach(Counters({"g/done": 1}), "g", 2, {"n1": here}) == ""
    listener.close()
    assert "Connection refused" in connect.reach(Counters({"h/done": 1}), "h", 2, {"n1": here})


def test_versions_are_those_of_this_node() -> None:
    import torch

    found = find_versions()
    assert found["torch"] == torch.__version__ and found["python"] == sys.version.split()[0]
    assert set(found) == {"python", "torch", "nccl", "driver"}


@pytest.mark.parametrize(
    ("text", "version"), [("from typing import Any\n__version__ = '2.9.0+cu128'\n", "2.9.0+cu128"), ("", "")]
)
def test_version_of_a_torch_that_is_not_loaded_is_the_one_that_an_import_would_find(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, version: str
) -> None:
    first, later = tmp_path / "first", tmp_path / "later-packages"
    for folder, torch in ((first, text), (later, "__version__ = '2.10.0'\n")):
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "__init__.py").touch()
        (folder / "torch" / "version.py").write_text(torch)
    (later / "torch-2.10.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(first), str(later), *sys.path])
    monkeypatch.delitem(sys.modules, "torch")
    assert find_versions()["torch"] == version


def test_share_changes_if_a_sample_is_seen_twice_and_another_not() -> None:
    assert facts.share([0, 1, 2, 3]) == facts.share([3, 1, 2, 0])
    assert facts.share([0, 1, 2, 2]) != facts.share([0, 1, 2, 3])


def test_open_files_and_environment_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from clusterrun.worker.rank.distenv import DistEnv, RunEnv

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    run_dir = tmp_path / "base" / ".clusterrun" / "runs" / "r"
    run_dir.mkdir(parents=True)
    (tmp_path / "base" / "logs").mkdir()
    found = node.measure(DistEnv(0, 0, 1, 1, 0, "n1", "n1", 0, "slurm"), RunEnv(run_dir=run_dir))
    assert found["granted"] == ["0", "3"] and found["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert {name: state["path"] for name, state in found["folders"].items()} == {
        "run": str(run_dir), "logs": str(tmp_path / "base" / "logs"),
    }  # fmt: skip
    assert found["memory_gib"] > 0 and os.path.exists("/proc/meminfo")
