"""Parse --rank, --node and --grep into labels, prefixes and patterns to search a log for."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.logs.files import LogFile

_MOST = 1_000_000  # ranks; a larger number is a typing mistake
_HEAD = 256 * 1024  # bytes at each end of a log that are searched for labels
_LABEL = re.compile(rb"^ *\d{1,10}: ?", re.MULTILINE)
_PREFIX = re.compile(rb"^(?: *\d{1,10}: ?)?\[rank\d+\]:", re.MULTILINE)


@dataclass(frozen=True)
class RankFilter:
    """The lines of some ranks: those with these srun labels (None: any), or with this prefix if ranks share a label."""

    tasks: frozenset[int] | None = None
    prefix: re.Pattern[str] | None = None


def parse_ranks(texts: Iterable[str]) -> frozenset[int]:
    """Parse ranks as ``3``, ``0-7`` or ``0-3,8``. Raises RequestError."""
    found: set[int] = set()
    for text in texts:
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part, re.ASCII)
            if match is None:
                raise RequestError(f"--rank: not a rank: {part[:40]!r}", hint="for example --rank 3 or --rank 0-3,8")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise RequestError(f"--rank: {first}-{last} has no ranks", hint=f"write --rank {last}-{first}")
            if last >= _MOST:
                raise RequestError(f"--rank: there is no rank {last}", hint="ranks start at 0")
            found.update(range(first, last + 1))
    return frozenset(found)


def compile_grep(pattern: str, flag: str = "--grep") -> re.Pattern[str]:
    """Compile the Python regular expression of a flag. Raises RequestError with the position of the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of syntax that may change; that does not help the user
            return re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise RequestError(
            f"{flag}: {error.msg}{where} of {pattern!r}",
            hint="to match one of ( ) [ ] { } . * + ? | ^ $ \\ itself, put a backslash before it",
        ) from error
    except (OverflowError, RecursionError) as error:
        raise RequestError(f"{flag}: {pattern[:40]!r} is too large", hint="use a simpler pattern") from error


def filter_ranks(
    start: Mapping[str, Any] | None, ranks: Collection[int], nodes: Collection[str], *,
    files: Iterable[Path] = (), labelled: bool = False,
) -> RankFilter:  # fmt: skip
    """Return the filter for the lines of these ranks on these nodes; all lines if both are empty.

    ``start`` is the attempt's start.json. ``labelled``: every line has srun's label; else the ``files`` are searched
    for labels. Raises RequestError if the lines do not show their rank.
    """
    if not ranks and not nodes:
        return RankFilter()
    if nodes and not labelled:
        raise RequestError("--node works only for jobs submitted by clusterrun", hint="select ranks instead: --rank 0")
    shared = start is not None and _share_labels(start)
    if labelled and not (shared and ranks):
        return RankFilter(tasks=frozenset(select_tasks(start, ranks, nodes)))
    has = [_find_labels(path) for path in files]
    if not labelled and any(label for label, _ in has):
        return RankFilter(tasks=frozenset(ranks))
    if any(
        prefixed for _, prefixed in has
    ):  # after labels: torch writes this prefix before the lines of a traceback too
        return RankFilter(prefix=re.compile(rf"^\[rank(?:{'|'.join(map(str, sorted(ranks)))})\]:"))
    if labelled:
        return RankFilter(tasks=frozenset(select_tasks(start, ranks, nodes)))
    raise RequestError(
        f"--rank {format_ranges(ranks)}: the lines of this log have no rank",
        hint="run srun with --label to add it, or use --grep RE",
    )


def _share_labels(start: Mapping[str, Any]) -> bool:
    tasks = [task for _, task, _ in _entries(start)]
    return len(set(tasks)) < len(tasks)


def _find_labels(path: Path) -> tuple[bool, bool]:
    """Whether lines at the ends of a log have labels, and whether they have ``[rankN]:``."""
    try:
        with closing(LogFile(path)) as file:
            size = file.size()
            data = b"".join(file.blocks(0, _HEAD)) + b"\n" + b"".join(file.blocks(max(_HEAD, size - _HEAD), size))
    except OSError:
        return False, False
    return _LABEL.search(data) is not None, _PREFIX.search(data) is not None


def node_ranks(start: Mapping[str, Any]) -> dict[str, set[int]]:
    """Return the ranks on each node, from an attempt's start.json; an entry without rank or node is left out."""
    nodes: dict[str, set[int]] = {}
    for rank, _task, node in _entries(start):
        nodes.setdefault(node, set()).add(rank)
    return nodes


def select_tasks(start: Mapping[str, Any] | None, ranks: Collection[int], nodes: Collection[str]) -> set[int]:
    """Return the srun tasks, which are the labels, of these ranks on these nodes. At least one must be given.

    With both, a rank must be on one of the nodes. ``start`` is the attempt's start.json. Without one, each rank is its
    own task, as srun starts one per GPU. Raises RequestError for a rank or node that the job does not have, and for a
    node without ``start``.
    """
    entries = [] if start is None else _entries(start)
    if not entries:
        if nodes:
            raise RequestError(
                "--node: the ranks have not started, so their nodes are not known",
                hint="try again when the job has started, or select ranks: --rank 0",
            )
        below = min(ranks, default=0)
        if below < 0:
            raise RequestError(f"there is no rank {below}", hint="ranks start at 0")
        return set(ranks)
    on_node = node_ranks(start or {})
    known = set().union(*on_node.values())
    for node in nodes:
        if node not in on_node:
            raise RequestError(f"the job has no node {node}", hint=f"its nodes: {', '.join(sorted(on_node))}")
    for rank in ranks:
        if rank not in known:
            raise RequestError(f"the job has no rank {rank}", hint=f"its ranks: {format_ranges(known)}")
    there = set().union(*(on_node[node] for node in nodes)) if nodes else known
    selected = there.intersection(ranks) if ranks else there
    if not selected:
        raise RequestError(
            f"rank {format_ranges(ranks)} is not on {', '.join(nodes)}",
            hint=f"ranks there: {format_ranges(there)}",
        )
    tasks = {task for rank, task, _node in entries if rank in selected}
    shown = {rank for rank, task, _node in entries if task in tasks}
    if shown != selected:
        # a launcher with one task per node: all its ranks have the same label
        raise RequestError(
            f"--rank {format_ranges(selected)}: ranks {format_ranges(shown)} have one label per node",
            hint="select the node: --node NAME",
        )
    return tasks


def _entries(start: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Return (rank, task, node) of each valid entry; another user may have written the file."""
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


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ``0-3, 8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
