"""Durations, times and amounts as sentences and tables show them."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from functools import lru_cache

from .errors import RequestError, from_source

_SLURM_TIME = (
    r"(?P<days>\d{1,11})-(?P<dh>\d{1,11})(?::(?P<dm>\d{1,11})(?::(?P<ds>\d{1,11}))?)?"
    r"|(?P<h>\d{1,11}):(?P<hm>\d{1,11}):(?P<hs>\d{1,11})"
    r"|(?P<m>\d{1,11})(?::(?P<ms>\d{1,11}))?"
)
_UNIT_TIME = r"(?=\d)(?:(\d{1,9})w)?(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?"
_UNIT_SECONDS = (604_800, 86_400, 3600, 60, 1)
_NO_LIMIT = ("UNLIMITED", "INFINITE")
# Slurm stores minutes in an int: sbatch accepts more, and the job's limit is then INVALID (observed on 22.05)
_MOST_SECONDS = 60 * (2**31 - 1)


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


def format_left(seconds: float) -> str:
    """Return the time that is left in two units: ``3d 4h``, ``2h 15m``, ``12m``, ``40s``."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{max(0, round(seconds))}s"
    days, rest = divmod(minutes, 24 * 60)
    hours, minute = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minute:02}m" if hours else f"{minute}m"


def plural(count: int, noun: str) -> str:
    """Return ``1 node``, ``3 nodes``, ``1,000 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def clause(text: object, form: str) -> str:
    """Return a text in its form, as ``clause(node, " on {}")``; empty without a text."""
    return form.format(text) if text else ""


def format_amount(value: float) -> str:
    """Return an amount for people: ``1,440``, ``33.33``, ``0.5``; one below 0.1 with two digits, ``0.017``."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if value >= 0.1 else f"{value:.2g}"


def format_short(value: float) -> str:
    """Return a number of any size in a few letters: ``11,216``, ``2.345``, ``0.0003``, ``3e-5``."""
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    number, _, exponent = f"{value:.4g}".partition("e")
    return f"{number}e{int(exponent)}" if exponent else number


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


def format_rate(bytes_per_s: float) -> str:
    """Return a bandwidth in decimal units, as makers of networks print it."""
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"


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
    age = parse_age(text)
    if age is not None:
        return now - age
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


def parse_age(text: str) -> int | None:
    """Parse a number with a unit, or several (``90m``, ``1h30m``, ``2d``), into seconds; None for another text."""
    match = re.fullmatch(_UNIT_TIME, text, re.ASCII)
    if match is None:
        return None
    return sum(int(number or 0) * size for number, size in zip(match.groups(), _UNIT_SECONDS, strict=True))


def parse_time_limit(text: str, option: str = "--time", source: str = "") -> int | None:
    """Parse a time limit: ``90m``, ``1h30m``, ``2d``, or one of sbatch's formats, which mean what they mean there.

    Returns seconds, or None for UNLIMITED and 0, which is no limit in sbatch. Raises RequestError.
    """
    if text.upper() in _NO_LIMIT:
        return None
    seconds = _parse_time(text)
    if seconds is None:
        raise _not_a_time(text, option, "a valid time limit", source)
    if seconds > _MOST_SECONDS:
        message = f"{option}: {text[:40]!r} is too long for Slurm{from_source(source, option)}"
        raise RequestError(message, hint="use UNLIMITED for no time limit")
    return seconds or None


def parse_duration(text: str, option: str, source: str = "") -> int:
    """Parse a duration that has an end, in the formats of a time limit. Returns seconds. Raises RequestError."""
    seconds = _parse_time(text)
    if not seconds or seconds > _MOST_SECONDS:
        raise _not_a_time(text, option, "a duration", source)
    return seconds


def _parse_time(text: str) -> int | None:
    """Return the seconds of a time in one of sbatch's formats or with units, None for another text."""
    seconds = _parse_slurm_time(text)
    # 0h is more likely a mistake than a job without a limit, which 0 is in sbatch
    return parse_age(text) or None if seconds is None else seconds


def _not_a_time(text: str, option: str, what: str, source: str) -> RequestError:
    hint = "use 90m, 1h30m, 2d, or sbatch's minutes (90), HH:MM:SS (2:00:00) or DAYS-HOURS (1-12 is 36 hours)"
    if re.fullmatch(_SLURM_TIME, text, re.ASCII):
        hint = f"minutes and seconds after a colon must be below 60; {hint}"
    return RequestError(f"{option}: {text[:40]!r} is not {what}{from_source(source, option)}", hint=hint)


def format_slurm_time(text: str) -> str:
    """Return a valid time limit as sbatch takes it: unchanged if it is one of sbatch's formats, else ``H:MM:SS``."""
    if text.upper() in _NO_LIMIT or re.fullmatch(_SLURM_TIME, text, re.ASCII):
        return text
    return format_time_limit(parse_time_limit(text) or 0)


def minutes_and_seconds(text: str) -> tuple[int, int] | None:
    """Return the two numbers of ``MM:SS``, which is easily read as hours and minutes; None for another text."""
    match = re.fullmatch(_SLURM_TIME, text, re.ASCII)
    return (int(match["m"]), int(match["ms"])) if match and match["ms"] else None


def _parse_slurm_time(text: str) -> int | None:
    """Return the seconds of a time in one of sbatch's formats, None for another text or a part that is 60 or more."""
    match = re.fullmatch(_SLURM_TIME, text, re.ASCII)
    if match is None:
        return None
    part = {name: int(number or 0) for name, number in match.groupdict().items()}
    hours, minutes, seconds = part["dh"] + part["h"], part["dm"] + part["hm"], part["ds"] + part["hs"] + part["ms"]
    if max(minutes, seconds) > 59:
        return None
    return ((part["days"] * 24 + hours) * 60 + minutes + part["m"]) * 60 + seconds
