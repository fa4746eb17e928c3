"""Times and amounts as sentences have them. Pure."""

from __future__ import annotations

import time

from clusterrun import amounts


def clock(seconds: float | None) -> str:
    """Seconds as Slurm writes a duration, and words for one that nobody told."""
    return "an unknown time" if seconds is None else amounts.clock(seconds)


def moment(epoch: float, now: float) -> str:
    """A time to come or past, in this machine's time zone, and how far off it is: ``11:30:05, in 59:12``."""
    far = "%Y-%m-%d %H:%M" if abs(epoch - now) > 20 * 3600 else "%H:%M:%S"
    off = f"in {clock(epoch - now)}" if epoch >= now else f"{clock(now - epoch)} ago"
    return f"{time.strftime(far, time.localtime(epoch))}, {off}"


def amount(tres: str, value: float) -> str:
    """So much of a resource: ``4 gres/gpu``, ``62.5G mem``."""
    name = tres or "of it"
    if tres == "mem" or tres.startswith("bb/"):
        return f"{_memory(value)} {name}"
    return f"{value:g} {name}"


def some(names: list[str], most: int = 6) -> str:
    """The first few names and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _memory(megabytes: float) -> str:
    return f"{megabytes / 1024:g}G" if megabytes >= 1024 and megabytes % 512 == 0 else f"{megabytes:g}M"
