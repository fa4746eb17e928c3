"""An array's tasks as Slurm lists them: ``0-9,12%4`` read, written, and one status made a status for each task."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields

from clusterrun.job import JobId, JobStatus

#: More tasks than Slurm lets an array have (MaxArraySize is below 4,000,001): a list that says so is not one.
MOST = 4_000_001
_FIELDS = tuple(field.name for field in fields(JobStatus))
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def read_tasks(text: str) -> list[int] | None:
    """The task numbers of ``0-9:3,12%4``, in order; None for a list that was cut off or has another form."""
    body, _, limit = text.partition("%")
    if limit and not limit.isdigit():
        return None
    found: list[int] = []
    for part in body.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            return None
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step == 0 or (last - first) // step >= MOST - len(found):
            return None
        found += range(first, last + 1, step)
    return found


def write_tasks(tasks: Iterable[int]) -> str:
    """Task numbers as Slurm writes them: ``0-3,7``."""
    parts: list[str] = []
    first = last = -2
    for task in [*sorted(set(tasks)), None]:
        if task is not None and task == last + 1:
            last = task
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = -2 if task is None else task
    return ",".join(parts)


def task_count(job: JobStatus) -> int | None:
    """How many tasks a row stands for: 1 for a job, None where its list cannot be read."""
    if not job.tasks:
        return 1
    tasks = read_tasks(job.tasks)
    return None if tasks is None else len(tasks)


def each_task(job: JobStatus) -> list[JobStatus]:
    """A status for each task that a row stands for; the row itself where its list cannot be read."""
    tasks = read_tasks(job.tasks) if job.tasks else None
    if tasks is None:
        return [job]
    # not dataclasses.replace, which takes three times as long: there may be ten thousand
    shared = {name: getattr(job, name) for name in _FIELDS if name not in ("id", "tasks")}
    return [JobStatus(id=JobId(job.id.raw, task, None, job.id.cluster), **shared) for task in tasks]
