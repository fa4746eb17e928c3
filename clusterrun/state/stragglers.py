"""Which ranks are slow: by the time that each takes for its own data and its own passes, without waiting for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clusterrun.records.progress import RankProgress

SLOW = 0.7  # of the median speed
FEWEST = 3  # ranks: of two, neither is the usual one
SHORTEST_S = 0.010  # per step: below, a rank is slowed by anything
SHOWN = 4  # ranks in a line


class Straggler(NamedTuple):
    """A slow rank; ``speed`` is a fraction of the ranks' median."""

    rank: RankProgress
    speed: float


def find_stragglers(ranks: Sequence[RankProgress]) -> list[Straggler]:
    """Return the slow ranks, the slowest first; none if too few ranks have published their times."""
    busy = {one.rank: busy_s for one in ranks if (busy_s := _busy(one)) is not None}
    if len(busy) < FEWEST:
        return []
    from statistics import median  # it loads decimal and fractions, which `list` does without

    usual = median(busy.values())
    found = [
        Straggler(one, usual / busy[one.rank])
        for one in ranks
        if busy.get(one.rank, 0.0) >= SHORTEST_S and usual < SLOW * busy[one.rank]
    ]
    return sorted(found, key=lambda one: one.speed)


def wait_seconds(rank: RankProgress) -> float | None:
    """Return the rest of a rank's step, mostly waiting for the other ranks; None if it is not known."""
    busy = _busy(rank)
    return None if busy is None or rank.step_s is None else max(0.0, rank.step_s - busy)


def _busy(rank: RankProgress) -> float | None:
    if rank.data_s is None or rank.compute_s is None or rank.phase == "ending":
        return None
    return rank.data_s + rank.compute_s


def format_stragglers(found: Sequence[Straggler]) -> str:
    """Return slow ranks in a line; empty without any."""
    parts = [
        f"rank {one.rank} on {one.node}: {speed:.2f}x the median speed"
        f" (data {_ms(one.data_s)}, compute {_ms(one.compute_s)} per step)"
        for one, speed in found[:SHOWN]
    ]
    return "; ".join(parts) + (f"; {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _ms(seconds: float | None) -> str:
    return f"{1000 * (seconds or 0.0):.0f} ms"
