"""All-reduces become findings: the slow or broken node or link is named, and nothing else."""

from __future__ import annotations

from itertools import combinations

import pytest

from clusterrun.base.units import format_rate as rate
from clusterrun.worker.checks.judge_links import judge_links
from clusterrun.worker.checks.measured import Link, Tries

NODES = ("n1", "n2", "n3", "n4")
FAST, SLOW = Tries(300e6, 200e6), Tries(6e6, 5e6)


def link(kind: str, *nodes: str, busbw: Tries | None = FAST, correct: bool = True, error: str = "") -> Link:
    return Link(kind, nodes, len(nodes), 4 << 20, None if error else busbw, correct, error)


def mesh(nodes: tuple[str, ...] = NODES, **odd: Link) -> list[Link]:
    """All pairs; `odd` replaces those with these names (`n1n2`)."""
    return [odd.get(a + b) or link("pair", a, b) for a, b in combinations(nodes, 2)]


def where(found: list[Link]) -> list[tuple[str, ...]]:
    return [finding.where for finding in judge_links(found, "gloo")]


def test_equal_links_give_no_finding() -> None:
    assert where([*mesh(), link("all", *NODES), *(link("node", node) for node in NODES)]) == []


@pytest.mark.parametrize("slow", NODES)
def test_node_that_is_slow_with_every_other_is_named_once(slow: str) -> None:
    links = [link("pair", a, b, busbw=SLOW if slow in (a, b) else FAST) for a, b in combinations(NODES, 2)]
    (finding,) = judge_links(links, "gloo")
    assert finding.where == (slow,)
    assert finding.text == f"network link of {slow}: 6 MB/s; median of the other nodes: 300 MB/s"


def test_link_between_two_good_nodes_is_named() -> None:
    assert where(mesh(n2n3=link("pair", "n2", "n3", busbw=SLOW))) == [("n2", "n3")]


def test_best_of_all_tries_counts() -> None:
    links = mesh(n1n2=link("pair", "n1", "n2", busbw=SLOW))
    assert where([*links, link("pair", "n1", "n2")]) == []


def test_two_nodes_are_compared_with_slow_ethernet() -> None:
    assert where([link("pair", "n1", "n2", busbw=SLOW)]) == [("n1", "n2")]
    assert where([link("pair", "n1", "n2", busbw=Tries(13e6, 1e6))]) == []


def test_broken_connection_is_named_and_the_sum_over_all_is_not() -> None:
    links = mesh(n1n4=link("pair", "n1", "n4", error="timed out"))
    assert where([*links, link("all", *NODES, error="timed out")]) == [("n1", "n4")]


def test_node_without_any_working_connection_is_named_once() -> None:
    links = [link("pair", a, b, error="no route" if "n3" in (a, b) else "") for a, b in combinations(NODES, 2)]
    (finding,) = judge_links(links, "gloo")
    assert finding.where == ("n3",) and "no route" in finding.text


def test_failure_over_all_ranks_alone_is_reported() -> None:
    (finding,) = judge_links([*mesh(), link("all", *NODES, error="timed out")], "gloo")
    assert finding.where == NODES and "over all ranks failed: timed out" in finding.text


def test_wrong_sum_is_reported_for_the_smallest_group() -> None:
    links = [*mesh(n1n2=link("pair", "n1", "n2", correct=False)), link("all", *NODES, correct=False)]
    assert where(links) == [("n1", "n2")]


def test_slow_node_within_is_named() -> None:
    links = [link("node", node, busbw=SLOW if node == "n2" else FAST) for node in NODES]
    assert where(links) == [("n2",)]


def test_bandwidths_have_decimal_units() -> None:
    assert (rate(46.6e9), rate(6.25e6)) == ("46.6 GB/s", "6.25 MB/s")
