"""The report of a check, which rank 0 wrote as ``check.json`` (``worker/checks/report.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clusterrun.base.decode import as_int, as_number, as_objects, as_text, parse_fields
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


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of ``COLUMNS`` for each node."""
    gpus = as_int(report.get("gpus_per_node"))
    return [_cells(node, gpus) for node in as_objects(report.get("nodes"))]


def _cells(node: Mapping[str, Any], gpus: int | None) -> list[str]:
    usable = as_int(node.get("gpus"))
    return [
        as_text(node.get("node")),
        f"{'?' if usable is None else usable} of {gpus}" if gpus else "-",
        _format("{:.3g}".format, node.get("tflops")),
        _format("{:.0f} GiB".format, node.get("memory_gib")),
        _format("{:.0f} GiB".format, node.get("disk_gib")),
        _format("{:+.2f} s".format, node.get("clock_offset_s")),
        _format(format_rate, node.get("busbw_in_node")),
        _format(format_rate, node.get("busbw_between_nodes")),
    ]


def overall(report: Mapping[str, Any]) -> str:
    """Return the all-reduces over all ranks in one line; empty if there are none."""
    parts = []
    for link in as_objects(report.get("links")):
        size, busbw = as_int(link.get("size")), as_number(link.get("busbw"))
        if link.get("kind") == "all" and size and busbw:
            parts.append(f"{size // 1024:,} KiB at {format_rate(busbw)}")
    if not parts:
        return ""
    ranks, backend = as_int(report.get("ranks")), as_text(report.get("backend"))
    return f"all-reduce over {ranks} ranks ({backend}): {', '.join(parts)}"


def _format(form: Callable[[float], str], value: object) -> str:
    number = as_number(value)
    return "" if number is None else form(number)
