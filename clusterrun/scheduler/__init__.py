"""What a scheduler does for us, and the two that do it: Slurm, and this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from clusterrun.job import JobId, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Everything a scheduler needs to start a staged run; the script stands at its final path.

    ``env`` is the scrubbed environment the job inherits, ``umask`` the one for the log files.
    ``local`` facts (nodes, tasks, time limit in seconds, GPUs per node, dependency) are for the local scheduler, which
    has no ``#SBATCH`` lines to read.
    """

    run_id: str
    run_dir: Path
    token: str
    script: Path
    workdir: Path
    logs: Path
    env: Mapping[str, str]
    umask: int = 0o077
    argv: tuple[str, ...] = ()  # the user's own sbatch arguments
    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int = 0
    time_limit: int | None = None
    dependency: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a scheduler said about jobs.

    ``jobs`` holds what it knows. ``complete`` is False where it did not answer: an absent job then means
    nothing. ``note`` says why, in one line, and ``last`` what it said of my jobs when it last did, at epoch second
    ``last_at``.
    """

    jobs: Sequence[JobStatus] = field(default_factory=tuple)
    complete: bool = True
    note: str = ""
    last: Sequence[JobStatus] = field(default_factory=tuple)
    last_at: int = 0
    none_kept: bool = False  # asked of accounting, where the cluster keeps none


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of one request to cancel: ``done``, or not, with the scheduler's words."""

    id: JobId
    done: bool
    said: str = ""


class Scheduler(Protocol):
    """One contract for Slurm and for the local scheduler; the conformance tests run it over both."""

    name: str

    @property
    def cluster(self) -> str:
        """The cluster's name, with the job id the key of a record; empty where it is not known, ``a,b`` or ``all``
        where the shell names several."""

    def submit(self, submission: Submission) -> JobId:
        """Start a run. Raises Refused, NotDelivered or Ambiguous; the job's name carries the token."""

    def find(self, token: str, since: int, script: Path) -> Answer:
        """The jobs submitted from epoch second ``since`` on that carry a token or run that script: the look-up before
        any retry."""

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        """The jobs of this user that the scheduler holds (one call for all), or just those ids, whoever's they are."""

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """What accounting knows of ids that left the queue, from epoch second ``since`` on."""

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        """Cancel jobs, told to be ours; raises SchedulerError where the scheduler did not answer."""

    def hold(self, id: JobId, *, release: bool = False) -> None:
        """Hold a waiting job that was told to be ours, or release it; raises Refused with the scheduler's words."""
