"""Which nodes have the features that a job asks for with --constraint. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from clusterrun.scheduler.slurm_show import parse_show

_NAME = r"[^&|*,()\[\]\s]+"
_SIMPLE = re.compile(rf"{_NAME}(?:&{_NAME})*|{_NAME}(?:\|{_NAME})*")


def parse_features(text: str) -> dict[str, frozenset[str]]:
    """Node -> its active features, of what ``scontrol show node`` prints."""
    lines = (
        line for line in text.split("\n") if line.lstrip().startswith(("NodeName=", "ActiveF")) or not line.strip()
    )
    found = {}
    for block in parse_show("\n".join(lines)):
        names = block.get("ActiveFeatures", "")
        found[block.get("NodeName", "")] = frozenset() if names == "(null)" else frozenset(names.split(",")) - {""}
    return found


def having(wanted: str, features: Mapping[str, frozenset[str]], nodes: Iterable[str]) -> list[str] | None:
    """Those of the nodes that have what is wanted: ``a``, ``a&b`` or ``a|b``; None for counts and brackets.

    A node of which nothing was told is taken to have it.
    """
    if not _SIMPLE.fullmatch(wanted):
        return None
    names = set(re.split(r"[&|]", wanted))
    enough = names.issubset if "|" not in wanted else lambda own: bool(names & set(own))
    return [node for node in nodes if node not in features or enough(features[node])]
