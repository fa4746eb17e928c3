"""What a user's own runs saw of their nodes: an empty file for each failure, in the user's state folder (ADR 40).

The names of the files in ``nodes/<cluster>/`` say all, so a look-up lists one folder. The job's supervisor writes them
when a launch ends; a command that sees the end of a job does where the job could not. A launch that ran well on a node
writes WELL, which clears the failures before it. What is older than a day does not count, and is removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..base.units import format_time, plural
from . import safe_files
from .claims import CLUSTER_NAME

DAY = 86_400
ENOUGH = 2  # failures of its hardware in a day, after which a node is left out
SHOWN = 3  # failures of a node in a line
LOST, XID, MEMORY, BUS, LAUNCH, CHECK, SLOW, WELL = "lost", "xid", "memory", "bus", "launch", "check", "slow", "well"
#: The failures in words, with their detail.
WORDS = {
    LOST: "node lost",
    XID: "GPU fault (Xid {})",
    MEMORY: "uncorrectable GPU memory error",
    BUS: "a GPU fell off the bus",
    LAUNCH: "Slurm could not start the job on it",
    CHECK: "found by check ({})",
    SLOW: "a slow rank ({}x the median speed)",
}
#: Failures of the node itself; a slow rank may have more work than the others.
HARDWARE = WORDS.keys() - {SLOW}
_NAME = re.compile(
    r"(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,99}),(?P<at>[0-9]{1,11}),(?P<kind>[a-z]{1,10}),(?P<detail>[A-Za-z0-9.]{0,20}),"
    r"(?P<job_id>L?[0-9]{1,18}(?:_[0-9]{1,9})?),(?P<launch>[A-Za-z0-9._]{1,80})",
    re.ASCII,
)


class NodeFailure(NamedTuple):
    """What a launch saw of a node, at epoch second ``at``; of WELL that is when it began.

    ``launch`` names the launch's folder. ``detail`` is an Xid, a check or a speed.
    """

    node: str
    at: int
    kind: str
    detail: str
    job_id: str
    launch: str

    @property
    def is_hardware(self) -> bool:
        """Whether the node itself failed."""
        return self.kind in HARDWARE

    def is_of_day(self, now: float) -> bool:
        """Return whether it counts; clocks of nodes may be ahead."""
        return abs(now - self.at) <= DAY

    def json(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {**self._asdict(), "hardware": self.is_hardware}

    def text(self, now: float) -> str:
        """Return the failure in words, with its job and time."""
        return f"{WORDS[self.kind].format(self.detail)}, job {self.job_id}, {format_time(self.at, now)}"


def note(state: Path, cluster: str, seen: Iterable[NodeFailure], now: float) -> None:
    """Keep what was seen, and remove what is older than a day. What cannot be written is not remembered."""
    with suppress(OSError):
        folder = _folder(state, cluster)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if expired := [name for name in _names(folder) if (one := _parse(name)) and not one.is_of_day(now)]:
            safe_files.remove(folder, expired)
        for one in seen:
            name = ",".join(map(str, one))
            if _parse(name) is not None:
                safe_files.append(folder / name, b"")


def load(state: Path, cluster: str, now: float) -> dict[str, list[NodeFailure]]:
    """Return the failures of the last day by node, oldest first, without those that a later launch has cleared.

    Of a launch each node has one. Empty if there are none, or if another user could have written them.
    """
    names: list[str] = []
    with suppress(OSError):
        names = _names(_folder(state, cluster))
    seen = sorted((one for one in map(_parse, names) if one and one.is_of_day(now)), key=lambda one: one.at)
    cleared = {one.node: one.at for one in seen if one.kind == WELL}
    failures: dict[str, dict[str, NodeFailure]] = {}
    for one in seen:
        if one.kind != WELL and one.at > cleared.get(one.node, 0):
            failures.setdefault(one.node, {}).setdefault(one.launch, one)
    return {node: [*by_launch.values()] for node, by_launch in failures.items()}


def hardware(failures: Iterable[NodeFailure]) -> int:
    """Return how many of the failures are the node's own."""
    return sum(one.is_hardware for one in failures)


def suspects(by_node: Mapping[str, Sequence[NodeFailure]]) -> list[str]:
    """Return the nodes whose hardware failed often enough to leave them out, the worst first."""
    found = [node for node, failures in by_node.items() if hardware(failures) >= ENOUGH]
    return sorted(found, key=lambda node: (-hardware(by_node[node]), -by_node[node][-1].at))


def describe(failures: Sequence[NodeFailure], now: float) -> str:
    """Return the failures of a node in a line, the newest last."""
    count, seen = hardware(failures), "; ".join(one.text(now) for one in failures[-SHOWN:])
    return f"{plural(count, 'hardware failure')} in 24 h: {seen}" if count else seen


def _folder(state: Path, cluster: str) -> Path:
    """Return the folder of a cluster; raises OSError without a usable name."""
    if not cluster or not CLUSTER_NAME.fullmatch(cluster):
        raise FileNotFoundError(cluster)
    return state / "nodes" / cluster


def _parse(name: str) -> NodeFailure | None:
    """Return what a file name says; None for another name, and a kind of a newer version."""
    match = _NAME.fullmatch(name)
    if match is None or match["kind"] not in (*WORDS, WELL):
        return None
    return NodeFailure(match["node"], int(match["at"]), *match.group("kind", "detail", "job_id", "launch"))


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, none if another user could have written them; raises OSError."""
    with safe_files.open_folder(folder) as opened:
        is_trusted = not safe_files.why_untrusted(os.fstat(opened.descriptor), os.getuid())
        return opened.names() if is_trusted else []
