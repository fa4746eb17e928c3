"""What a job is called and how it stands: ids, states, outcomes. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from clusterrun.errors import RequestError

# 123, 123_4, 123+0, each with an optional ;cluster; local jobs are L1, L2, …
_JOB_ID = re.compile(
    r"(?P<raw>L?[0-9]{1,18})(?:_(?P<task>[0-9]{1,9})|\+(?P<part>[0-9]{1,9}))?(?:;(?P<cluster>[A-Za-z0-9_.-]{1,64}))?",
    re.ASCII,
)
_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z2-7]{6}", re.ASCII)

LOCAL = "local"
"""The name of the cluster that local jobs belong to."""


@dataclass(frozen=True, slots=True)
class JobId:
    """A job's id as Slurm writes it: ``123``, ``123_4`` (array task), ``123+0`` (component), ``L7`` (local)."""

    raw: str
    task: int | None = None
    part: int | None = None
    cluster: str = ""

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Read an id; raises RequestError for anything else, before any command is run with it."""
        match = _JOB_ID.fullmatch(text)
        if match is None:
            raise RequestError(
                f"not a job id: {text[:40]!r}",
                hint="a job id looks like 123, 123_4 or L7; `clusterrun list` shows yours",
            )
        task, part = match["task"], match["part"]
        return cls(match["raw"], int(task) if task else None, int(part) if part else None, match["cluster"] or "")

    @property
    def base(self) -> str:
        """The id without array task or component: the name of the whole submission."""
        return self.raw

    @property
    def is_local(self) -> bool:
        return self.raw.startswith("L")

    def __str__(self) -> str:
        if self.task is not None:
            return f"{self.raw}_{self.task}"
        return f"{self.raw}+{self.part}" if self.part is not None else self.raw


def is_run_id(text: str) -> bool:
    """Whether the text is a run id (``20261121-034501-k3v7qa``), the handle of a run that has no job id yet."""
    return _RUN_ID.fullmatch(text) is not None


def log_paths(logs: Path, job: JobId) -> tuple[Path, Path]:
    """Return a job's log files, (out, err); an array task has its own, a component those of its job."""
    name = job.raw if job.task is None else f"{job.raw}_{job.task}"
    return logs / f"train_{name}.out", logs / f"train_{name}.err"


class Outcome(StrEnum):
    """Our word beside Slurm's state: what became of the run."""

    RUNNING = "running"  # queued, running, or ending: not over
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # saved and left, to be resumed
    CANCELLED = "cancelled"
    LOST = "lost"  # accepted once, unknown to an answering controller, never started
    UNKNOWN = "unknown"


#: Slurm's state words after which nothing more happens, and what each means (man squeue 22.05, JOB STATE CODES).
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
#: Terminal words that a requeue may still turn into PENDING, so one sight of them is not the end.
MAY_RETURN = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
#: The exit status by which the batch script says "saved and left, to be resumed" (run-model 7).
STOPPED_STATUS = 85
#: 0:53, how Slurm says that it could not open the job's log files (22.05).
LAUNCH_FAILURE = 181
#: The reason that squeue shows of such a job, and of others that could not be started on their node.
LAUNCH_REASON = "JobLaunchFailure"


def outcome_of(state: str, exit_status: int | None = None) -> Outcome:
    """Our word for a state of Slurm's; an unknown state is not finished."""
    if state == "FAILED" and exit_status == STOPPED_STATUS:
        return Outcome.STOPPED
    if state == "UNKNOWN":
        return Outcome.UNKNOWN
    return TERMINAL.get(state, Outcome.RUNNING)


def clean_state(word: str) -> str:
    """Slurm's state word without its trimmings: ``CANCELLED by 0`` and ``COMPLETED+`` become one word."""
    return word.split(" ", 1)[0].rstrip("+").upper() if word else "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """How a job stands, and who said so.

    Times are seconds since the epoch; ``elapsed`` and ``time_limit`` seconds. ``source`` is ``squeue``,
    ``sacct``, ``record`` (what the job or we wrote) or ``local``. ``exit_status`` is 128+n for a signal.
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
    script: str = ""  # the path Slurm was given: it leads to the run's folder
    tasks: str = ""  # of a row that stands for several tasks of an array: 0-9,12%4
    source: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nobody says that it waits or runs: one that is lost or unknown counts."""
        return self.outcome is not Outcome.RUNNING

    @property
    def is_final(self) -> bool:
        """Whether it is over, how is known, and no requeue can bring it back."""
        return self.is_over and self.outcome is not Outcome.UNKNOWN and self.state not in MAY_RETURN


# -- the tasks of an array --------------------------------------------------------------------------------------------

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
