"""Whose log files ``logs`` reads: those of a run of ours, or of a job that another tool submitted."""

from __future__ import annotations

import os
import pwd
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.job import JobId, is_run_id
from clusterrun.logs import Source, log_paths
from clusterrun.logs.clock import read_ticks
from clusterrun.logs.places import Place, from_submit_line, place_of, places
from clusterrun.logs.select import Choice, choose
from clusterrun.records import rank_records, run_logs, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler import Scheduler
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.sacct import NEW, OLD, files_argv, parse_files
from clusterrun.scheduler.slurm.scontrol import parse_show, show_argv
from clusterrun.state import external
from clusterrun.system.safe_files import user_name


@dataclass(frozen=True)
class Ours:
    """A run's logs, and the attempts that wrote them."""

    run: RunRecord
    job: JobId

    @property
    def attempts(self) -> list[Path]:
        return run_record.attempts(self.run, self.job.task)

    @property
    def paths(self) -> tuple[Path, Path]:
        return log_paths(self.run.logs, self.job)

    def choice(self, ranks: frozenset[int], nodes: Sequence[str]) -> Choice:
        """The lines of those ranks on those nodes; raises RequestError."""
        start = next((s for folder in reversed(self.attempts) if (s := rank_records.load_start(folder))), None)
        if start is None and ranks and max(ranks) >= self.run.world_size:
            raise RequestError(f"there is no rank {max(ranks)}", hint=f"the ranks are 0 to {self.run.world_size - 1}")
        return choose(start, ranks, nodes, files=self.paths, labelled=True)

    def source(self, choice: Choice) -> Source:
        source = run_logs.source_of(self.run, self.job)
        ticks = read_ticks(self.attempts, self.paths, source.begin)
        return replace(source, ranks=choice.tasks, ticks=ticks)


@dataclass(frozen=True)
class Theirs:
    """Where Slurm says that a job of another tool writes; of an array, as far as its tasks are known."""

    job: JobId
    known: tuple[Place, ...]

    @property
    def is_array(self) -> bool:
        return self.job.task is None and any(place.waiting or place.job.task is not None for place in self.known) and (
            any(place.job.raw == self.job.raw for place in self.known)
        )  # fmt: skip

    def place(self, job: JobId) -> Place | None:
        """The place of this job or of a task of it."""
        if not self.is_array and len(self.known) == 1 and not self.known[0].waiting:
            return self.known[0]
        return place_of(job, self.known)

    def there(self) -> list[Place]:
        """The places of which a file exists, tasks in order."""
        found = [place if not place.waiting else self.place(self.job) for place in self.known]
        return [place for place in found if place is not None and any(map(_exists, files_of(place)))]


def logs_of(cluster: Cluster, text: str) -> Ours | Theirs:
    """The logs behind a job id or run id; raises NoSuchJob, also where Slurm does not tell where they are."""
    run = cluster.run(text)
    if run is not None:
        if run.job_id is None:
            raise NoSuchJob(f"run {run.run_id} has no job yet", hint=f"clusterrun submit --recover {run.run_id}")
        return Ours(run, run.job_id if is_run_id(text) else JobId.parse(text))
    job = JobId.parse(text)
    cluster.status([text])  # says that there is no such job, where there is none
    return theirs_now(job, cluster.scheduler("slurm"))


def theirs_now(job: JobId, scheduler: Scheduler) -> Theirs:
    """Where Slurm says now that another tool's job writes: the node's name, say, is known only once it runs."""
    assert isinstance(scheduler, SlurmScheduler)
    known = places(parse_show(scheduler.answer(show_argv("job", [str(job)], job.cluster)).text))
    known = known or _past(job, scheduler)
    if job.task is not None:
        known = [place for place in known if place.waiting or place.job.task == job.task]
    if all(path == Path(os.devnull) for place in known for path in files_of(place)):
        raise RequestError(
            f"job {job} keeps no log: its output goes to {os.devnull}",
            hint=f"`scontrol show job {job}` shows its StdOut",
        )
    return Theirs(job, tuple(known))


def source_of(place: Place, choice: Choice, *, named: bool) -> Source:
    """The files of another tool's job; with ``named`` each line bears its task.

    They may be the job's user's, root's or mine: a third user's was put there by somebody whose job it is not.
    """
    name = str(place.job) if named else ""
    return Source(place.out, place.err, name=name, ranks=choice.tasks, owners=_owners(place.user))


def _owners(user: str) -> frozenset[int] | None:
    try:
        return frozenset({pwd.getpwnam(user).pw_uid, os.getuid(), 0})
    except (KeyError, ValueError):
        return None  # this machine does not know who that is


def files_of(place: Place) -> list[Path]:
    return [place.out] if place.err is None else [place.out, place.err]


def check_readable(path: Path, job: JobId) -> None:
    """Raise RequestError where a log is there and this user may not read it: whose, and what is in the way."""
    closed = _closed(path)
    if closed is None:
        return
    try:
        owner = user_name(closed.stat().st_uid)
    except OSError:
        owner = "another user"
    what = "it" if closed == path else str(closed)
    raise RequestError(
        f"the log {path} of job {job} cannot be read: {what} belongs to {owner}, who lets nobody else in",
        hint=f"ask {owner}, or look yourself: ls -ld {shlex.quote(str(closed))}",
    )


def _past(job: JobId, scheduler: SlurmScheduler) -> list[Place]:
    since = int(time.time()) - external.WINDOW
    for columns in (NEW, OLD):
        rows = parse_files(scheduler.answer(files_argv(job, since, columns, job.cluster)).text, columns)
        found = [place for row in rows if (place := _of_row(row)) is not None]
        if found:
            return found
        if rows and columns is OLD:
            folder = rows[-1]["WorkDir"] or "its folder"
            raise NoSuchJob(
                f"job {job} has no record of clusterrun's here, and Slurm has forgotten where its logs are",
                hint=f"its script said so (#SBATCH --output); without, sbatch writes slurm-{job}.out in {folder}",
            )
    raise NoSuchJob(
        f"job {job} has no record of clusterrun's here, and Slurm no longer tells where its logs are",
        hint="scontrol knows a job for some minutes after its end; then look in the folder it was submitted from",
    )


def _of_row(row: dict[str, str]) -> Place | None:
    raw, _, task = row["JobID"].partition("_")
    if not raw.isdigit() or (task and not task.isdigit()):
        return None
    job = JobId(raw, int(task) if task else None)
    line = row.get("SubmitLine")
    if line is None:
        if not row["StdOut"]:
            return None
        options = [f"--output={row['StdOut']}"] + ([f"--error={row['StdErr']}"] if row["StdErr"] else [])
        line = shlex.join(["sbatch", *options])
    hosts = expand(row["NodeList"]) if row["NodeList"] != "None assigned" else []
    who = row["User"], row["JobName"], row["JobIDRaw"], hosts[0] if hosts else ""
    place = from_submit_line(job, line, row["WorkDir"], *who)
    return place if place is None or place.err != place.out else Place(job, place.out, None, place.user)


def _closed(path: Path) -> Path | None:
    """The file, or the folder above it, that keeps this user out."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
        return None
    except PermissionError:
        pass
    except OSError:
        return None  # missing, or no plain file: said elsewhere
    for folder in [*reversed(path.parents)]:
        if not os.access(folder, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return folder
    return path


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # closed to us: whose, is said when it is read
    return True
