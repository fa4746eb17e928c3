"""Job ids, job states and outcomes. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from .errors import RequestError

# 123, 123_4, 123+0, each with an optional ;cluster; local jobs are L1, L2, …
_JOB_ID = (
    r"(?P<raw>L?[0-9]{1,18})(?:_(?P<task>[0-9]{1,9})|\+(?P<part>[0-9]{1,9}))?(?:;(?P<cluster>[A-Za-z0-9_.-]{1,64}))?"
)

RUN_ID = "[0-9]{8}-[0-9]{6}-[a-z2-7]{6}"

LOCAL = "local"
"""The name of the cluster that local jobs belong to."""
PICKLES = "submitit"
"""The folder in a run's folder where submitit stores a callable and its results."""


class JobId(NamedTuple):
    """A job's id as Slurm writes it: ``123``, ``123_4`` (array task), ``123+0`` (component), ``L7`` (local)."""

    raw: str
    task: int | None = None
    part: int | None = None
    cluster: str = ""

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Parse a job id. Raises RequestError for any other text, so no command ever gets it as an argument."""
        return _parse(text)

    @property
    def base(self) -> str:
        """The id without array task or component: the id of the whole submission."""
        return self.raw

    @property
    def is_local(self) -> bool:
        return self.raw.startswith("L")

    @property
    def number(self) -> int:
        """Its number, by which the jobs of a scheduler were submitted one after the other."""
        return int(self.raw.lstrip("L"))

    def includes(self, job: JobId) -> bool:
        """Return whether a job is this one, or a task or component of it."""
        return job.raw == self.raw and self.task in (None, job.task) and self.part in (None, job.part)

    def __str__(self) -> str:
        if self.task is not None:
            return f"{self.raw}_{self.task}"
        return f"{self.raw}+{self.part}" if self.part is not None else self.raw


@lru_cache(maxsize=1 << 16)  # the ids of a list of runs are parsed several times each
def _parse(text: str) -> JobId:
    match = re.fullmatch(_JOB_ID, text, re.ASCII)
    if match is None:
        raise RequestError(
            f"not a job id: {text[:40]!r}",
            hint="a job id looks like 123, 123_4 or L7; `clusterrun list` shows your jobs",
        )
    task, part = match["task"], match["part"]
    return JobId(match["raw"], int(task) if task else None, int(part) if part else None, match["cluster"] or "")


def is_job_id(text: str) -> bool:
    """Return whether the text is a job id; see :class:`JobId`."""
    return re.fullmatch(_JOB_ID, text, re.ASCII) is not None


def is_run_id(text: str) -> bool:
    """Return whether the text is a run id (``20261121-034501-k3v7qa``); a run has one before it has a job id."""
    return re.fullmatch(RUN_ID, text, re.ASCII) is not None


def run_ids_in(data: bytes) -> set[str]:
    """Return all run ids in a text, also those within a longer word."""
    return {run_id.decode() for run_id in re.findall(rb"(?=(" + RUN_ID.encode() + rb"))", data)}


def is_reserved(name: str) -> bool:
    """Return whether a job of this name could not be named on the command line: the name means another job there."""
    return name == "last" or is_job_id(name) or is_run_id(name)


def log_paths(logs: Path, job: JobId) -> tuple[Path, Path]:
    """Return a job's log files, (out, err); an array task has its own, a component those of its job."""
    name = job.raw if job.task is None else f"{job.raw}_{job.task}"
    return logs / f"train_{name}.out", logs / f"train_{name}.err"


def step_name(token: str) -> str:
    """Return the name of a run's steps in a job that exists, by which they are found there (ADR 41)."""
    return f"clusterrun.{token[:8]}"


class Outcome(StrEnum):
    """The result of a run, beside Slurm's state."""

    RUNNING = "running"  # active: pending, running or completing
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # saved a checkpoint and exited, to resume later
    CANCELLED = "cancelled"
    LOST = "lost"  # accepted, never started, and the controller no longer knows it
    UNKNOWN = "unknown"


#: Slurm's final job states and their outcomes (man squeue 22.05, JOB STATE CODES).
TERMINAL: dict[str, Outcome] = {
    "COMPLETED": Outcome.DONE,
    "FAILED": Outcome.FAILED,
    "TIMEOUT": Outcome.FAILED,
    "OUT_OF_MEMORY": Outcome.FAILED,
    "NODE_FAIL": Outcome.FAILED,
    "BOOT_FAIL": Outcome.FAILED,
    "DEADLINE": Outcome.FAILED,
    "LAUNCH_FAILED": Outcome.FAILED,
    "RECONFIG_FAIL": Outcome.FAILED,
    "PREEMPTED": Outcome.CANCELLED,
    "CANCELLED": Outcome.CANCELLED,
    "REVOKED": Outcome.CANCELLED,
}
#: Final states that a requeue may turn back into PENDING, so one query is not proof of the end.
MAY_RETURN = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
#: The batch script's exit status for "saved a checkpoint, resume later".
STOPPED_STATUS = 85
#: Slurm reports 0:53 if it could not open the job's log files (22.05).
LAUNCH_FAILURE = 181
#: squeue's reason for such a job, and for others that could not be started on their node.
LAUNCH_REASON = "JobLaunchFailure"
#: squeue's reasons for a held job.
HELD = ("JobHeldUser", "JobHeldAdmin")


def outcome_of(state: str, exit_status: int | None = None) -> Outcome:
    """Return the outcome of a Slurm state; an unknown state counts as active."""
    if state == "FAILED" and exit_status == STOPPED_STATUS:
        return Outcome.STOPPED
    if state == "UNKNOWN":
        return Outcome.UNKNOWN
    return TERMINAL.get(state, Outcome.RUNNING)


def clean_state(word: str) -> str:
    """Return a Slurm state as one word: ``CANCELLED by 0`` is CANCELLED, ``COMPLETED+`` is COMPLETED."""
    return word.split(" ", 1)[0].rstrip("+").upper() if word else "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The state of a job and where it was read.

    Times are seconds since the epoch; ``elapsed`` and ``time_limit`` seconds. ``source`` is ``squeue``,
    ``sacct``, ``record`` (the run's own files) or ``local``. ``exit_status`` is 128+n for a signal.
    """

    id: JobId
    state: str
    outcome: Outcome
    reason: str = ""
    name: str = ""  # the whole Slurm job name, token part included
    user: str = ""
    partition: str = ""
    nodes: str = ""
    node_count: int | None = None
    elapsed: int | None = None
    time_limit: int | None = None
    submitted: int | None = None
    started: int | None = None
    ended: int | None = None
    exit_status: int | None = None
    restarts: int | None = None
    script: str = ""  # the path given to Slurm: it leads to the run's folder
    tasks: str = ""  # if the row is for several tasks of an array: 0-9,12%4
    number: str = ""  # what srun takes in place of the id: a task's own number, or the Slurm job of a local job's steps
    cancelled_by: int | None = None  # the user id, as accounting has it
    extra: tuple[tuple[str, str], ...] = ()  # fields of squeue that are only shown: key and value
    source: str = ""

    @property
    def cluster(self) -> str:
        return self.id.cluster

    @property
    def inner_id(self) -> JobId:
        """The id that srun takes: of an array's task its own number, of a run in a job that exists that job."""
        if self.id.task is None and not self.id.is_local:
            return self.id
        return JobId(self.number or self.id.raw, None, None, self.id.cluster)

    @property
    def has_started(self) -> bool:
        """Whether the job is active and not pending."""
        return not self.is_over and self.state != "PENDING"

    @property
    def is_over(self) -> bool:
        """Whether the job is not known to be active: lost and unknown jobs count as over."""
        return self.outcome is not Outcome.RUNNING

    @property
    def is_final(self) -> bool:
        """Whether the job has ended, its outcome is known, and no requeue can start it again."""
        return self.is_over and self.outcome is not Outcome.UNKNOWN and self.state not in MAY_RETURN


# -- the tasks of an array --------------------------------------------------------------------------------------------

#: Slurm's MaxArraySize is below this, so a longer list is not a list of tasks.
MAX_TASKS = 4_000_001
_FIELDS = tuple(field.name for field in fields(JobStatus))


def parse_tasks(text: str) -> list[int] | None:
    """Parse ``0-9:3,12%4`` into task numbers, in order. Returns None for a truncated or unknown form."""
    body, _, limit = text.partition("%")
    if limit and not limit.isdigit():
        return None
    numbers: list[int] = []
    for part in body.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part, re.ASCII)
        if match is None:
            return None
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step == 0 or (last - first) // step >= MAX_TASKS - len(numbers):
            return None
        numbers += range(first, last + 1, step)
    return numbers


def format_tasks(tasks: Iterable[int]) -> str:
    """Format task numbers as Slurm does: ``0-3,7``."""
    parts = []
    # numbers that follow each other have the same distance to their place in the list
    for _, places in groupby(enumerate(sorted(set(tasks))), key=lambda place: place[1] - place[0]):
        numbers = [number for _, number in places]
        parts.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return ",".join(parts)


def task_count(job: JobStatus) -> int | None:
    """Return how many tasks a row is for: 1 for a plain job, None if its list cannot be parsed."""
    if not job.tasks:
        return 1
    tasks = parse_tasks(job.tasks)
    return None if tasks is None else len(tasks)


def split_tasks(job: JobStatus) -> list[JobStatus]:
    """Return a status for each task of a row, or the row itself if its list cannot be parsed."""
    tasks = parse_tasks(job.tasks)
    if tasks is None:
        return [job]
    # dataclasses.replace takes three times as long, and an array may have 10,000 tasks
    shared = {name: getattr(job, name) for name in _FIELDS if name not in ("id", "tasks")}
    return [JobStatus(id=JobId(job.id.raw, task, None, job.id.cluster), **shared) for task in tasks]


# -- whose job it is, and where it runs ------------------------------------------------------------------------------


def carries(job: JobStatus, token: str, script: Path) -> bool:
    """Return whether a job belongs to a submission, by its name or its script."""
    return job.name.endswith("." + token[:8]) or job.script == str(script)


def token_part(job: JobStatus) -> str:
    """Return the last part of a job name: the first eight letters of the token, unless a site renamed the job."""
    return job.name.rpartition(".")[2]


def covers(where: str, cluster: str) -> bool:
    """Return whether a scheduler that serves ``where`` also serves ``cluster``.

    ``where`` is a cluster, several (``a,b``), ``all``, or empty if unknown. ``cluster`` may be empty too.
    """
    return cluster == where or (bool(where) and (where == "all" or not cluster or cluster in where.split(",")))


def one_cluster(where: str) -> str:
    """Return the cluster's name, or an empty text for several or unknown clusters."""
    return "" if where == "all" or "," in where else where
