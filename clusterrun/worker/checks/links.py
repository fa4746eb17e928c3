"""All-reduces within nodes, between pairs of nodes and over all ranks, each in a process group of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as torch_dist

from ..rank.distenv import DistEnv
from ..rank.failures import first_line
from .connect import reach
from .measured import Link, Tries

if TYPE_CHECKING:
    from . import Effort

KIB, MIB = 2**10, 2**20
SIZES = {"gloo": (4 * KIB, 256 * KIB, 4 * MIB), "nccl": (64 * KIB, 8 * MIB, 256 * MIB)}  # over all ranks
COMPARED = {"gloo": (4 * MIB,), "nccl": (64 * MIB,)}  # within nodes and between pairs
MOST_FOR_ALL_PAIRS = 16  # nodes; with more each node gets partners at distances 1, 2, 4, …: every bisection
MOST_TRIES, FEWEST_TRIES = 12, 2
TIMEOUT_S = {"gloo": 20.0, "nccl": 60.0}
Round = tuple[str, list[list[str]], tuple[int, ...]]  # kind, groups of nodes, sizes in bytes


class Meeting:
    """A barrier on the run's store with a deadline. After ranks were late once, it waits for them only briefly."""

    def __init__(self, store: Any, count: int) -> None:
        self._store, self._count = store, count
        self._late = False

    def meet(self, name: str, limit: float) -> bool:
        """Wait until all ranks have come, at most `limit` seconds. Return whether all came."""
        come = self._store.add(f"meet/{name}", 1)
        end = time.monotonic() + (1.0 if self._late else limit)
        while come < self._count and time.monotonic() < end:
            time.sleep(0.01)
            come = self._store.add(f"meet/{name}", 0)
        self._late = self._late or come < self._count
        return bool(come >= self._count)


def pair_rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs of nodes: every pair, or with many nodes those at distances of powers of two."""
    if count > MOST_FOR_ALL_PAIRS:
        steps = [1 << bit for bit in range((count - 1).bit_length())]
        return [[(i, i ^ step) for i in range(count) if i < i ^ step < count] for step in steps]
    circle = [*range(count), *([-1] if count % 2 else [])]
    rounds = []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[: len(circle) // 2], reversed(circle[len(circle) // 2 :]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def measure_all(
    dist: DistEnv, store: Any, meeting: Meeting, ranks: list[dict[str, Any]], backend: str, effort: Effort,
    found: list[dict[str, Any]],
) -> None:  # fmt: skip
    """Measure all groups and append this rank's part to `found`: its groups' figures if it comes first, and errors."""
    if backend == "nccl":
        torch.cuda.set_device(next(one["device"] for one in ranks if one["rank"] == dist.rank))
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a timeout raises an error instead of ending the process
    members = _members(ranks)
    rounds, end = plan_rounds(members, backend, effort.passes), time.monotonic() + effort.links_s
    for number, (kind, groups, sizes) in enumerate(rounds):
        store.add("late", int(time.monotonic() > end))
        meeting.meet(f"round/{number}", 2 * TIMEOUT_S[backend])
        if _is_over(store, kind):
            break
        group = _group_of(dist.node, groups)
        in_group = [*chain.from_iterable(members[node] for node in group)]
        broken = f"broken/{kind}/{' '.join(group)}"  # in an earlier pass
        if len(in_group) < 2 or store.add(broken, 0):
            continue
        try:
            name, places = f"group/{number}/{group[0]}", _others(ranks, group, dist.node)
            results = _measure(backend, store, name, places, in_group, dist.rank, sizes, effort.size_s)
            found += _links(kind, group, in_group, dist.rank, results)
        except Exception as error:  # what breaks is the result
            store.add("errors", 1)
            store.add(broken, 1)
            found.append(Link(kind, tuple(group), len(in_group), error=first_line(error))._asdict())


def _members(ranks: list[dict[str, Any]]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for one in ranks:
        members.setdefault(one["node"], []).append(one["rank"])
    return members


def _is_over(store: Any, kind: str) -> bool:
    """Return whether no more is measured; all ranks decide alike: what they read was written before they met."""
    return bool(store.add("late", 0) or (kind == "all" and store.add("errors", 0)))


def _group_of(node: str, groups: list[list[str]]) -> list[str]:
    return next((group for group in groups if node in group), [])


def _others(ranks: list[dict[str, Any]], group: list[str], own: str) -> dict[str, tuple[str, int]]:
    return {one["node"]: one["place"] for one in ranks if one["node"] in group and one["node"] != own}


def _links(
    kind: str, group: list[str], ranks: list[int], rank: int, results: list[tuple[int, list[float], bool]]
) -> Iterator[dict[str, Any]]:
    """Yield what this rank reports of its group: all sizes if it comes first in it, and wrong sums."""
    moved = 2 * (len(ranks) - 1) / len(ranks)  # bytes over the slowest link of a ring, for each byte
    for size, seconds, correct in results:
        if rank == ranks[0] or not correct:
            busbw = Tries(moved * size / min(seconds), moved * size / max(seconds))
            yield Link(kind, tuple(group), len(ranks), size, busbw, correct)._asdict()


def plan_rounds(members: dict[str, list[int]], backend: str, passes: int) -> list[Round]:
    """Return the rounds; that over all ranks comes last, since a broken link breaks it too.

    `members` has the ranks of each node. The groups of a round are disjoint, and are measured at the same time. Several
    `passes` over the pairs keep one busy moment from making a link look slow.
    """
    nodes, rounds = list(members), list[Round]()
    if max(map(len, members.values())) > 1:
        rounds.append(("node", [[node] for node in nodes], COMPARED[backend]))
    pairs = [[[nodes[a], nodes[b]] for a, b in one] for one in pair_rounds(len(nodes))] if len(nodes) > 1 else []
    rounds += [("pair", one, COMPARED[backend]) for _ in range(passes) for one in pairs]
    if sum(map(len, members.values())) > 1:
        rounds.append(("all", [nodes], SIZES[backend]))
    return rounds


def _measure(
    backend: str,
    store: Any,
    name: str,
    places: dict[str, tuple[str, int]],
    ranks: list[int],
    rank: int,
    sizes: tuple[int, ...],
    size_s: float,
) -> list[tuple[int, list[float], bool]]:
    """Return bytes, seconds of each try, and whether the sum was correct, for each size; raises errors of torch."""
    me, count = ranks.index(rank), len(ranks)
    if error := reach(store, name, count, places):
        raise OSError(error)
    try:
        torch_dist.init_process_group(
            backend,
            store=torch_dist.PrefixStore(name, store),  # type: ignore[attr-defined]
            rank=me,
            world_size=count,
            timeout=timedelta(seconds=TIMEOUT_S[backend]),
        )
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        return [*_time_sizes(sizes, size_s, me, count, device)]
    finally:
        with suppress(Exception):
            torch_dist.destroy_process_group()


def _time_sizes(
    sizes: tuple[int, ...], size_s: float, me: int, count: int, device: torch.device
) -> Iterator[tuple[int, list[float], bool]]:
    _timed(torch.ones(1, device=device))  # opens the connections
    for size in sizes:
        pattern = (torch.arange(size // 4, device=device) % 251).float()
        tensor = pattern + me
        slowest = torch.tensor([_timed(tensor)], device=device)
        correct = bool(torch.equal(tensor, count * pattern + count * (count - 1) // 2))
        torch_dist.all_reduce(slowest, torch_dist.ReduceOp.MAX)  # all ranks must agree on the number of tries
        tries = max(FEWEST_TRIES, min(MOST_TRIES, int(size_s / max(1e-9, float(slowest)))))
        tensor.zero_()  # sums of sums would overflow
        yield size, [_timed(tensor) for _ in range(tries)], correct


def _timed(tensor: torch.Tensor) -> float:
    began = time.perf_counter()
    torch_dist.all_reduce(tensor)
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter() - began
