"""squeue: a user's own jobs, and the whole queue. Arguments of the commands, and parsers of their output.

squeue always gets all jobs from slurmctld, so the whole queue costs no more than one job.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from clusterrun.base.job import JobId, JobStatus, clean_state, outcome_of
from clusterrun.scheduler.slurm.values import SEP, clusters, parse_duration, parse_int, parse_job_id, plain, query_id

# The long format has the allocated resources, which the short one lacks. The widths are limits, so they are generous;
# only the id of an array with thousands of tasks may not fit.
_QUEUE_COLUMNS = (("JobArrayID", 48), ("JobID", 20), ("State", 24), ("Reason", 100), ("UserName", 64), ("Account", 100),
            ("QOS", 64), ("Partition", 200), ("PriorityLong", 20), ("NumNodes", 12), ("TimeLeft", 20),
            ("StartTime", 20), ("tres-alloc", 300), ("Licenses", 100))  # fmt: skip
_QUEUE_NAMES = [name for name, _ in _QUEUE_COLUMNS]


class Queued(NamedTuple):
    """A job of the queue; ``tres`` is what it has, or requests while pending. Memory is in MB.

    ``id`` is the task's or the array's, ``raw`` the number that orders jobs of equal priority. ``left`` is the seconds
    to its time limit.
    """

    id: str
    raw: int
    state: str
    reason: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partitions: tuple[str, ...] = ()
    priority: int = 0
    nodes: int = 0
    left: int | None = None
    start: int | None = None
    tres: tuple[tuple[str, float], ...] = ()
    licenses: tuple[tuple[str, int], ...] = ()

    def holds(self, name: str) -> float:
        """Return how much of a resource (``cpu``, ``gres/gpu``) the job has or requests."""
        return dict(self.tres).get(name, 0)


def queue_argv() -> list[str]:
    """Return the command for every visible job, including those that have just ended."""
    columns = ",".join(f"{name}:{width}{SEP}" for name, width in _QUEUE_COLUMNS)
    return ["squeue", "--noheader", "--states=all", "--all", f"--Format={columns}"]


def parse_queue(text: str) -> list[Queued]:
    """Parse the jobs; a line that does not parse is skipped."""
    jobs = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split(SEP)]
        is_row = len(cells) == len(_QUEUE_COLUMNS) + 1
        if is_row and parse_int(cells[1]) is not None:
            jobs.append(_queued(dict(zip(_QUEUE_NAMES, cells, strict=False))))
    return jobs


def _queued(row: Mapping[str, str]) -> Queued:
    return Queued(
        id=row["JobArrayID"].partition("[")[0].rstrip("_"),
        raw=int(row["JobID"]),
        state=row["State"],
        reason="" if row["Reason"] == "None" else row["Reason"],
        user=row["UserName"],
        account=plain(row["Account"]),
        qos=plain(row["QOS"]),
        partitions=tuple(row["Partition"].split(",")),
        priority=parse_int(row["PriorityLong"]) or 0,
        nodes=parse_int(row["NumNodes"]) or 0,
        left=parse_duration(row["TimeLeft"]),
        start=parse_int(row["StartTime"]),
        tres=parse_tres(row["tres-alloc"]),
        licenses=parse_licenses(row["Licenses"]),
    )


_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


def parse_tres(text: str) -> tuple[tuple[str, float], ...]:
    """Parse a TRES list, ``cpu=8,mem=2000M,gres/gpu=4``; memory in MB, values that are no number skipped."""
    found = []
    for part in text.split(","):
        name, _, amount = part.partition("=")
        value = _amount(amount, name.startswith(("mem", "bb/")))
        if name and value is not None:
            found.append((name, value))
    return tuple(found)


def parse_licenses(text: str) -> tuple[tuple[str, int], ...]:
    """Parse ``matlab:2,ansys`` into pairs; the number defaults to 1."""
    pairs = []
    for part in re.split("[|;,]", plain(text)):
        name, _, count = part.partition(":")
        if name:
            pairs.append((name, parse_int(count) or 1))
    return tuple(pairs)


def _amount(text: str, sized: bool) -> float | None:
    unit = text[-1:].upper() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    if unit not in _UNITS or not number.isascii() or not number.replace(".", "", 1).isdigit() or len(number) > 30:
        return None
    return float(number) * (_UNITS[unit] if sized else {"K": 1e3, "M": 1e6, "G": 1e9}.get(unit, 1.0))


#: Fields of squeue that are only shown: key in ``--json`` and ``status``, format (man squeue, --format), and heading.
#: ``list`` and ``top`` show those with a heading. To show another, add a row here, like ("comment", "%k", "COMMENT").
EXTRA_FIELDS: tuple[tuple[str, str, str], ...] = (("account", "%a", ""),)
_FIRST = ("%i", "%A", "%T", "%r", "%u", "%P", "%N", "%D", "%M", "%l", "%V", "%S", "%e")
_FREE_TEXT = ("%o", "%j")  # last, and the name after the path: a name is more likely to contain anything
_JOB_FORMATS = (*_FIRST, *(field_format for _, field_format, _ in EXTRA_FIELDS), *_FREE_TEXT)
#: The id of these fields, for the cache: another version may have cached an answer with other fields.
FIELDS_ID = f"{zlib.crc32(''.join(_JOB_FORMATS).encode()):08x}"


def squeue_argv(ids: Sequence[JobId] | None, cluster: str = "") -> list[str]:
    """Return one squeue for all jobs of the user, or for those ids, including ended jobs that Slurm still shows."""
    who = ["--me"] if ids is None else [f"--jobs={','.join(dict.fromkeys(map(query_id, ids)))}"]
    # a row per pending task if a task is queried: else they share the row of the array
    alone = ["--array"] if any(i.task is not None for i in ids or ()) else []
    which = [*who, *alone, *clusters(cluster)]
    return ["squeue", "--noheader", "--states=all", *which, f"--format={SEP.join(_JOB_FORMATS)}"]


def parse_squeue(text: str) -> list[JobStatus]:
    """Parse the jobs. Pending tasks share a row, with the array's id and the tasks in ``tasks``."""
    jobs = []
    # ten thousand tasks of an array have the same few values: each is parsed once
    to_seconds, to_state = cache(parse_duration), cache(clean_state)
    for line in text.split("\n"):
        cells = line.split(SEP, len(_JOB_FORMATS) - 1)
        # an answer with none of the extra fields is read too
        found = parse_job_id(cells[0]) if len(cells) in (len(_JOB_FORMATS), len(_FIRST + _FREE_TEXT)) else None
        if found is None:
            continue
        _, number, state, reason, user, partition, nodes, count, elapsed, limit, submitted, started, ended = cells[:13]
        *extra, script, name = cells[13:]
        state = to_state(state)
        outcome = outcome_of(state)
        jobs.append(
            JobStatus(
                id=found[0],
                tasks=found[1],
                number=number,
                state=state,
                outcome=outcome,
                reason="" if reason == "None" else reason,
                name=name,
                user=user,
                partition=partition,
                nodes=nodes,
                node_count=parse_int(count),
                elapsed=to_seconds(elapsed),
                time_limit=to_seconds(limit),
                submitted=parse_int(submitted),
                started=parse_int(started),
                ended=parse_int(ended) if outcome != "running" else None,
                exit_status=_signal_status(reason),
                script=script,
                extra=tuple((key, plain(cell)) for (key, *_), cell in zip(EXTRA_FIELDS, extra, strict=False)),
                source="squeue",
            )
        )
    return jobs


def _signal_status(reason: str) -> int | None:
    """Return the exit status of a job that a signal ended: since 23.02 the reason names it (`RaisedSignal:9(Killed)`).

    Slurm reports logs that it could not open as signal 53. Without accounting the queue is all that tells so.
    """
    found = re.match(r"RaisedSignal:([1-9][0-9]?)\(", reason)
    return 128 + int(found[1]) if found else None
