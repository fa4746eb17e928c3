"""The report of `clusterrun check`: all findings on nodes and links, and one row for each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clusterrun.check import links as link_rules
from clusterrun.check.judging import DIFFERS, Finding, Tries
from clusterrun.check.nodes import count_devices, gemm_rate, judge_nodes
from clusterrun.check.results import Link, Rank, load_attempt, load_links, number, table
from clusterrun.check.run import gpus_per_node
from clusterrun.errors import ClusterrunError
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.state.reconcile import RunState

COLUMNS = ("node", "GPUs", "TFLOP/s", "memory", "disk", "clock", "in node", "between nodes")


class Report(NamedTuple):
    """What a check found. ``rows`` are the cells of ``COLUMNS`` for each node."""

    findings: list[Finding]
    rows: list[list[str]]
    nodes: list[dict[str, Any]]
    links: list[Link]
    backend: str
    ranks: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.status != DIFFERS for finding in self.findings)

    def json(self) -> dict[str, Any]:
        """Return the report for ``--json``."""
        return {
            "ok": self.ok,
            "backend": self.backend,
            "ranks": self.ranks,
            "findings": [finding.json() for finding in self.findings],
            "nodes": self.nodes,
            "links": [link.json() for link in self.links],
        }

    def overall(self) -> str:
        """Return the all-reduces over all ranks in one line; empty if there are none."""
        sizes = [link for link in self.links if link.kind == "all" and link.busbw]
        parts = [f"{_format_size(link.size)} at {link_rules.rate(link.busbw.best)}" for link in sizes if link.busbw]
        return f"all-reduce over {self.ranks} ranks ({self.backend}): {', '.join(parts)}" if parts else ""


def report(run: RunRecord, state: RunState) -> Report:
    """Judge what the ranks of an ended check wrote. Raises ClusterrunError if no rank wrote anything."""
    return judge(load_attempt(run), run, state)


def judge(ranks: Sequence[Rank], run: RunRecord, state: RunState) -> Report:
    """Return the report of these ranks; raises ClusterrunError if there are none."""
    if not ranks:
        job = state.status
        raise ClusterrunError(
            f"job {job.id} of the check ended ({job.state}) before any rank wrote a result",
            hint=f"clusterrun why {job.id}",
        )
    links = load_links(ranks)
    backend = next((str(rank.data["backend"]) for rank in ranks if "backend" in rank.data), "unknown")
    gpus = gpus_per_node(run, run_record.read_json(run.run_dir / "spec.json") or {})
    expected = _expected_nodes(run, ranks, expand(state.status.nodes))
    findings = judge_nodes(ranks, expected, gpus) + link_rules.judge_links(links, backend)
    figures = [_figures(rank, ranks, links) for rank in ranks if rank.local_rank == 0]
    rows = [_row(figure, gpus) for figure in figures]
    return Report(findings, rows, figures, links, backend, len(ranks))


def _expected_nodes(run: RunRecord, ranks: Sequence[Rank], nodes: Sequence[str]) -> dict[int, str]:
    """Return the node of each rank: ranks are in blocks, and Slurm's node list is in the order of ranks."""
    each = max(1, run.tasks_per_node)
    known = {rank.rank // each: rank.node for rank in ranks}
    if len(nodes) == run.nodes:
        known = dict(enumerate(nodes)) | known
    return {rank: known.get(rank // each, "") for rank in range(run.world_size)}


def _figures(leader: Rank, ranks: Sequence[Rank], links: Sequence[Link]) -> dict[str, Any]:
    """Return the main figures of a node, None for what is not known."""
    rates = [rate.best for rank in ranks if rank.node == leader.node and (rate := gemm_rate(rank))]
    within = link_rules.best_tries([link for link in links if link.kind == "node"]).get((leader.node,))
    pairs = link_rules.node_scores(link_rules.best_tries([link for link in links if link.kind == "pair"]))
    return {
        "node": leader.node,
        "gpus": count_devices(leader, ranks),
        "tflops": min(rates, default=None),
        "memory_gib": number(leader.data, "memory_gib"),
        "disk_gib": number(table(table(leader.data, "folders"), "run"), "free_gib"),
        "clock_offset_s": number(table(leader.data, "clock"), "offset"),
        "busbw_in_node": _best(within),
        "busbw_between_nodes": _best(pairs.get(leader.node)),
        "versions": dict(table(leader.data, "versions")),
    }


def _format_size(size: int) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


def _best(tries: Tries | None) -> float | None:
    return tries.best if tries else None


def _row(figures: Mapping[str, Any], gpus: int) -> list[str]:
    def cell(name: str, form: str) -> str:
        return "" if figures[name] is None else form.format(figures[name])

    bandwidths = [figures[name] for name in ("busbw_in_node", "busbw_between_nodes")]
    return [
        figures["node"],
        f"{'?' if figures['gpus'] is None else figures['gpus']} of {gpus}" if gpus else "-",
        cell("tflops", "{:.3g}"),
        cell("memory_gib", "{:.0f} GiB"),
        cell("disk_gib", "{:.0f} GiB"),
        cell("clock_offset_s", "{:+.2f} s"),
        *("" if value is None else link_rules.rate(value) for value in bandwidths),
    ]
