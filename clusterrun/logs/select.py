"""What to look for in a log: --rank and --node as srun tasks or prefixes, --grep as a pattern, --since as a time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.logs.files import LogFile

_MOST = 1_000_000  # ranks; more is a slip of the finger
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_HEAD = 256 * 1024  # bytes of a log's beginning and of its end in which labels are looked for
_LABEL = re.compile(rb"^ *\d{1,10}: ?", re.MULTILINE)
_PREFIX = re.compile(rb"^(?: *\d{1,10}: ?)?\[rank\d+\]:", re.MULTILINE)


@dataclass(frozen=True)
class Choice:
    """Which lines are asked for: those with these labels (None: any) and, where ranks share one, with this prefix."""

    tasks: frozenset[int] | None = None
    prefix: re.Pattern[str] | None = None


def parse_ranks(texts: Iterable[str]) -> frozenset[int]:
    """The ranks of ``3``, ``0-7`` and ``0-3,8``; raises RequestError."""
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
                raise RequestError(f"--rank: there is no rank {last}", hint="ranks count from 0")
            found.update(range(first, last + 1))
    return frozenset(found)


def parse_since(text: str, now: float) -> float:
    """The second (since 1970) of ``10m`` ago, of ``14:05`` today (else yesterday) or of a date; raises RequestError."""
    words = text.strip()
    ago = re.fullmatch(r"(\d{1,9})([smhdw])", words, re.ASCII)
    if ago:
        return max(0.0, now - int(ago[1]) * _UNITS[ago[2]])
    today = datetime.fromtimestamp(now)
    try:
        if re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", words, re.ASCII):
            hour, minute, second = (*map(int, words.split(":")), 0)[:3]
            then = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (then if then <= today else then - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(words).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    hint = "for example --since 10m, 2h, 1d, 14:05 or 2026-11-21T14:05"
    raise RequestError(f"--since: not a time: {text[:40]!r}", hint=hint)


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


def choose(
    start: Mapping[str, Any] | None, ranks: Collection[int], nodes: Collection[str], *,
    files: Iterable[Path] = (), labelled: bool = False,
) -> Choice:  # fmt: skip
    """Which lines those ranks are, on those nodes: all where neither is named.

    ``start`` is the attempt's start.json. ``labelled`` says that every rank's lines bear srun's label; of another's job
    that is looked up in its ``files``. Raises RequestError where the lines do not tell whose they are.
    """
    if not ranks and not nodes:
        return Choice()
    if nodes and not labelled:
        raise RequestError(
            "which ranks are on which node is known of clusterrun's own jobs only", hint="ask for ranks: --rank 0"
        )
    shared = start is not None and _share_labels(start)
    if labelled and not (shared and ranks):
        return Choice(tasks=frozenset(select_tasks(start, ranks, nodes)))
    has = [_marks(path) for path in files]
    if not labelled and any(label for label, _ in has):
        return Choice(tasks=frozenset(ranks))
    if any(prefixed for _, prefixed in has):  # labels first: torch itself writes this before lines of a traceback
        return Choice(prefix=re.compile(rf"^\[rank(?:{'|'.join(map(str, sorted(ranks)))})\]:"))
    if labelled:
        return Choice(tasks=frozenset(select_tasks(start, ranks, nodes)))
    word = "rank" if len(ranks) == 1 else "ranks"
    raise RequestError(
        f"no line says which rank wrote it, so {word} {_ranges(ranks)} cannot be told apart",
        hint="srun --label marks each line; without it, look for words: --grep RE",
    )


def _share_labels(start: Mapping[str, Any]) -> bool:
    tasks = [task for _, task, _ in _entries(start)]
    return len(set(tasks)) < len(tasks)


def _marks(path: Path) -> tuple[bool, bool]:
    """Whether lines of a log bear labels, and ``[rankN]:``; judged by its beginning and its end."""
    try:
        with closing(LogFile(path)) as file:
            size = file.size()
            data = b"".join(file.blocks(0, _HEAD)) + b"\n" + b"".join(file.blocks(max(_HEAD, size - _HEAD), size))
    except OSError:
        return False, False
    return _LABEL.search(data) is not None, _PREFIX.search(data) is not None


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
