"""Which nodes a launch uses after nodes were lost."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.job import hung_step, spares

NODES = ["n1", "n2", "n3", "n4"]


def job(folder: Path = Path(), lost: tuple[str, ...] = (), nodes: int = 3, spare: int = 1) -> Any:
    options = types.SimpleNamespace(local=False, nodes=nodes, spare_nodes=spare, workers_per_node=2)
    return types.SimpleNamespace(
        attempt_dir=folder, options=options, lost_nodes={*lost}, nodes=NODES[:nodes], workers=2 * nodes, launch=1
    )


def test_lost_nodes_are_left_out_in_the_order_of_the_allocation() -> None:
    assert spares.choose_nodes(job(), NODES) == ["n1", "n2", "n3"]
    assert spares.choose_nodes(job(lost=("n2",)), NODES) == ["n1", "n3", "n4"]
    assert spares.choose_nodes(job(lost=("n2",)), ["n1", "n3", "n4"]) == ["n1", "n3", "n4"], "Slurm has removed it"


@pytest.mark.parametrize(("sinfo", "expected"), [
    ("n2 draining\nn1 allocated\n", ["n1", "n3", "n4"]),
    ("n1 draining\nn2 drained*\n", ["n1", "n3", "n4"]),  # the first node has the supervisor and the rendezvous
    ("n2 draining\nn3 draining\n", ["n1", "n3", "n4"]),  # one spare node for two
    ("n2 draining\nn3 down\n", ["n1", "n2", "n4"]),  # down before draining
    ("n2 draining\nn4 drained*\n", ["n1", "n2", "n3"]),  # a node that does not respond before draining
    ("rubbish\n", ["n1", "n2", "n3"]),
    ("n2 down*\n", ["n1", "n3", "n4"]),
    ("", ["n1", "n2", "n3"]),
])  # fmt: skip
def test_draining_nodes_are_left_out_where_others_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sinfo: str, expected: list[str]
) -> None:
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\nprintf '{sinfo}'\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert spares.choose_nodes(job(), NODES) == expected


def test_a_job_with_too_few_nodes_fails_with_their_names() -> None:
    with pytest.raises(WorkerError, match=r"no spare node is left to replace n2, n3 \(nodes required: 3, left: 2\)"):
        spares.choose_nodes(job(lost=("n3", "n2")), NODES)


def test_a_job_that_was_made_smaller_says_so() -> None:
    changed = job()
    changed.name = "7"
    expected = "the job has 2 nodes, but was submitted for 3: its size was changed (scontrol update NumNodes)"
    with pytest.raises(WorkerError) as raised:
        spares.choose_nodes(changed, ["n1", "n2"])
    assert str(raised.value).startswith(expected) and "clusterrun resubmit 7 --nodes 2" in str(raised.value)


def test_the_ranks_are_kept_off_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares.batch_host, "node_names", lambda: NODES)
    assert spares.exclusion(job(), ["n1", "n3", "n4"]) == ["--exclude=n2"]
    assert spares.exclusion(job(), NODES) == []
    assert spares.exclusion(job(spare=0), ["n1"]) == [], "without spare nodes the step has all"


def test_the_watchdogs_lost_nodes_are_taken(tmp_path: Path) -> None:
    (tmp_path / "hang.json").write_text(json.dumps({"cause": "x", "lost_nodes": ["n2"]}))
    assert spares.find_lost_nodes(job(tmp_path), lambda: False) == {"n2"}
    assert spares.find_lost_nodes(job(tmp_path, spare=0), lambda: False) == {"n2"}


def test_else_the_nodes_of_ranks_without_an_end_record_are_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[list[str]] = []
    monkeypatch.setattr(hung_step, "silent_nodes", lambda job, nodes, is_ending: probed.append(nodes) or {"n3"})
    ended = job(tmp_path)
    ended.records = {}, {rank: {} for rank in (0, 1, 3)}
    assert spares.find_lost_nodes(ended, lambda: False) == {"n3"} and probed == [["n2", "n3"]]


def test_a_slurm_that_starts_nothing_anywhere_loses_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text('#!/bin/sh\ncase "$*" in *nodelist=n2*|*nodelist=$DOWN*) exit 1;; esac\necho "{}"\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("DOWN", "n2")
    assert hung_step.silent_nodes(job(), ["n1", "n2", "n3"], lambda: False) == {"n2"}
    monkeypatch.setenv("DOWN", "n1")
    assert hung_step.silent_nodes(job(), ["n1", "n2", "n3"], lambda: False) == set()


def test_many_nodes_are_probed_64_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, probed = [f"n{number}" for number in range(1, 201)], []

    def answer(by_node: dict[str, Any]) -> dict[str, bytes | None]:
        probed.append([*by_node])
        return {node: None if node in ("n2", "n150", "n200") else b"{}" for node in by_node}

    monkeypatch.setattr(hung_step, "_run_probes", answer)
    assert hung_step.silent_nodes(job(), nodes, lambda: False) == {"n2", "n150", "n200"}
    assert {*nodes} == {node for batch in probed for node in batch} and max(map(len, probed)) <= 65
    assert hung_step.silent_nodes(job(), nodes, lambda: len(probed) > 4) == {"n2"}, "SIGTERM came"
    monkeypatch.setattr(hung_step, "PROBES_S", -1.0)
    assert hung_step.silent_nodes(job(), nodes, lambda: False) == set(), "the time is over"
