"""Compare the environments that two runs have recorded: versions and Python packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from clusterrun.compare import Change, find_changes
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends

VERSIONS = ("python", "torch", "nccl", "driver")


def compare_environments(
    first: RunRecord, second: RunRecord
) -> tuple[list[Change], tuple[RunRecord, ...], tuple[RunRecord, ...]]:
    """Return what differs, the runs without a record, and the runs whose nodes do not all have the same packages.

    The last starts are compared; nothing is compared if one has not recorded its environment.
    """
    versions, packages, is_mixed = load_environment(first)
    other_versions, other_packages, other_is_mixed = load_environment(second)
    missing = tuple(compress((first, second), (not versions, not other_versions)))
    mixed = tuple(compress((first, second), (is_mixed, other_is_mixed)))
    if missing:
        return [], missing, mixed
    changes = list(find_changes(versions, other_versions))
    if packages and other_packages:
        changes += find_changes(packages, other_packages)
    return changes, missing, mixed


def nodes_by_version(ranks: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[str]]:
    """Return each version of a program that ranks have recorded, with their nodes; where it is missing it is empty."""
    nodes: dict[str, list[str]] = {}
    for rank in ranks:
        if isinstance(rank.get(name), str):
            nodes.setdefault(rank[name], []).append(rank["node"])
    return {version: list(dict.fromkeys(names)) for version, names in nodes.items()}


def load_environment(run: RunRecord) -> tuple[dict[str, str | None], dict[str, str], bool]:
    """Return what the last start of a run has recorded: versions, packages, and whether its nodes differ in packages.

    Without a start there is nothing, not even the names of versions.
    """
    for attempt in reversed(run_record.attempts(run)):
        start = ends.load_start(attempt)
        if start is not None:
            digests = nodes_by_version(start["ranks"], "packages")
            return _versions(start["ranks"]), _packages(attempt), len(digests) > 1
    return {}, {}, False


def _versions(ranks: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    versions = {}
    for name in VERSIONS:
        recorded = filter(None, nodes_by_version(ranks, name))
        versions[name] = ", ".join(sorted(recorded)) or None
    return versions


def _packages(attempt: Path) -> dict[str, str]:
    packages = {}
    for line in ends.load_packages(attempt):
        name, _, version = line.partition("==")
        packages[name] = version or "unknown version"
    packages.pop("torch", None)  # it is one of the versions
    return packages
