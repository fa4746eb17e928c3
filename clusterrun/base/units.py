"""Durations, times and amounts as sentences and tables show them."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from functools import lru_cache

from clusterrun.base.errors import RequestError

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)",
    re.ASCII,
)
# Slurm stores minutes in an int: sbatch accepts more, and the job's limit is then INVALID (observed on 22.05)
_MOST_SECONDS = 60 * (2**31 - 1)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@lru_cache(maxsize=1024)
def format_duration(seconds: float | None) -> str:
    """Return seconds as Slurm writes a duration: ``1-02:03:04``, ``2:03:04``, ``3:04``; a negative time is ``0:00``."""
    if seconds is None:
        return "an unknown time"
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def format_time_limit(seconds: int) -> str:
    """Return seconds as a time limit for ``--time``: always ``H:MM:SS``, so that minutes are not read as hours."""
    return f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


def format_clock(at: float) -> str:
    """Return a moment as ``HH:MM:SS`` in this machine's time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def format_age(seconds: float) -> str:
    """Return an age in one unit: ``4 s``, ``3 min``, ``2 h``, ``5 d``; a negative one is ``0 s``."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0, int(seconds))} s"


def plural(count: int, noun: str) -> str:
    """Return ``1 node``, ``3 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_when(at: float | None, now: float) -> str:
    """Return a moment in this machine's time: ``now``, ``in 25 min``, ``today 18:05``, ``Sat 14:20``."""
    if at is None:
        return "time unknown"
    if at - now <= 60:
        return "now"
    if at - now < 90 * 60:
        return f"in {round((at - now) / 60)} min"
    return format_time(at, now)


def format_time(at: float, now: float) -> str:
    """Return a past or future moment as ``today 18:05``; within a week with the weekday, else with the date."""
    there, here = time.localtime(at), time.localtime(now)
    if there[:3] == here[:3]:
        return time.strftime("today %H:%M", there)
    if abs(at - now) < 6 * 86_400:
        return time.strftime("%a %H:%M", there)
    return time.strftime("%-d %b %Y %H:%M", there)


def format_time_and_offset(epoch: float, now: float) -> str:
    """Return a moment in this machine's time and its distance: ``11:30:05, in 59:12``."""
    far = "%Y-%m-%d %H:%M" if abs(epoch - now) > 20 * 3600 else "%H:%M:%S"
    off = f"in {format_duration(epoch - now)}" if epoch >= now else f"{format_duration(now - epoch)} ago"
    return f"{time.strftime(far, time.localtime(epoch))}, {off}"


def format_tres(tres: str, value: float) -> str:
    """Return an amount of a resource: ``4 gres/gpu``, ``62.5G mem``."""
    name = tres or "of it"
    if tres == "mem" or tres.startswith("bb/"):
        return f"{_format_memory(value)} {name}"
    return f"{value:g} {name}"


def first_few(names: list[str], most: int = 6) -> str:
    """Return the first few names and the number of the others."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def format_bytes(size: int) -> str:
    """Return a size in bytes as ``305.9 MiB`` or ``1.5 GiB``."""
    mebibytes = size / 1024**2
    return f"{mebibytes:.1f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"


def _format_memory(megabytes: float) -> str:
    return f"{megabytes / 1024:g}G" if megabytes >= 1024 and megabytes % 512 == 0 else f"{megabytes:g}M"


def parse_since(text: str, now: float) -> float:
    """Parse ``10m`` (an age), ``14:05`` (today, else yesterday) or a date into seconds since 1970.

    An age may reach back before 1970. Raises RequestError.
    """
    text = text.strip()
    age = re.fullmatch(r"(\d{1,9})([smhdw])", text, re.ASCII)
    if age:
        return now - int(age[1]) * _SECONDS[age[2]]
    today = datetime.fromtimestamp(now)
    try:
        if re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", text, re.ASCII):
            hour, minute, second = (*map(int, text.split(":")), 0)[:3]
            then = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (then if then <= today else then - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    hint = "for example --since 10m, 2h, 1d, 14:05 or 2026-11-21T14:05"
    raise RequestError(f"--since: {text[:40]!r} is not a valid time", hint=hint)


def parse_time_limit(text: str) -> int | None:
    """Parse a time limit in one of sbatch's formats. Returns seconds, or None for UNLIMITED or 0."""
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    match = _TIME.fullmatch(text) if len(text) < 40 else None  # int() refuses thousands of digits
    if match is None:
        raise RequestError(
            f"--time: {text[:40]!r} is not a valid time limit",
            hint="use minutes (90), HH:MM:SS (2:00:00) or DAYS-HOURS (1-12 is 36 hours)",
        )
    days, hours, minutes, seconds = (int(match[k] or 0) for k in ("days", "dh", "dm", "ds"))
    if match["days"] is None:
        a, b, c = (int(match[k] or 0) for k in ("a", "b", "c"))
        # sbatch reads 90 as minutes, 90:30 as minutes and seconds
        hours, minutes, seconds = (a, b, c) if match["c"] is not None else (0, a, b)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total > _MOST_SECONDS:
        raise RequestError(f"--time: {text!r} is too long for Slurm", hint="use UNLIMITED for no time limit")
    return total or None  # 0 means no time limit in sbatch
