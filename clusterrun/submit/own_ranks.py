"""Programs that start the ranks of a node themselves: whether those of several nodes meet, and the line that does it.

Such a program runs once per node (``--launcher none``). Without the number of its node it trains a model of its own.
No I/O.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from clusterrun.submit.launcher_options import LAUNCHERS, Launcher, Typed, parse_options
from clusterrun.submit.launchers import launcher_of

#: Variables that differ by node, or lead to the first one, under --launcher none.
_NODE = r"(?:NODE_RANK|MACHINE_RANK|GROUP_RANK|NNODES|MASTER_ADDR|SLURM_NODEID|SLURM_PROCID|SLURM_(?:JOB_)?NODELIST)"
_NAMED = re.compile(rf"(?<![A-Z_]){_NODE}(?![A-Z_])|\{{(?:node_)?rank\}}")
#: An assignment in a shell script, or in Python; its right side says whether the variable is the job's.
_ASSIGNED = re.compile(
    rf"(?:(?<![\w-])(?P<shell>{_NODE})=|(?:\[|setdefault\()\s*[\"'](?P<python>{_NODE})[\"'](?:\]\s*=(?!=)|\s*,))\s*"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|\$\([^\n]*|[^\s;]*)"
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
#: A meeting place that is not on the node itself.
_MEETING = re.compile(r"rdzv[-_]endpoint[=\s]+[\"']?(?!localhost|127\.|0\.0\.0\.0|\$\(?hostname|\$HOSTNAME)[\w$]")
_RENDEZVOUS = {"standalone", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "same-network"}


def knows_node(text: str) -> bool:
    """Return whether a script or a line uses something that differs by node, or leads to the first node.

    A variable that the text sets itself, such as ``MASTER_ADDR=localhost``, does not count.
    """
    text = _COMMENT.sub("", text)
    own = {one["shell"] or one["python"] for one in _ASSIGNED.finditer(text) if not _NAMED.search(one["value"])}
    named = {match[0] for match in _NAMED.finditer(text)}
    return bool(named - own) or _MEETING.search(text) is not None


def in_shell(line: Sequence[str]) -> str:
    """Return a launcher's line as a shell command that makes the ranks of all nodes one group; empty if there is none.

    Its variables are those of ``--launcher none``.
    """
    named = launcher_of(line)
    launcher = LAUNCHERS[named[0]] if named is not None else None
    if named is None or launcher is None or not launcher.on_nodes:
        return ""
    start = shlex.join(line[: len(line) - len(named[1])])
    rest = _without_shape(named[0], launcher, named[1])
    parts = [launcher.on_nodes, start] if "=" in launcher.on_nodes else [start, launcher.on_nodes]  # variables first
    return " ".join([*parts, *map(shlex.quote, rest)])


def _without_shape(title: str, launcher: Launcher, words: Sequence[str]) -> list[str]:
    """Return a launcher's words without the options that ``on_nodes`` gives."""
    if not launcher.table.options:
        return list(words)
    typed, program = parse_options(title, launcher.table, words)
    given = {name.replace("_", "-") for name in re.findall(r"--([\w-]+)", launcher.on_nodes or "")} | _RENDEZVOUS
    return [*(word for one in typed if one.option.name not in given for word in _as_typed(one)), *program]


def _as_typed(one: Typed) -> list[str]:
    if not one.option.values:
        return [one.spelled]
    if one.option.values < 0:
        return [f"{one.spelled}={one.value}" if one.value else one.spelled]
    return [one.spelled, *(one.value.split("=", 1) if one.option.values > 1 else [one.value])]


def on_each_node(line: Sequence[str], launcher: Launcher | None, nodes: int) -> list[str] | None:
    """Return the program for ``--launcher none`` that starts a launcher's line on each node, as one group of ranks.

    None if the launcher cannot do that; a program of the user's own is expected to read the variables.
    """
    if nodes == 1 or launcher is None or launcher.on_nodes == "":
        return list(line)
    command = in_shell(line)
    return ["bash", "-c", command] if command else None
