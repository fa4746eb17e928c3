"""Name the node of a finding: from its own line, from srun's lines, or from torchrun's summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from clusterrun.why.causes.model import READ, Line, LogFinding
from clusterrun.why.causes.tracebacks import split_rank

#: the beginning of a line of NCCL, and of UCX
_SPEAKER = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d[ T][\d:.]+\] )?(?P<nccl>[A-Za-z0-9][\w.-]*):\d+:\d+ \[\d+\] .{0,80}NCCL "
    r"|(?:\[\d+\.\d+\] )?\[(?P<ucx>[A-Za-z][\w.-]*):\d+:\d+(?::\d+)?\] "
)
#: the nodes whose lines DeepSpeed's launcher and pdsh print as ``NODE: text``
_PDSH = re.compile(r"Running on the following workers: (?P<all>[\w.,-]+)|pdsh@\S+: (?P<one>[\w.-]+): ssh exited")
_HOST, _RANK = re.compile(r"\s*host +: ([\w.-]+)"), re.compile(r"\s*rank +: (\d+) \(local_rank")


def with_nodes(findings: Sequence[LogFinding], lines: Sequence[Line], known: Mapping[int, str]) -> list[LogFinding]:
    """Return the findings of one file with their nodes; ``known`` (rank -> node) is preferred to what the log says."""
    if not findings:
        return []
    prefixes = _find_pdsh_nodes(lines)
    of_ranks = _unambiguous(_in_summaries(lines))
    of_tasks = _unambiguous((task, f.node) for f in findings for task in f.ranks if f.node)
    return [
        f if f.node else replace(f, node=_node_of_line(f, prefixes) or _node_of_rank(f, known, of_ranks, of_tasks))
        for f in findings
    ]


def _node_of_line(found: LogFinding, prefixes: frozenset[str]) -> str:
    text = split_rank(found.line)[1][:READ]
    spoken = _SPEAKER.match(text)
    if spoken is not None:
        return spoken["nccl"] or spoken["ucx"]
    prefix, colon, _ = text.partition(": ")
    return prefix if colon and prefix in prefixes else ""


def _node_of_rank(
    found: LogFinding, known: Mapping[int, str], of_ranks: Mapping[int, str], of_tasks: Mapping[int, str]
) -> str:
    if found.rank is None:
        return ""
    node = known.get(found.rank) or of_ranks.get(found.rank, "")
    if not node and found.rank == found.line.rank and not of_ranks:  # under torchrun a task is not a rank
        node = of_tasks.get(found.rank, "")
    return node


def _find_pdsh_nodes(lines: Sequence[Line]) -> frozenset[str]:
    named = (_PDSH.search(line.text[:READ]) for line in lines if "workers: " in line.text or "pdsh@" in line.text)
    return frozenset(node for match in named if match for node in (match["all"] or match["one"]).split(","))


def _in_summaries(lines: Sequence[Line]) -> Iterable[tuple[int, str]]:
    """Yield the rank and host of each failure that torchrun lists."""
    host = ""
    for line in lines:
        if " : " not in line.text[:40]:
            continue
        text = split_rank(line)[1][:READ]
        if (named := _HOST.match(text)) is not None:
            host = named[1]
        elif host and (ranked := _RANK.match(text)) is not None and len(ranked[1]) < 8:
            yield int(ranked[1]), host
            host = ""


def _unambiguous(pairs: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return each number's node; a number that has two, as after a restart, is left out."""
    found: dict[int, set[str]] = {}
    for number, node in pairs:
        found.setdefault(number, set()).add(node)
    return {number: next(iter(nodes)) for number, nodes in found.items() if len(nodes) == 1}
