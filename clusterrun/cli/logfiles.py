"""Find the log files of a job: of a run, or of an external job, which another tool submitted."""

from __future__ import annotations

import os
import pwd
import shlex
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.base.job import LAUNCH_FAILURE, LAUNCH_REASON, LOCAL, JobId, JobStatus, Outcome, is_job_id, log_paths
from clusterrun.cli.common.show import exit_code
from clusterrun.cluster import Cluster
from clusterrun.logs.files import Source, read_ticks
from clusterrun.logs.locations import LogLocation, find_location, locate, parse_locations, parse_submit_line
from clusterrun.logs.request import LogRequest, RankFilter, filter_external, filter_run
from clusterrun.records import launches, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.run_folder.safe_files import user_name
from clusterrun.scheduler import Scheduler, SlurmCommands
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.sacct import NEW, OLD, files_argv, parse_files
from clusterrun.scheduler.slurm.scontrol import parse_jobs, show_argv
from clusterrun.state import external
from clusterrun.state.filters import refuse_part
from clusterrun.state.reconcile import RunState, Target


class RunLogs:
    """The logs of a run, and the attempts that wrote them."""

    def __init__(self, run: RunRecord, job: JobId) -> None:
        self.run, self.job = run, job

    @property
    def attempts(self) -> list[Path]:
        return run_record.attempts_of(self.run, self.job)

    @property
    def paths(self) -> tuple[Path, Path]:
        return log_paths(self.run.logs, self.job)

    @property
    def exist(self) -> bool:
        return any(path.exists() for path in self.paths)

    def select(self, request: LogRequest) -> tuple[list[Source], RankFilter]:
        """Return the requested files and ranks. Raises RequestError."""
        for path in self.paths:
            check_readable(path, self.job)
        labels, prefix = self.filter_ranks(request)
        source = self.source(labels, request.attempt)
        if request.since is not None and self.exist and not source.ticks:
            raise _no_clock(self.job)
        return [source], (labels, prefix)

    def explain_missing(self, cluster: Cluster) -> tuple[str, int]:
        """Return why there is no log, and the exit code."""
        (state,) = cluster.states([self.run])
        job = state.status
        if job.is_over:
            return format_missing_log(cluster, self, state), exit_code([state])
        if job.state in ("PENDING", "UNKNOWN"):
            return f"no log yet: job {self.job} is {job.state}" + (f" ({job.reason})" if job.reason else ""), 0
        return f"no log for job {self.job} ({job.state}): {self.paths[0]} does not exist", 0

    def filter_ranks(self, request: LogRequest) -> RankFilter:
        """Return the filter for the requested ranks and nodes. Raises RequestError."""
        ranks = request.ranks
        start = next(filter(None, map(ends.load_start, reversed(self._select(request.attempt)))), None)
        largest = max(ranks, default=-1)
        if start is None and largest >= self.run.world_size:
            raise RequestError(f"there is no rank {largest}", hint=f"available ranks: 0-{self.run.world_size - 1}")
        return filter_run(start, ranks, request.nodes, self.paths)

    def source(self, labels: frozenset[int] | None, attempt: tuple[int, ...] = ()) -> Source:
        """Return the files with the selected ranks and the log clock; only what one attempt or launch wrote if given.

        Raises RequestError if the attempt does not exist, or if no record says where its lines begin.
        """
        source, chosen = launches.log_source(self.run, self.job), self._select(attempt)
        if attempt:
            first = self.attempts.index(chosen[0])
            later = map(launches.log_start, self.attempts[first + len(chosen) :])
            begin = launches.log_start(chosen[0]) if first else source.begin
            if begin is None:
                raise RequestError(
                    f"the records of job {self.job} do not show where attempt {_format(attempt)} begins in the log",
                    hint=f"show the whole log with `clusterrun logs {self.job}`",
                )
            source = replace(source, begin=begin, end=next(filter(None, later), None))
        ticks = read_ticks(chosen, self.paths, source.begin)
        return replace(source, ranks=labels, ticks=ticks)

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
        has_tasks = any(location.is_pattern or location.job.task is not None for location in self.locations)
        return has_tasks and self.job.task is None and self.job.raw in [place.job.raw for place in self.locations]

    def find(self, job: JobId) -> LogLocation | None:
        """Return the location of this job or of one of its tasks."""
        if not self.is_array and len(self.locations) == 1 and not self.locations[0].is_pattern:
            return self.locations[0]
        return find_location(job, self.locations)

    @cached_property
    def existing(self) -> list[LogLocation]:
        """The locations with a file, in order of tasks."""
        existing = []
        for location in self.locations:
            place = self.find(self.job) if location.is_pattern else location
            if place is not None and any(map(_exists, files_of(place))):
                existing.append(place)
        return existing

    @property
    def exist(self) -> bool:
        return bool(self.existing)

    def select(self, request: LogRequest) -> tuple[list[Source], RankFilter]:
        """Return the requested files and ranks. Raises RequestError."""
        self._refuse(request)
        files: list[Path] = []
        for location in self.existing:
            for path in files_of(location):
                check_readable(path, location.job)
                files.append(path)
        if (request.ranks or request.nodes) and request.follow and not files:
            raise RequestError(
                f"job {self.job} has no log yet, so its lines cannot be selected by rank",
                hint="use --rank after the job has started",
            )
        labels, prefix = filter_external(request.ranks, request.nodes, files)
        sources = [external_source(location, labels, named=self.is_array) for location in self.existing]
        return sources, (labels, prefix)

    def _refuse(self, request: LogRequest) -> None:
        """Raise RequestError for what needs clusterrun's own records, or a file of each stream."""
        if request.since is not None:
            raise _no_clock(self.job)
        if request.attempt:
            raise RequestError(
                "--attempt works only for jobs submitted by clusterrun", hint="omit --attempt to show the whole log"
            )
        if request.filter.stream == "err" and all(location.err is None for location in self.locations):
            raise RequestError(
                f"job {self.job} writes stdout and stderr to one file",
                hint="omit --stream, or use --errors to find errors",
            )

    def explain_missing(self, cluster: Cluster) -> tuple[str, int]:
        """Return that there is no log, and the exit code."""
        states = cluster.status([str(self.job)])
        paths = ", ".join(str(location.out) for location in self.locations[:2])
        verb = "does" if len(self.locations) == 1 else "do"
        line = f"no log for job {self.job} ({states[0].status.state}): {paths} {verb} not exist"
        is_running = Outcome.RUNNING in {state.status.outcome for state in states}
        return line, 0 if is_running else exit_code(states)


def find_logs(cluster: Cluster, named: Target, *, follow: bool) -> RunLogs | ExternalLogs:
    """Return the logs of a job; of a run's several active jobs those of the newest.

    Raises NoSuchJob, also if Slurm does not report their paths, and RequestError to ``follow`` several jobs.
    """
    targets = cluster.live_targets([named])
    run, job = targets[-1].run, targets[-1].job_id
    if run is None and job is not None:
        cluster.status([named])  # raises NoSuchJob
        return find_external_logs(job, cluster.scheduler("slurm"))
    assert run is not None
    if job is None:
        raise NoSuchJob(f"run {run.run_id} has no job yet", hint=f"clusterrun submit --recover {run.run_id}")
    if follow and len(targets) > 1:
        ids = ", ".join(str(target.job_id) for target in targets)
        raise RequestError(f"run {run.run_id} has several active jobs: {ids}", hint="give one of these ids")
    logs = RunLogs(run, job)
    if job != run.job_id and not logs.exist:
        refuse_part(job, cluster.states([run])[0].status)
    return logs


def find_external_logs(job: JobId, scheduler: Scheduler) -> ExternalLogs:
    """Query Slurm for the log files of an external job. A node name in a file name is known only when the job runs."""
    slurm = scheduler.slurm
    assert slurm is not None
    job = job._replace(part=None)  # the components of a job have one log, which the batch script of the first writes
    locations = parse_locations(parse_jobs(slurm.answer(show_argv("job", [str(job)], job.cluster)).text))
    locations = locations or _find_in_accounting(job, slurm)
    if job.task is not None:
        locations = [location for location in locations if location.is_pattern or location.job.task == job.task]
    if {Path(os.devnull)}.issuperset(path for location in locations for path in files_of(location)):
        raise RequestError(
            f"job {job} has no log: its output goes to {os.devnull}",
            hint=f"see StdOut in `scontrol show job {job}`",
        )
    return ExternalLogs(job, tuple(locations))


def external_source(location: LogLocation, labels: frozenset[int] | None, *, named: bool) -> Source:
    """Return the files of an external job; with ``named``, each line begins with its task.

    The job's user, root or the current user may own the files; another user may have planted them.
    """
    name = str(location.job) if named else ""
    return Source(location.out, location.err, name=name, ranks=labels, owners=_owners(location.user))


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
        locations = list(filter(None, map(_parse_row, rows)))
        if locations:
            return locations
    hint = "look in the folder the job was submitted from; Slurm forgets log paths a few minutes after a job ends"
    if rows:
        folder = rows[-1]["WorkDir"] or "the job's working directory"
        hint = f"see #SBATCH --output in the job's script; the default is slurm-{job}.out in {folder}"
    message = f"there is no clusterrun record of job {job}, and Slurm no longer knows the paths of its logs"
    raise NoSuchJob(message, hint=hint)


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


def format_missing_log(cluster: Cluster, logs: RunLogs, state: RunState) -> str:
    """Return why a run has no log."""
    job, status = logs.job, state.status
    if logs.attempts:
        return f"no log for job {job}: {logs.paths[0]} does not exist; was it removed?"
    if status.outcome is Outcome.FAILED and logs.run.scheduler != LOCAL:
        return _why_not_begun(cluster, logs, status)
    over = status.is_over and status.outcome is not Outcome.UNKNOWN
    return f"job {job} never started, so it has no log" if over else f"no log for job {job} yet"


def _why_not_begun(cluster: Cluster, logs: RunLogs, status: JobStatus) -> str:
    """Return why Slurm failed to start a job's script."""
    # the state has the exit code of accounting; without accounting only scontrol has it, for some minutes
    code = "0:53" if status.exit_status == LAUNCH_FAILURE else _exit_code(cluster, logs)
    failed = f"job {logs.job} failed before its script began"
    if code == "0:53":
        problem = "open the log files (exit code 0:53)"
    elif not code and status.reason == LAUNCH_REASON:
        problem = f"start the job on its node ({LAUNCH_REASON})"
    else:
        return failed + (f" (exit code {code})" if code else "") + ", so it has no log"
    return f"{failed}: Slurm could not {problem}; is {logs.run.logs} missing, full or not writable on the node?"


def _exit_code(cluster: Cluster, logs: RunLogs) -> str:
    slurm = cluster.scheduler(logs.run.scheduler).slurm
    assert slurm is not None
    blocks = parse_jobs(slurm.answer(show_argv("job", [str(logs.job)])).text)
    return blocks[0].get("ExitCode", "") if blocks else ""


def _no_clock(job: JobId) -> RequestError:
    return RequestError(
        f"--since: the log lines of job {job} have no timestamps, and clusterrun recorded none",
        hint="use -n 200 or --grep PATTERN instead",
    )


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
