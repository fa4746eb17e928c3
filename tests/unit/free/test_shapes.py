"""The same GPUs in other shapes: what is asked per node goes with them, and the line to type is the job."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.free.shapes import MOST_SHAPES, Shape, reshape_values, shapes_alike, submit_command
from clusterrun.jobspec.fields import Value
from clusterrun.submit.request import SubmitArgs

TWO_BY_FOUR = Shape(2, 4)


def values(**named: Any) -> dict[str, Value]:
    return {name.replace("_", "-"): Value(value, "me") for name, value in named.items()}


def plain(changed: dict[str, Value] | None) -> dict[str, Any] | None:
    return None if changed is None else {name: value.value for name, value in changed.items()}


def test_the_asked_shape_comes_first_then_the_nearest() -> None:
    assert list(map(str, shapes_alike(TWO_BY_FOUR, 8))) == ["2x4", "1x8", "4x2", "8x1"]
    assert list(map(str, shapes_alike(TWO_BY_FOUR, 4))) == ["2x4", "4x2", "8x1"], "no node holds eight"
    assert list(map(str, shapes_alike(Shape(1, 9), 4))) == ["1x9", "3x3", "9x1"]
    assert shapes_alike(Shape(1, 1), 8) == [Shape(1, 1)]


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 16))
def test_every_shape_has_as_many(nodes: int, each: int, most: int) -> None:
    found = shapes_alike(Shape(nodes, each), most)
    assert found[0] == Shape(nodes, each) and len(found) == len(set(found)) <= MOST_SHAPES
    assert {s.nodes * s.each for s in found} == {nodes * each}
    assert all(s.each <= most for s in found[1:])


@pytest.mark.parametrize(
    ("asked", "shape", "changed"),
    [
        ({}, Shape(1, 8), {"nodes": 1, "gpus-per-node": 8}),
        ({"gres": "gpu:a100:4,nvme:1"}, Shape(4, 2), {"nodes": 4, "gres": "gpu:a100:2,nvme:1"}),
        ({"gres": "gpu:4"}, Shape(1, 8), {"nodes": 1, "gres": "gpu:8"}),
        ({"tasks_per_node": 8}, Shape(4, 2), {"nodes": 4, "gpus-per-node": 2, "tasks-per-node": 4}),
        ({"mem": "64G"}, Shape(1, 8), {"nodes": 1, "gpus-per-node": 8, "mem": "128G"}),
        ({"mem": "0"}, Shape(1, 8), {"nodes": 1, "gpus-per-node": 8}),
        ({"mem": "10G"}, Shape(8, 1), {"nodes": 8, "gpus-per-node": 1, "mem": "2560M"}),
        ({"mem": "1001"}, Shape(4, 2), {"nodes": 4, "gpus-per-node": 2, "mem": "512512K"}),
        ({"mem": "1001K"}, Shape(4, 2), {"nodes": 4, "gpus-per-node": 2, "mem": "501K"}),
        ({"gres": "gpu:a100:2,gpu:h100:2"}, Shape(1, 8), None),
        ({"nodelist": "n1,n2"}, Shape(1, 8), None),
        ({"tasks_per_node": 1}, Shape(4, 2), None),
    ],
)
def test_what_is_asked_per_node_goes_with_the_gpus(
    asked: dict[str, Any], shape: Shape, changed: dict[str, Any] | None
) -> None:
    assert plain(reshape_values(values(**asked), TWO_BY_FOUR, shape)) == changed
    assert reshape_values(values(**asked), TWO_BY_FOUR, TWO_BY_FOUR) == {}


def test_ranks_without_gpus_are_shaped_too() -> None:
    changed = reshape_values(values(tasks_per_node=4), Shape(2, 4, cpus=1), Shape(1, 8, cpus=1))
    assert plain(changed) == {"nodes": 1, "tasks-per-node": 8}


def test_the_line_to_type_is_what_was_typed_with_the_changes() -> None:
    asked = SubmitArgs(
        command=("train.py", "--name", "a b"),
        profile="big",
        flags=values(
            nodes=2, gpus_per_node=4, env={"A": "x y"}, requeue=False, sbatch_arg=["--switches=1"], partition="auto"
        ),
    )
    changed = values(nodes=1, gpus_per_node=8, partition="gpu")
    assert shlex.split(submit_command(asked, changed)) == [
        "clusterrun", "submit", "--profile", "big", "--nodes", "1", "--gpus-per-node", "8", "--partition", "gpu",
        "--env", "A=x y", "--sbatch-arg=--switches=1", "--no-requeue", "--", "train.py", "--name", "a b",
    ]  # fmt: skip
    assert submit_command(SubmitArgs(job="sft"), values(partition="low")) == "clusterrun submit sft --partition low"
