"""Compare the environments that two runs have recorded: versions and Python packages."""

from __future__ import annotations

from typing import Any, NamedTuple

from clusterrun.compare import Change, find_changes
from clusterrun.records import rank_records, run_record
from clusterrun.records.run_record import RunRecord

_VERSIONS = ("python", "torch", "nccl", "driver")


class Environments(NamedTuple):
    """What differs; ``missing`` are the runs without a record, ``mixed`` those whose nodes differ in packages."""

    changes: list[Change]
    missing: tuple[RunRecord, ...]
    mixed: tuple[RunRecord, ...]


def compare_environments(first: RunRecord, second: RunRecord) -> Environments:
    """Compare the last starts of two runs; nothing is compared if one has not recorded its environment."""
    found = [_load(run) for run in (first, second)]
    missing = tuple(run for run, facts in zip((first, second), found, strict=True) if not facts)
    mixed = tuple(run for run, facts in zip((first, second), found, strict=True) if len(facts.get("digests", ())) > 1)
    if missing:
        return Environments([], missing, mixed)
    packages = all(facts["packages"] for facts in found)  # an older run has recorded none
    one, other = ({**facts["versions"], **(facts["packages"] if packages else {})} for facts in found)
    return Environments(list(find_changes(one, other)), (), mixed)


def _load(run: RunRecord) -> dict[str, Any]:
    """Return the versions, packages and digests of packages of a run's last start; empty if there is none."""
    for attempt in reversed(run_record.attempts(run)):
        start = rank_records.load_start(attempt)
        if start is None:
            continue
        versions = {}
        for name in _VERSIONS:
            seen = {one[name] for one in start["ranks"] if isinstance(one.get(name), str) and one[name]}
            versions[name] = ", ".join(sorted(seen)) or None
        pairs = (text.partition("==") for text in rank_records.load_packages(attempt))
        digests = {one["packages"] for one in start["ranks"] if isinstance(one.get("packages"), str)}
        packages = {name: version or "unknown version" for name, _, version in pairs if name != "torch"}
        return {"versions": versions, "packages": packages, "digests": digests}
    return {}
