"""Name the limit of a process (ulimit) that a job reached, which Slurm takes over from the shell that submitted it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from clusterrun.why.causes.model import READ, Cause

_NO_ADDRESSES = re.compile(r"MemoryError|bad_alloc|[Cc]annot allocate memory|failed to map segment")
#: the limit in launch.json, the lines which show that it was reached, ulimit's option, the size and name of its unit
_LIMITS = (
    ("nofile", re.compile(r"Too many open files(?! in system)|items of ancdata"), "-n", 1, "open files"),
    ("cpu", re.compile(r"CPU time limit exceeded"), "-t", 1, "s of processor time"),
    ("fsize", re.compile(r"File size limit exceeded|\[Errno 27\]"), "-f", 1024, "kB in a file"),
    ("nproc", re.compile(r"can't start new thread|pthread_create failed"), "-u", 1, "processes"),
    ("as", _NO_ADDRESSES, "-v", 1024, "kB of address space"),
)
_SOURCE = "by default Slurm gives a job the limits of the shell that submitted it"
_NODES = "submit with --sbatch-arg=--propagate=NONE to use the limits of the nodes"


def with_limit(cause: Cause, limits: Mapping[str, int], *, by_slurm: bool) -> Cause:
    """Return the cause with the limit that it reached; ``limits`` are those of the job, by their names here."""
    words = " ".join((cause.sentence, *(line.text[:READ] for line in cause.evidence)))
    for name, reached, option, size, unit in _LIMITS:
        if name in limits and reached.search(words):
            limit = f"{limits[name] // size:,} {unit} (ulimit {option})"
            return _raise(replace(cause, sentence=f"{cause.sentence}; the job's limit is {limit}"), by_slurm=by_slurm)
    return cause


def _raise(cause: Cause, *, by_slurm: bool) -> Cause:
    """Return the cause with how to raise its limit."""
    if not by_slurm:
        return replace(cause, advice="raise the limit in the shell before you submit", command="clusterrun submit …")
    if cause.kind == "too-many-files":  # whose advice and command raise the limit
        return replace(cause, advice=f"{cause.advice}; {_SOURCE}")
    raised = f"{_SOURCE}: raise the limit there, or {_NODES}"
    return replace(cause, advice=raised, command="clusterrun submit … --sbatch-arg=--propagate=NONE")
