"""The efficiency card: what an ended run used of what it asked for, and what to ask for next time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from clusterrun.base.units import format_amount, format_duration, format_time_limit

MARGIN = 1.25  # what to ask for, by what was used
FITS = 0.75  # advice below this part of the request is given; above it the request fits
SHORTEST_S, SMALLEST_GIB = 600, 2
#: Up to how much a request is rounded to which step, so that it is plain: seconds, and GiB.
_SECONDS = ((3600, 300), (12 * 3600, 1800), (math.inf, 3600))
_GIB = ((16, 1), (64, 4), (math.inf, 16))


class Usage(NamedTuple):
    """What a run used of what it asked for. None: not known.

    ``seconds`` is how long its last start took, of at most ``asked_s``; ``gpu_hours`` counts all starts of its job.
    ``gpu_busy`` is the part of the time in which its GPUs worked, from 0 to 1. Memory is in GiB, that of the node or of
    the GPU that used most. ``is_whole``: the run completed in one start, so that it takes ``seconds``.
    ``was_too_little``: it was killed for memory, so that it needed more than it had.
    """

    gpu_hours: float | None = None
    gpu_busy: float | None = None
    gpu_memory_gib: float | None = None
    memory_gib: float | None = None
    asked_memory_gib: float | None = None
    seconds: float | None = None
    asked_s: float | None = None
    is_whole: bool = False
    was_too_little: bool = False


class Request(NamedTuple):
    """The ``--time`` (seconds) and ``--mem`` (GiB) to ask for next time; None if the request fits or is not known."""

    seconds: int | None = None
    memory_gib: int | None = None

    def options(self) -> str:
        """Return ``--time 4:00:00 --mem 16G``; empty if there is nothing to change."""
        time = "" if self.seconds is None else f"--time {format_time_limit(self.seconds)}"
        memory = "" if self.memory_gib is None else f"--mem {self.memory_gib}G"
        return " ".join(filter(None, (time, memory)))


class Efficiency(NamedTuple):
    """The card of an ended run."""

    usage: Usage
    request: Request

    def lines(self) -> list[str]:
        """Return up to three lines: what was used, the request beside it, and the next request; only what is known."""
        options = self.request.options()
        return list(filter(None, (_used(self.usage), _asked(self.usage), options and f"next time ask for {options}")))

    def json(self) -> dict[str, Any]:
        """Return the values for ``--json``: seconds, GiB, and ``next`` with the options to ask for."""
        wanted = {"time_s": self.request.seconds, "memory_gib": self.request.memory_gib}
        return {**self.usage._asdict(), "next": wanted}


def learn(usage: Usage, earlier: Sequence[Usage] = ()) -> Request:
    """Return what to ask for next time, by the most that this run and ``earlier`` ones of the same job used.

    Only runs that completed count, as others may have needed more; this run must be one. What a run had that was
    killed for memory is a floor.
    """
    if not usage.is_whole:
        return Request()
    runs = [usage, *(run for run in earlier if run.is_whole)]
    seconds = _plain([run.seconds for run in runs], _SECONDS, SHORTEST_S)
    too_little = [run.asked_memory_gib or run.memory_gib for run in earlier if run.was_too_little]
    memory = _plain([*(run.memory_gib for run in runs), *filter(None, too_little)], _GIB, SMALLEST_GIB)
    return Request(_if_less(seconds, usage.asked_s), _if_less(memory, usage.asked_memory_gib))


def _plain(used: Sequence[float | None], steps: Sequence[tuple[float, int]], least: int) -> int | None:
    """Return the most that was used with a margin, rounded up; None if it is not known of each run."""
    known = [value for value in used if value is not None]
    if len(known) < len(used):
        return None
    wanted = MARGIN * max(known)
    step = next(step for most, step in steps if wanted <= most)
    return max(least, step * math.ceil(wanted / step))


def _if_less(wanted: int | None, asked: float | None) -> int | None:
    """Return what to ask for if it is clearly less than what was asked for."""
    if wanted is None or asked is None or wanted > FITS * asked:
        return None
    return wanted


def _used(usage: Usage) -> str:
    """Return ``25.3 GPU-hours, GPUs 71 % busy, peak memory 12 GB, 61 GB on a GPU``."""
    parts = []
    if usage.gpu_hours is not None:
        parts.append(f"{format_amount(usage.gpu_hours)} GPU-hours")
    if usage.gpu_busy is not None:
        parts.append(f"GPUs {usage.gpu_busy * 100:.0f} % busy")
    if usage.memory_gib is not None:
        parts.append(f"peak memory {_gb(usage.memory_gib)}")
    if usage.gpu_memory_gib is not None:
        parts.append(f"{_gb(usage.gpu_memory_gib)} on a GPU")
    return ", ".join(parts)


def _asked(usage: Usage) -> str:
    """Return ``you asked for 80 GB and 12:00:00 and used 12 GB and 3:10:00``."""
    pairs = []
    if usage.asked_memory_gib is not None and usage.memory_gib is not None:
        pairs.append((_gb(usage.asked_memory_gib), _gb(usage.memory_gib)))
    if usage.asked_s is not None and usage.seconds is not None:
        pairs.append((format_duration(usage.asked_s), format_duration(usage.seconds)))
    if not pairs:
        return ""
    asked, used = zip(*pairs, strict=True)
    return f"you asked for {' and '.join(asked)} and used {' and '.join(used)}"


def _gb(gib: float) -> str:
    """Return memory as Slurm counts it: its G is a GiB."""
    return f"{gib:.1f} GB" if gib < 9.95 and gib % 1 else f"{gib:.0f} GB"
