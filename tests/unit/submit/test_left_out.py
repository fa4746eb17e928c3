"""Which of the nodes that failed a new job leaves out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Check, JobSpec, Script, build_spec
from clusterrun.run_folder.node_failures import LOST, NodeFailure, note
from clusterrun.scheduler import Reply
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.submit.left_out import choose, leave_out

TEN = {f"n{number}": True for number in range(1, 11)}


class Slurm:
    """A Slurm with twenty nodes, the odd ones with a feature; it counts the questions."""

    cluster = "lab"

    def __init__(self, note: str = "") -> None:
        self.asked, self._note = 0, note

    def answer(self, argv: list[str], timeout: float) -> Reply:
        self.asked += 1
        lines = [SEP.join((f"n{n}", "gpu*", "big" if n % 2 else "(null)", "idle")) for n in range(1, 21)]
        return Reply("" if self._note else "\n".join(lines), self._note)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two failures of n3, one of n4."""
    now = int(time.time())
    seen = [("n3", "a.0.0"), ("n3", "b.0.0"), ("n4", "c.0.0")]
    note(tmp_path, "lab", [NodeFailure(node, now - 60, LOST, "", "5", launch) for node, launch in seen], now)
    return tmp_path


def spec(work: Any = None, **options: Any) -> JobSpec:
    given = {"python": "/usr/bin/python3", "gpus-per-node": 0, **{k.replace("_", "-"): v for k, v in options.items()}}
    return build_spec({name: Value(value, f"--{name}") for name, value in given.items()}, work or Script("/u/train.py"))


def left_out(state: Path, slurm: Any = None, work: Any = None, **options: Any) -> tuple[str, list[str]]:
    made = spec(work, **options)
    found, lines = leave_out(made, {k: v.value for k, v in made.sources.items()}, slurm or Slurm(), state)
    return found.directive("exclude"), lines


def test_a_node_that_failed_twice_is_left_out_with_the_evidence(state: Path) -> None:
    exclude, (line,) = left_out(state)
    assert exclude == "n3" and line.startswith("leaving out n3 (2 hardware failures in 24 h: node lost, job 5, today ")
    assert line.endswith("; --allow-nodes uses all nodes")


def test_the_users_own_nodes_stay_left_out_and_a_second_submission_has_only_those(state: Path) -> None:
    assert left_out(state, exclude="n9")[0] == "n9,n3"
    recorded, _ = leave_out(spec(exclude="n9"), {"exclude": "n9"}, None, state)
    assert leave_out(recorded, {"exclude": "n9", "allow-nodes": True}, Slurm(), state) == (spec(exclude="n9"), [])


@pytest.mark.parametrize("options", [
    {"nodelist": "n[2-3]"}, {"allow_nodes": True}, {"work": Check()}, {"nodes": 20}, {"exclude": "n3"},
    {"sbatch_arg": ["-wn3"]}, {"nodelist": "/home/me/nodes"},
    {"constraint": "big", "nodes": 10},
])  # fmt: skip
def test_a_node_that_is_wanted_or_needed_is_used(state: Path, options: dict[str, Any]) -> None:
    exclude, lines = left_out(state, **options)
    assert (exclude, lines) == (options.get("exclude", ""), [])


def test_the_tenth_is_one_of_the_nodes_with_the_features(state: Path) -> None:
    assert left_out(state, constraint="big")[0] == "n3"
    assert left_out(state, constraint="big", exclude="n1")[0] == "n1,n3"
    assert left_out(state, constraint="big", exclude="n1", nodes=9)[0] == "n1"


def test_without_suspects_slurm_is_not_asked(tmp_path: Path) -> None:
    slurm = Slurm()
    assert left_out(tmp_path, slurm) == ("", []) and slurm.asked == 0


def test_without_an_answer_no_node_is_left_out(state: Path) -> None:
    assert left_out(state, Slurm("timed out")) == ("", [])


@pytest.mark.parametrize(("suspects", "partitions", "needed", "expected"), [
    (["n3", "n4"], {"a": TEN}, 1, ["n3"]),
    (["n3"], {"a": dict.fromkeys(["n1", "n2", "n3"], True)}, 1, []),  # a tenth of three is none
    (["x", "n3"], {"a": TEN}, 1, ["n3"]),  # of another partition
    (["n3"], {"a": TEN, "b": {"n3": True}}, 1, []),  # the job may run in b
    (["n3"], {"a": TEN | {"n1": False}}, 9, []),  # n1 is down
    (["n3"], {}, 1, []),
])  # fmt: skip
def test_each_partition_can_do_without_the_nodes(
    suspects: list[str], partitions: dict[str, dict[str, bool]], needed: int, expected: list[str]
) -> None:
    assert choose(suspects, partitions, needed) == expected
