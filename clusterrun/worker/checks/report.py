"""The report of a check: what is wrong, the main figures of each node, and all links. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...run_folder.check_findings import BROKEN, DIFFERS
from .judge_links import best_tries, judge_links, node_scores
from .judge_nodes import count_devices, judge_nodes
from .measured import Doc, Link, Tries

VERSION = 1


def make(docs: Sequence[Doc], nodes: Sequence[str], gpus: int) -> dict[str, Any]:
    """Return the report as JSON. `nodes` has the node of each rank of the run, `gpus` are those of each node."""
    backend = next((doc["backend"] for doc in docs if "backend" in doc), "gloo")
    links = all_links(docs)
    findings = judge_nodes(docs, nodes, gpus) + judge_links(links, backend)
    return {
        "version": VERSION,
        "ok": not any(one.status in (BROKEN, DIFFERS) for one in findings),
        "backend": backend,
        "ranks": len(docs),
        "gpus_per_node": gpus,
        "findings": [one._asdict() for one in findings],
        "nodes": node_figures(docs, links),
        "links": [link._asdict() | {"busbw": link.busbw and link.busbw.best} for link in links],
    }


def all_links(docs: Sequence[Doc]) -> list[Link]:
    """Return the all-reduces that the ranks measured."""
    tries = [(entry, entry["busbw"] and Tries(*entry["busbw"])) for doc in docs for entry in doc["links"]]
    return [Link(**{**entry, "nodes": tuple(entry["nodes"]), "busbw": busbw}) for entry, busbw in tries]


def node_figures(docs: Sequence[Doc], links: Sequence[Link]) -> list[dict[str, Any]]:
    """Return the main figures of each node; None for what is not known."""
    within, scores = best_tries(links, "node"), node_scores(best_tries(links, "pair"))
    leaders = [doc for doc in docs if doc["local_rank"] == 0]
    figures = []
    for leader in leaders:
        node = leader["node"]
        in_node, between = within.get((node,)), scores.get(node)
        figures.append({
            "node": node,
            "gpus": count_devices(leader, docs),
            "tflops": min((doc["gemm"]["best"] for doc in docs if doc["node"] == node and "gemm" in doc), default=None),
            "memory_gib": leader.get("memory_gib"),
            "disk_gib": leader.get("folders", {}).get("run", {}).get("free_gib"),
            "clock_offset_s": _offset(leader, leaders[0]),
            "busbw_in_node": in_node and in_node.best,
            "busbw_between_nodes": between and between.best,
            "versions": leader.get("versions", {}),
        })  # fmt: skip
    return figures


def _offset(leader: Doc, first: Doc) -> float | None:
    """Return how far a node's clock is ahead of the first one's, in seconds."""
    own, others = leader.get("clock"), first.get("clock")
    return own - others if own and others else None
