"""The scheduler protocol, and the record types it uses. Two schedulers implement it: Slurm and this machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clusterrun.base.job import JobId, JobStatus

if TYPE_CHECKING:
    from clusterrun.scheduler.local.client import LocalScheduler

KILL_ON_INVALID_DEP = "--kill-on-invalid-dep=yes"
"""The sbatch argument that cancels a job whose dependency can never be satisfied; local jobs have it too."""


class Submission(NamedTuple):
    """Everything a scheduler needs to start a staged run. ``script`` is the script's final path.

    ``env`` is the scrubbed environment that the job inherits, ``umask`` the one for the log files. The local scheduler
    uses nodes, tasks, time limit (seconds), GPUs per node and dependency; Slurm reads them from ``#SBATCH`` lines.
    With ``in_job`` it starts the script inside that Slurm job; ``cpus_per_task`` is then of each rank (None: a share).
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
    in_job: str = ""
    cpus_per_task: int | None = None


class Answer(NamedTuple):
    """A scheduler's answer to a query about jobs.

    ``complete`` is False if the scheduler did not respond; a missing job then means nothing. ``note`` is the reason, in
    one line, and ``last`` the user's jobs in the last answer, received at epoch second ``last_at``. ``no_accounting``
    is set by accounting queries on a cluster that has no accounting.
    """

    jobs: Sequence[JobStatus] = ()
    complete: bool = True
    note: str = ""
    last: Sequence[JobStatus] = ()
    last_at: int = 0
    no_accounting: bool = False


class Cancelled(NamedTuple):
    """The result of one cancel request: whether it was accepted, and the scheduler's message.

    ``may_be``: the request was not answered in time, so the job may be cancelled although ``done`` is False.
    ``alive``: the scheduler showed the job as active after the request.
    """

    id: JobId
    done: bool
    detail: str = ""
    may_be: bool = False
    alive: bool = False


class ClusterFacts(NamedTuple):
    """The configuration of a Slurm cluster; ``accounting`` and ``gpus`` tell whether it has them."""

    cluster: str
    accounting: bool
    gpus: bool


class Reply(NamedTuple):
    """The output of a Slurm command. ``note`` is the error in one line, empty if the command succeeded."""

    text: str
    note: str = ""
    stderr: str = ""


class Scheduler(Protocol):
    """The interface of Slurm and of the local scheduler. The conformance tests run on both."""

    name: str

    @property
    def cluster(self) -> str:
        """The cluster's name; empty if unknown, ``a,b`` or ``all`` if SLURM_CLUSTERS names several."""

    @property
    def slurm(self) -> SlurmCommands | None:
        """Slurm's own commands; None for the local scheduler."""

    @property
    def local(self) -> LocalScheduler | None:
        """The jobs of this machine; None for Slurm."""

    def submit(self, submission: Submission) -> JobId:
        """Start a run. Raises Refused, NotDelivered or Ambiguous; the job's name carries the token."""

    def find(self, token: str, since: int, script: Path) -> Answer:
        """Return the jobs submitted since epoch second ``since`` that carry the token or run the script.

        Every retry of a submission calls this first.
        """

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        """Return this user's jobs in the queue (one call for all), or the jobs with those ids, of any user."""

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """Return what accounting knows about jobs that left the queue, since epoch second ``since``."""

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        """Cancel the user's own jobs. Raises SchedulerError if the scheduler does not respond."""

    def hold(self, id: JobId, *, release: bool = False) -> None:
        """Hold a pending job of the user, or release it. Raises Refused with the scheduler's message."""


class SlurmCommands(Scheduler, Protocol):
    """A scheduler that is Slurm, with what only Slurm can answer."""

    facts: ClusterFacts

    def answer(self, argv: Sequence[str], timeout: float = ..., **options: object) -> Reply:
        """Run a Slurm command that only reads; errors are in the reply."""

    def recent_answer(self, argv: Sequence[str], timeout: float, max_age: float) -> Reply:
        """As ``answer``, or an answer that is at most ``max_age`` seconds old."""

    def cached_query(self, ids: Collection[JobId], since: float) -> tuple[Answer, float]:
        """Return the user's jobs and the age of the answer in seconds; see ``QueueCache.query``."""
