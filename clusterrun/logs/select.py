"""What to look for in a log: --rank and --node as srun tasks, --grep as a pattern."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from clusterrun.errors import RequestError


def compile_grep(pattern: str) -> re.Pattern[str]:
    """The pattern of --grep, a Python regular expression; raises RequestError naming the place of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a construct that may change some day is none of the user's business
            return re.compile(pattern)
    except re.error as error:
        place = "" if error.pos is None else f" at character {error.pos + 1}"
        raise RequestError(
            f"--grep: {error.msg}{place} of {pattern!r}",
            hint="for the characters themselves write a backslash before ( ) [ ] { } . * + ? | ^ $ \\",
        ) from error
    except (OverflowError, RecursionError) as error:
        raise RequestError(f"--grep: {pattern[:40]!r} is too large a pattern", hint="write a simpler one") from error


def node_ranks(start: Mapping[str, Any]) -> dict[str, set[int]]:
    """The ranks on each node, from an attempt's start.json; an entry that says no rank and node is left out."""
    nodes: dict[str, set[int]] = {}
    for rank, _task, node in _entries(start):
        nodes.setdefault(node, set()).add(rank)
    return nodes


def select_tasks(start: Mapping[str, Any] | None, ranks: Collection[int], nodes: Collection[str]) -> set[int]:
    """The srun tasks, which are the labels, of these ranks; on these nodes, where any are named.

    To be called where any is asked for. Asked for both, a rank must be on one of the nodes.
    ``start`` is the attempt's start.json, None where there is none yet: then a rank is taken to be
    its task, as srun starts one per GPU, and asking for a node raises RequestError, as does a rank or
    a node that the job does not have.
    """
    entries = [] if start is None else _entries(start)
    if not entries:
        if nodes:
            raise RequestError(
                "the ranks have not come together yet, so it is not known which of them are on which node",
                hint="ask for ranks (--rank 0), or again once the job has started",
            )
        below = min(ranks, default=0)
        if below < 0:
            raise RequestError(f"there is no rank {below}", hint="ranks count from 0")
        return set(ranks)
    on_node = node_ranks(start or {})
    known = set().union(*on_node.values())
    for node in nodes:
        if node not in on_node:
            raise RequestError(f"the job has no node {node}", hint=f"its nodes: {', '.join(sorted(on_node))}")
    for rank in ranks:
        if rank not in known:
            raise RequestError(f"the job has no rank {rank}", hint=f"its ranks: {_ranges(known)}")
    there = set().union(*(on_node[node] for node in nodes)) if nodes else known
    wanted = there.intersection(ranks) if ranks else there
    if not wanted:
        raise RequestError(
            f"rank {_ranges(ranks)} is not on {', '.join(nodes)}",
            hint=f"the ranks there: {_ranges(there)}",
        )
    tasks = {task for rank, task, _node in entries if rank in wanted}
    shown = {rank for rank, task, _node in entries if task in tasks}
    if shown != wanted:
        # a launcher with one task per node: its label stands before the lines of all ranks there
        raise RequestError(
            f"the lines of ranks {_ranges(shown)} carry one label per node, so {_ranges(wanted)} cannot be told apart",
            hint="ask for the node: --node NAME",
        )
    return tasks


def _entries(start: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """(rank, task, node) of each entry that is whole; the file is another program's, perhaps another user's."""
    ranks = start.get("ranks")
    found = []
    for entry in ranks if isinstance(ranks, list) else []:
        if not isinstance(entry, Mapping):
            continue
        rank, node = entry.get("rank"), entry.get("node")
        task = entry.get("task", rank)
        if type(rank) is int and type(task) is int and isinstance(node, str):
            found.append((rank, task, node))
    return found


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers for people: ``0-3, 8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
