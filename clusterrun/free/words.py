"""Small words: how many, and when."""

from __future__ import annotations

import time


def counted(number: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {what}{'s'[: number != 1]}"


def clock(seconds: int) -> str:
    """A time limit as Slurm writes it: ``1-02:00:00``, ``2:00:00``."""
    days, rest = divmod(seconds, 86_400)
    hours = f"{days}-{rest // 3600:02}" if days else str(rest // 3600)
    return f"{hours}:{rest % 3600 // 60:02}:{rest % 60:02}"


def when(at: float | None, now: float) -> str:
    """A moment as people say it, in this machine's time: ``now``, ``in 25 min``, ``today 18:05``, ``Sat 14:20``."""
    if at is None:
        return "at a time Slurm cannot tell"
    if at - now <= 60:
        return "now"
    if at - now < 90 * 60:
        return f"in {round((at - now) / 60)} min"
    return moment(at, now)


def moment(at: float, now: float) -> str:
    """A moment by the clock, of the past or the future; the weekday alone within a week, else the date."""
    there, here = time.localtime(at), time.localtime(now)
    if there[:3] == here[:3]:
        return time.strftime("today %H:%M", there)
    if abs(at - now) < 6 * 86_400:
        return time.strftime("%a %H:%M", there)
    return time.strftime("%-d %b %Y %H:%M", there)
