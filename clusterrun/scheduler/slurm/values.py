"""The values in what Slurm's commands print: job ids, numbers, durations. Each command has a module beside this one.

Only the text formats that are the same on 22.05, 24.11 and 26.05 are used, never ``--json``, whose shape
changes between versions. A line that does not parse is left out, never fatal: other people's job names may
hold anything.
"""

from __future__ import annotations

import re

from clusterrun.job import JobId

SEP = "\x1f"
_ID = re.compile(r"(\d{1,18})(?:_(\d{1,9})|_\[(.*)|\+(\d{1,9}))?", re.ASCII)


def parse_duration(text: str) -> int | None:
    """Seconds of ``D-HH:MM:SS`` and its shorter forms; None for UNLIMITED, INVALID and the like."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def query_id(id: JobId) -> str:
    """An id as squeue and sacct are asked for it: an array's task, or the whole submission."""
    return id.base if id.task is None else f"{id.base}_{id.task}"


def parse_int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def parse_job_id(text: str) -> tuple[JobId, str] | None:
    """An id as squeue and sacct write it, and the tasks in its brackets: ``123_[0-9%2]`` is (123, ``0-9%2``)."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        return None
    task, part, several = match[2], match[4], match[3] or ""
    if several and not several.endswith("]"):
        several += "..."  # cut off: more tasks than it names
    return JobId(match[1], int(task) if task else None, int(part) if part else None), several.removesuffix("]")


def parse_count(text: str) -> int:
    """The number that a text begins with, 0 where there is none: ``8+`` is 8."""
    match = re.match(r"[0-9]{1,12}", text)
    return int(match[0]) if match else 0
