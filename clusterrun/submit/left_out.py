"""Nodes that a new job leaves out, as their hardware has failed under the user's own runs (ADR 40)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.fields import FIELDS
from clusterrun.base.job import one_cluster
from clusterrun.jobspec.fields import sbatch_option
from clusterrun.jobspec.spec import Check, JobSpec
from clusterrun.run_folder import node_failures
from clusterrun.scheduler import SlurmCommands
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.scontrol import having
from clusterrun.scheduler.slurm.sinfo import nodes_argv, parse_nodes

TIMEOUT = 5.0
MOST = 10  # one of so many nodes of a partition is left out
#: sbatch's own options with which the user chooses nodes or partitions by hand.
_BY_HAND = frozenset(("nodelist", "w", "exclude", "x", "nodefile", "F", "partition", "p"))
_ORDER = [field.name for field in FIELDS]


def leave_out(
    spec: JobSpec, values: Mapping[str, Any], slurm: SlurmCommands | None, state: Path
) -> tuple[JobSpec, list[str]]:
    """Return the specification without nodes that failed, and a line about them.

    ``values`` has what the user gave, by option; ``state`` is the user's state folder. If no node has failed, Slurm is
    not asked; if Slurm does not answer, no node is left out.
    """
    own = str(values.get("exclude") or "")
    spec = _excluding(spec, own)  # a recorded one may have more
    if slurm is None or values.get("allow-nodes") or _chooses_by_hand(spec):
        return spec, []
    now = time.time()
    failures = node_failures.load(state, one_cluster(slurm.cluster), now)
    chosen = _choose(node_failures.suspects(failures), slurm, spec)
    if not chosen:
        return spec, []
    why = "; ".join(f"{node} ({node_failures.describe(failures[node], now)})" for node in chosen)
    line = f"leaving out {why}; --allow-nodes uses all nodes"
    return _excluding(spec, ",".join(filter(None, [own, *chosen]))), [line]


def _choose(suspects: Sequence[str], slurm: SlurmCommands, spec: JobSpec) -> list[str]:
    named = {*expand(spec.directive("exclude")), *expand(spec.directive("nodelist"))}
    suspects = [node for node in suspects if node not in named]
    return choose(suspects, _partitions(slurm, spec), spec.allocated_nodes) if suspects else []


def choose(suspects: Sequence[str], partitions: Mapping[str, Mapping[str, bool]], needed: int) -> list[str]:
    """Return the suspects that each partition can do without, the first ones first.

    ``partitions`` has each node that fits the job, and whether it may have it now. At most a tenth of a partition is
    left out, and the ``needed`` nodes stay.
    """
    chosen: list[str] = []
    for node in suspects:
        here = [nodes for nodes in partitions.values() if node in nodes]
        if here and all(_can_lose(nodes, {*chosen, node}, needed) for nodes in here):
            chosen.append(node)
    return chosen


def _can_lose(nodes: Mapping[str, bool], gone: set[str], needed: int) -> bool:
    left = sum(usable for node, usable in nodes.items() if node not in gone)
    return len(gone & nodes.keys()) * MOST <= len(nodes) and left >= needed


def _partitions(slurm: SlurmCommands, spec: JobSpec) -> dict[str, dict[str, bool]]:
    """Return the nodes that fit the job, by partition, and whether it may have them now; none if Slurm does not say."""
    requested, wanted = spec.directive("partition"), spec.directive("constraint")
    rows = parse_nodes(slurm.answer(nodes_argv(requested), TIMEOUT).text)
    features = {row.name: row.features for row in rows}
    fitting = having(wanted, features, features) if wanted else features
    excluded = expand(spec.directive("exclude"))
    partitions: dict[str, dict[str, bool]] = {}
    for row in rows:
        if row.name in (fitting or ()) and (requested or row.is_default):
            partitions.setdefault(row.partition, {})[row.name] = row.usable and row.name not in excluded
    return partitions


def _chooses_by_hand(spec: JobSpec) -> bool:
    """Return whether the user chooses nodes in a way that is not read here; a check is to look at them."""
    is_file = "/" in spec.directive("exclude") + spec.directive("nodelist")
    return is_file or isinstance(spec.work, Check) or not _BY_HAND.isdisjoint(map(sbatch_option, spec.sbatch_args))


def _excluding(spec: JobSpec, nodes: str) -> JobSpec:
    others = [pair for pair in spec.directives if pair[0] != "exclude"]
    directives = [*others, ("exclude", nodes)] if nodes else others
    return replace(spec, directives=tuple(sorted(directives, key=lambda pair: _ORDER.index(pair[0]))))
