"""Compare the environments that two runs have recorded: versions and Python packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from clusterrun.compare import Change, find_changes
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends

VERSIONS = ("python", "torch", "nccl", "driver")


class Environments(NamedTuple):
    """What differs; ``missing`` are the runs without a record, ``mixed`` those whose nodes differ in packages."""

    changes: list[Change]
    missing: tuple[RunRecord, ...]
    mixed: tuple[RunRecord, ...]


class _Environment(NamedTuple):
    """What the last start of a run has recorded: nothing, not even the names of versions, if it has not started.

    ``mixed``: its nodes do not all have the same packages.
    """

    versions: Mapping[str, str | None] = MappingProxyType({})
    packages: Mapping[str, str] = MappingProxyType({})
    mixed: bool = False


def compare_environments(first: RunRecord, second: RunRecord) -> Environments:
    """Compare the last starts of two runs; nothing is compared if one has not recorded its environment."""
    environment, other = _load(first), _load(second)
    missing = tuple(compress((first, second), (not environment.versions, not other.versions)))
    mixed = tuple(compress((first, second), (environment.mixed, other.mixed)))
    if missing:
        return Environments([], missing, mixed)
    changes = list(find_changes(environment.versions, other.versions))
    if environment.packages and other.packages:
        changes += find_changes(environment.packages, other.packages)
    return Environments(changes, missing, mixed)


def nodes_by_version(ranks: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[str]]:
    """Return each version of a program that ranks have recorded, with their nodes; where it is missing it is empty."""
    nodes: dict[str, list[str]] = {}
    for rank in ranks:
        if isinstance(rank.get(name), str):
            nodes.setdefault(rank[name], []).append(rank["node"])
    return {version: list(dict.fromkeys(names)) for version, names in nodes.items()}


def _load(run: RunRecord) -> _Environment:
    for attempt in reversed(run_record.attempts(run)):
        start = ends.load_start(attempt)
        if start is not None:
            digests = nodes_by_version(start["ranks"], "packages")
            return _Environment(_versions(start["ranks"]), _packages(attempt), len(digests) > 1)
    return _Environment()


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
