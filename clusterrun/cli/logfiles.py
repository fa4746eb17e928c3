"""Find the log files of a job: of a run, or of an external job, which another tool submitted."""

from __future__ import annotations

import os
import pwd
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path

from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.base.job import JobId, is_job_id, is_run_id, log_paths
from clusterrun.cluster import Cluster
from clusterrun.logs.files import Source, read_ticks
from clusterrun.logs.locations import LogLocation, find_location, locate, parse_locations, parse_submit_line
from clusterrun.logs.request import LogRequest, RankFilter, filter_run
from clusterrun.records import launches, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.run_folder.safe_files import user_name
from clusterrun.scheduler import Scheduler, SlurmCommands
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.sacct import NEW, OLD, files_argv, parse_files
from clusterrun.scheduler.slurm.scontrol import parse_jobs, show_argv
from clusterrun.state import external


@dataclass(frozen=True)
class RunLogs:
    """The logs of a run, and the attempts that wrote them."""

    run: RunRecord
    job: JobId

    @property
    def attempts(self) -> list[Path]:
        return run_record.attempts_of(self.run, self.job)

    @property
    def paths(self) -> tuple[Path, Path]:
        return log_paths(self.run.logs, self.job)

    def filter_ranks(self, request: LogRequest) -> RankFilter:
        """Return the filter for the requested ranks and nodes. Raises RequestError."""
        ranks = request.ranks
        start = next((s for folder in reversed(self._select(request.attempt)) if (s := ends.load_start(folder))), None)
        if start is None and ranks and max(ranks) >= self.run.world_size:
            raise RequestError(f"there is no rank {max(ranks)}", hint=f"available ranks: 0-{self.run.world_size - 1}")
        return filter_run(start, ranks, request.nodes, self.paths)

    def source(self, ranks: RankFilter, attempt: tuple[int, ...] = ()) -> Source:
        """Return the files with the selected ranks and the log clock; only what one attempt or launch wrote if given.

        Raises RequestError if the attempt does not exist, or if no record says where its lines begin.
        """
        source, chosen = launches.log_source(self.run, self.job), self._select(attempt)
        if attempt:
            first = self.attempts.index(chosen[0])
            later = (launches.log_start(folder) for folder in self.attempts[first + len(chosen) :])
            begin = launches.log_start(chosen[0]) if first else source.begin
            if begin is None:
                raise RequestError(
                    f"the records of job {self.job} do not show where attempt {_format(attempt)} begins in the log",
                    hint=f"show the whole log with `clusterrun logs {self.job}`",
                )
            source = replace(source, begin=begin, end=next((start for start in later if start is not None), None))
        ticks = read_ticks(chosen, self.paths, source.begin)
        return replace(source, ranks=ranks.tasks, ticks=ticks)

    def _select(self, attempt: tuple[int, ...]) -> list[Path]:
        """Return the folders of an attempt or launch, of all without one. Raises RequestError if there is none."""
        names = {folder: tuple(map(int, folder.name.split(".")[-2:])) for folder in self.attempts}
        chosen = [folder for folder, name in names.items() if name[: len(attempt)] == attempt]
        if attempt and not chosen:
            known = ", ".join(map(_format, names.values()))
            raise RequestError(
                f"job {self.job} has no attempt {_format(attempt)}", hint=f"available attempts: {known or 'none yet'}"
            )
        return chosen


@dataclass(frozen=True)
class ExternalLogs:
    """The log files of an external job, as Slurm reports them; of an array, one location for each known task."""

    job: JobId
    locations: tuple[LogLocation, ...]

    @property
    def is_array(self) -> bool:
        return (
            self.job.task is None
            and any(location.is_pattern or location.job.task is not None for location in self.locations)
            and any(location.job.raw == self.job.raw for location in self.locations)
        )

    def find(self, job: JobId) -> LogLocation | None:
        """Return the location of this job or of one of its tasks."""
        if not self.is_array and len(self.locations) == 1 and not self.locations[0].is_pattern:
            return self.locations[0]
        return find_location(job, self.locations)

    def existing(self) -> list[LogLocation]:
        """Return the locations with a file, in order of tasks."""
        found = [location if not location.is_pattern else self.find(self.job) for location in self.locations]
        return [location for location in found if location is not None and any(map(_exists, files_of(location)))]


def find_logs(cluster: Cluster, text: str, *, follow: bool) -> RunLogs | ExternalLogs:
    """Return the logs of a job id or run id; of a run's several active jobs those of the newest.

    Raises NoSuchJob, also if Slurm does not report their paths, and RequestError to ``follow`` several jobs.
    """
    found = cluster.find_jobs([text])
    run = found[-1]
    if isinstance(run, JobId):
        cluster.status([text])  # raises NoSuchJob
        return find_external_logs(run, cluster.scheduler("slurm"))
    if run.job_id is None:
        raise NoSuchJob(f"run {run.run_id} has no job yet", hint=f"clusterrun submit --recover {run.run_id}")
    if follow and len(found) > 1:
        ids = ", ".join(str(one if isinstance(one, JobId) else one.job_id) for one in found)
        raise RequestError(f"run {run.run_id} has several active jobs: {ids}", hint="give one of these ids")
    return RunLogs(run, run.job_id if is_run_id(text) else JobId.parse(text))


def find_external_logs(job: JobId, scheduler: Scheduler) -> ExternalLogs:
    """Query Slurm for the log files of an external job. A node name in a file name is known only when the job runs."""
    slurm = scheduler.slurm
    assert slurm is not None
    job = job._replace(part=None)  # the components of a job have one log, which the batch script of the first writes
    locations = parse_locations(parse_jobs(slurm.answer(show_argv("job", [str(job)], job.cluster)).text))
    locations = locations or _find_in_accounting(job, slurm)
    if job.task is not None:
        locations = [location for location in locations if location.is_pattern or location.job.task == job.task]
    if all(path == Path(os.devnull) for location in locations for path in files_of(location)):
        raise RequestError(
            f"job {job} has no log: its output goes to {os.devnull}",
            hint=f"see StdOut in `scontrol show job {job}`",
        )
    return ExternalLogs(job, tuple(locations))


def external_source(location: LogLocation, ranks: RankFilter, *, named: bool) -> Source:
    """Return the files of an external job; with ``named``, each line begins with its task.

    The job's user, root or the current user may own the files; another user may have planted them.
    """
    name = str(location.job) if named else ""
    return Source(location.out, location.err, name=name, ranks=ranks.tasks, owners=_owners(location.user))


def _owners(user: str) -> frozenset[int] | None:
    try:
        return frozenset({pwd.getpwnam(user).pw_uid, os.getuid(), 0})
    except (KeyError, ValueError):
        return None  # this machine does not know the user


def files_of(location: LogLocation) -> list[Path]:
    """Return its one or two files."""
    return [location.out] if location.err is None else [location.out, location.err]


def check_readable(path: Path, job: JobId) -> None:
    """Raise RequestError if a log exists and the current user may not read it, with the path that prevents it."""
    closed = _find_unreadable(path)
    if closed is None:
        return
    try:
        owner = user_name(closed.stat().st_uid)
    except OSError:
        owner = "another user"
    what = "it" if closed == path else str(closed)
    raise RequestError(
        f"the log {path} of job {job} cannot be read: {what} belongs to {owner}, and you have no access",
        hint=f"ask the owner for access (ls -ld {shlex.quote(str(closed))} shows the permissions)",
    )


def _find_in_accounting(job: JobId, slurm: SlurmCommands) -> list[LogLocation]:
    since = int(time.time()) - external.WINDOW
    for columns in (NEW, OLD):
        rows = parse_files(slurm.answer(files_argv(job, since, columns, job.cluster)).text, columns)
        found = [location for row in rows if (location := _parse_row(row)) is not None]
        if found:
            return found
        if rows and columns is OLD:
            folder = rows[-1]["WorkDir"] or "the job's working directory"
            raise NoSuchJob(
                f"there is no clusterrun record of job {job}, and Slurm no longer knows the paths of its logs",
                hint=f"see #SBATCH --output in the job's script; the default is slurm-{job}.out in {folder}",
            )
    raise NoSuchJob(
        f"there is no clusterrun record of job {job}, and Slurm no longer knows the paths of its logs",
        hint="look in the folder the job was submitted from; Slurm forgets log paths a few minutes after a job ends",
    )


def _parse_row(row: dict[str, str]) -> LogLocation | None:
    if not is_job_id(row["JobID"]):
        return None
    job = JobId.parse(row["JobID"])
    hosts = expand(row["NodeList"]) if row["NodeList"] != "None assigned" else []
    about = row["WorkDir"], row["User"], row["JobName"], row["JobIDRaw"], hosts[0] if hosts else ""
    if "SubmitLine" in row:
        return parse_submit_line(job, row["SubmitLine"], *about)
    return locate(job, row["StdOut"], row["StdErr"], *about) if row["StdOut"] else None


def _find_unreadable(path: Path) -> Path | None:
    """Return the file, or the folder above it, that the current user may not read; None if the file is readable."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
        return None
    except PermissionError:
        pass
    except OSError:
        return None  # missing, or not a regular file: LogFile raises
    for folder in [*reversed(path.parents)]:
        if not os.access(folder, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return folder
    return path


def _format(attempt: tuple[int, ...]) -> str:
    return ".".join(map(str, attempt))


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # no access: check_readable() raises
    return True
