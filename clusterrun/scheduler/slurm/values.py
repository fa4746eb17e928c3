"""Parse the values that Slurm's commands print: job ids, numbers, durations. Each command has a module of its own.

Only the text formats that are the same on 22.05, 24.11 and 26.05 are used, never ``--json``, which changes between
versions. A line that does not parse is skipped, since other users' job names may contain anything.
"""

from __future__ import annotations

import re

from clusterrun.base.job import JobId

SEP = "\x1f"
_LONGEST = 500  # characters
_ID = re.compile(r"(\d{1,18})(?:_(\d{1,9})|_\[(.*)|\+(\d{1,9}))?", re.ASCII)


def parse_duration(text: str) -> int | None:
    """Parse ``D-HH:MM:SS`` and its shorter forms into seconds; None for UNLIMITED, INVALID and others."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def short(words: str) -> str:
    """Return what a command said in one line, without the rest of an endless one."""
    return words if len(words) <= _LONGEST else words[:_LONGEST] + "…"


def clusters(names: str) -> list[str]:
    """Return the option for these clusters, none for the usual one."""
    return [f"--clusters={names}"] if names else []


def plain(text: str) -> str:
    """Return a value, or an empty text where Slurm has none."""
    return "" if text in ("(null)", "N/A", "(none)") else text


def query_id(id: JobId) -> str:
    """Return an id as squeue and sacct take it: an array's task, or the whole submission."""
    return id.base if id.task is None else f"{id.base}_{id.task}"


def parse_int(text: str) -> int | None:
    """Parse a whole number of at most 19 digits; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def parse_float(text: str) -> float | None:
    """Parse a number below 1e18; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


def parse_job_id(text: str) -> tuple[JobId, str] | None:
    """Parse an id of squeue or sacct, and the tasks in its brackets: ``123_[0-9%2]`` is (123, ``0-9%2``)."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        return None
    task, part, several = match[2], match[4], match[3] or ""
    if several and not several.endswith("]"):
        several += "..."  # cut off: more tasks than it names
    return JobId(match[1], int(task) if task else None, int(part) if part else None), several.removesuffix("]")


def parse_count(text: str) -> int:
    """Parse the number at the start of a text, 0 if there is none: ``8+`` is 8."""
    match = re.match(r"[0-9]{1,12}", text)
    return int(match[0]) if match else 0


def parse_gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """Parse the GPUs in a gres list: ``gpu:a100:4(S:0-1),nvme:1`` is one kind, ``(null)`` none.

    The form is ``name[:type][:no_consume][:number]`` (man slurm.conf 22.05, Gres).
    """
    found = []
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.strip().split(":")
        if name != "gpu":
            continue
        rest = [r for r in rest if r != "no_consume"]
        number = int(rest.pop()) if rest and re.fullmatch(r"[0-9]{1,9}", rest[-1]) else 1
        found.append((":".join(rest), number))
    return tuple(found)
