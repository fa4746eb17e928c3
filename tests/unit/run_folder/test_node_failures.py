"""What is remembered of nodes: a day long, until a later launch ran well, and of nobody's folder but the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.run_folder.node_failures import (
    CHECK,
    DAY,
    LOST,
    SLOW,
    WELL,
    XID,
    NodeFailure,
    describe,
    load,
    note,
    suspects,
)

NOW = 1_795_000_000


def failure(node: str = "n1", age: int = 60, kind: str = LOST, launch: str = "a.0.0", detail: str = "") -> NodeFailure:
    return NodeFailure(node, NOW - age, kind, detail, "5", launch)


def remembered(state: Path, *seen: NodeFailure) -> dict[str, list[NodeFailure]]:
    note(state, "lab", seen, NOW)
    return load(state, "lab", NOW)


def test_two_failures_of_hardware_make_a_suspect_and_a_line(tmp_path: Path) -> None:
    first, second = failure(age=600, kind=XID, detail="79"), failure(launch="b_3.0.0")
    found = remembered(tmp_path, second, first)
    assert found == {"n1": [first, second]} and suspects(found) == ["n1"]
    assert describe(found["n1"], NOW).startswith("2 hardware failures in 24 h: GPU fault (Xid 79), job 5, today ")
    assert load(tmp_path, "other", NOW) == load(tmp_path / "none", "lab", NOW) == {}


@pytest.mark.parametrize("second", [
    failure(age=DAY + 1, launch="b.0.0"), failure(kind=SLOW, launch="b.0.0"), failure(age=9),
], ids=["older than a day", "a slow rank", "of the same launch"])  # fmt: skip
def test_one_failure_is_no_reason(tmp_path: Path, second: NodeFailure) -> None:
    assert suspects(remembered(tmp_path, failure(), second)) == []


def test_a_later_launch_that_ran_well_clears_what_was_before_it(tmp_path: Path) -> None:
    before, after = failure(age=600), failure(age=10, launch="b.0.0")
    well = failure(age=300, kind=WELL, launch="c.0.0")
    assert remembered(tmp_path, before, well) == {}
    assert remembered(tmp_path, after) == {"n1": [after]}
    assert remembered(tmp_path, before) == {"n1": [after]}, "it may be noted late, or twice"


def test_what_is_older_than_a_day_is_removed(tmp_path: Path) -> None:
    note(tmp_path, "lab", [failure(age=DAY - 10)], NOW)
    note(tmp_path, "lab", [failure("n2", age=-60)], NOW + 60)
    assert [path.name.partition(",")[0] for path in (tmp_path / "nodes" / "lab").iterdir()] == ["n2"]


def test_a_run_inside_another_job_counts_too(tmp_path: Path) -> None:
    inside = failure()._replace(job_id="L3")
    assert remembered(tmp_path, inside) == {"n1": [inside]}


def test_the_worst_node_comes_first(tmp_path: Path) -> None:
    seen = [
        failure(node, kind=CHECK, launch=f"{n}.0.0") for node, count in (("n1", 2), ("n2", 3)) for n in range(count)
    ]
    assert suspects(remembered(tmp_path, *seen)) == ["n2", "n1"]


@pytest.mark.parametrize("cluster", ["", "..", "a/b", ".hidden"])
def test_a_cluster_without_a_usable_name_is_none(tmp_path: Path, cluster: str) -> None:
    note(tmp_path, cluster, [failure()], NOW)
    assert not [*tmp_path.iterdir()] and load(tmp_path, cluster, NOW) == {}


@pytest.mark.parametrize("node", ["", "-x", "a/b", "a,b", "n" * 200, "n\n1"])
def test_a_name_that_is_no_nodes_is_not_kept(tmp_path: Path, node: str) -> None:
    assert remembered(tmp_path, failure(node)) == {}


def test_a_folder_that_others_can_change_proves_nothing(tmp_path: Path) -> None:
    assert remembered(tmp_path, failure())
    (tmp_path / "nodes" / "lab").chmod(0o777)
    assert load(tmp_path, "lab", NOW) == {}


def test_where_nothing_can_be_written_nothing_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("a file")
    assert remembered(tmp_path, failure()) == {}


@given(
    name=st.text(alphabet=st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=60)
)
def test_a_file_may_have_any_name(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / "nodes" / "lab").mkdir(parents=True, mode=0o700)
    if name in (".", "..") or len(name.encode()) > 255:
        return
    (folder / "nodes" / "lab" / name).touch()
    assert load(folder, "lab", NOW) == {}
