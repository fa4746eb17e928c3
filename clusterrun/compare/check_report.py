"""The report of a check, which rank 0 wrote as ``check.json`` (``worker/checks/report.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from clusterrun.base.decode import as_int, as_objects, as_text, parse_fields
from clusterrun.base.units import format_rate
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files
from clusterrun.run_folder.check_findings import Finding

COLUMNS = ("node", "GPUs", "TFLOP/s", "memory", "disk", "clock", "in node", "between nodes")


def load_report(run: RunRecord) -> dict[str, Any] | None:
    """Return the report of a run's newest attempt, None if there is none.

    ``ok`` is True only if the report says so, and each of its ``findings`` has the fields of ``Finding``.
    """
    attempt = run_record.newest_attempt(run)
    report = files.read_json(attempt / "check.json") if attempt else None
    if report is None:
        return None
    findings = [finding | parse_fields(Finding, finding) for finding in as_objects(report.get("findings"))]
    return {**report, "ok": report.get("ok") is True, "findings": findings}


class _Node(NamedTuple):
    node: str
    gpus: int | None
    tflops: float | None
    memory_gib: float | None
    disk_gib: float | None
    clock_offset_s: float | None
    busbw_in_node: float | None
    busbw_between_nodes: float | None


class _Link(NamedTuple):
    kind: str
    size: int | None
    busbw: float | None


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of ``COLUMNS`` for each node."""
    gpus = as_int(report.get("gpus_per_node"))
    return [_cells(_Node(**parse_fields(_Node, node)), gpus) for node in as_objects(report.get("nodes"))]


def _cells(node: _Node, gpus: int | None) -> list[str]:
    return [
        node.node,
        f"{_format('{}', node.gpus) or '?'} of {gpus}" if gpus else "-",
        _format("{:.3g}", node.tflops),
        _format("{:.0f} GiB", node.memory_gib),
        _format("{:.0f} GiB", node.disk_gib),
        _format("{:+.2f} s", node.clock_offset_s),
        "" if node.busbw_in_node is None else format_rate(node.busbw_in_node),
        "" if node.busbw_between_nodes is None else format_rate(node.busbw_between_nodes),
    ]


def overall(report: Mapping[str, Any]) -> str:
    """Return the all-reduces over all ranks in one line; empty if there are none."""
    parts = []
    for entry in as_objects(report.get("links")):
        link = _Link(**parse_fields(_Link, entry))
        if link.kind == "all" and link.size and link.busbw:
            parts.append(f"{link.size // 1024:,} KiB at {format_rate(link.busbw)}")
    if not parts:
        return ""
    ranks, backend = as_int(report.get("ranks")), as_text(report.get("backend"))
    return f"all-reduce over {ranks} ranks ({backend}): {', '.join(parts)}"


def _format(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
