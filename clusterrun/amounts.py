"""How long and how many, as sentences and tables have them. Pure."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1024)
def clock(seconds: float) -> str:
    """Seconds as Slurm writes a duration: ``1-02:03:04``, ``2:03:04``, ``3:04``; less than none is none."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def ago(seconds: float) -> str:
    """An age in one unit: ``4 s``, ``3 min``, ``2 h``, ``5 d``; of a clock that is ahead of ours, ``0 s``."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0, int(seconds))} s"


def several(count: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
