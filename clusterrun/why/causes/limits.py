"""Name the limit of a process (ulimit) that a job reached, which Slurm takes over from the shell that submitted it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from clusterrun.why.causes.model import READ, Cause


class _Limit(NamedTuple):
    """A limit by its name in launch.json: which lines show that it was reached, and how it is printed."""

    name: str
    reached: re.Pattern[str]
    option: str
    unit: str
    size: int = 1  # of the unit


_NO_ADDRESSES = re.compile(r"MemoryError|bad_alloc|[Cc]annot allocate memory|failed to map segment")
_LIMITS = (
    _Limit("nofile", re.compile(r"Too many open files(?! in system)|items of ancdata"), "-n", "open files"),
    _Limit("cpu", re.compile(r"CPU time limit exceeded"), "-t", "s of processor time"),
    _Limit("fsize", re.compile(r"File size limit exceeded|\[Errno 27\]"), "-f", "kB in a file", 1024),
    _Limit("nproc", re.compile(r"can't start new thread|pthread_create failed"), "-u", "processes"),
    _Limit("as", _NO_ADDRESSES, "-v", "kB of address space", 1024),
)
_SOURCE = "by default Slurm gives a job the limits of the shell that submitted it"
_NODES = "submit with --sbatch-arg=--propagate=NONE to use the limits of the nodes"


def with_limit(cause: Cause, limits: Mapping[str, int], *, by_slurm: bool) -> Cause:
    """Return the cause with the limit that it reached; ``limits`` are those of the job, by their names here."""
    words = " ".join((cause.sentence, *(line.text[:READ] for line in cause.evidence)))
    reached = next((one for one in _LIMITS if one.name in limits and one.reached.search(words)), None)
    if reached is None:
        return cause
    value = f"{limits[reached.name] // reached.size:,} {reached.unit}"
    cause = replace(cause, sentence=f"{cause.sentence}; the job's limit is {value} (ulimit {reached.option})")
    if not by_slurm:
        return replace(cause, advice="raise the limit in the shell before you submit", command="clusterrun submit …")
    if cause.kind == "too-many-files":  # whose advice and command raise the limit
        return replace(cause, advice=f"{cause.advice}; {_SOURCE}")
    raised = f"{_SOURCE}: raise the limit there, or {_NODES}"
    return replace(cause, advice=raised, command="clusterrun submit … --sbatch-arg=--propagate=NONE")
