"""When, as people say it."""

from __future__ import annotations

import time


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
