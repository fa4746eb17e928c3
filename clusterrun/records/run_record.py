"""The record of a run: plain files, each with one writer, replaced atomically.

The run's own folder is authoritative. ``.clusterrun/jobs/<cluster>/<id>`` and the user's index point to it, and are
used only if the run's own files agree. Another user's run can be read, never written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, build, parse_object
from clusterrun.base.job import JobId, is_run_id
from clusterrun.run_folder import claims, identity, launches, safe_files
from clusterrun.run_folder.claims import CLUSTER_NAME, Claim
from clusterrun.run_folder.safe_files import RECORDS
from clusterrun.run_folder.submissions import SubmissionRecord, read_all


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run and its submissions, oldest first.

    ``root`` holds ``.clusterrun`` and ``logs``. ``owner`` is the uid of the owner of the run's folder and ``user`` the
    owner's name; both come from the file system. ``rung_before`` is the run id of the rung below in a ladder, ``sweep``
    the id of the sweep that the run belongs to.
    """

    run_id: str
    run_dir: Path
    root: Path
    name: str
    what: str
    scheduler: str
    cluster: str
    user: str
    at: int
    nodes: int
    workers_per_node: int
    shared: bool
    sources: Mapping[str, tuple[Any, str]]
    rung_before: str = ""
    sweep: str = ""
    submissions: tuple[SubmissionRecord, ...] = ()
    owner: int = -1

    @property
    def mine(self) -> bool:
        """Whether the run belongs to this user."""
        return self.owner in (-1, os.getuid())

    @property
    def submission(self) -> SubmissionRecord:
        """The newest submission, unless ``as_job`` or ``as_submission`` chose another."""
        return self.submissions[-1]

    def as_job(self, job: JobId) -> RunRecord:
        """Return the run as the submission of one of its jobs has it; as it is if no submission has this job id."""
        return self.as_submission(submission_of(self, job))

    def as_submission(self, one: SubmissionRecord) -> RunRecord:
        """Return the run as one of its submissions has it."""
        rest = tuple(other for other in self.submissions if other is not one)
        return replace(self, submissions=(*rest, one), cluster=one.cluster or self.cluster)

    @property
    def newest(self) -> RunRecord:
        """The run as its newest submission has it."""
        return self.as_submission(max(self.submissions, key=lambda one: one.at))

    @property
    def until_now(self) -> list[SubmissionRecord]:
        """The submissions up to this one, oldest first: an earlier job knows nothing of those that continue its run."""
        return sorted((one for one in self.submissions if one.at <= self.submission.at), key=lambda one: one.at)

    @property
    def continued_at(self) -> int | None:
        """When the next submission was made, in epoch seconds; None for the newest one."""
        return min((one.at for one in self.submissions if one.at > self.submission.at), default=None)

    @property
    def job_id(self) -> JobId | None:
        """The job id of the submission, or None."""
        return JobId.parse(self.submission.job_id) if self.submission.job_id else None

    @property
    def script(self) -> Path:
        """The script of the submission."""
        return self.run_dir / self.submission.script

    @property
    def sent_script(self) -> Path:
        """The script that sbatch got: of an array's task, the array's."""
        one = self.submission
        return self.script if one.task is None else identity.array_script(self.root, self.sweep, one.token)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def options(self) -> Mapping[str, tuple[Any, str]]:
        """The values of this submission's options with their sources: those of the run, but for what resume changed."""
        changed = {name: (text, f"--{name}") for name, text in self.submission.changed}
        return {**self.sources, **changed} if changed else self.sources  # which is parsed only if it is read

    def option(self, name: str) -> Any:
        """Return the value of an option of this submission; None if it has none."""
        return self.options.get(name, (None, ""))[0]

    @property
    def is_independent(self) -> bool:
        """Whether it was submitted with --independent: its ranks need not train together."""
        return self.option("independent") is True

    @property
    def in_job(self) -> str:
        """The Slurm job that the run was submitted into; empty if it got a job of its own."""
        return str(self.option("in-job") or "")

    @property
    def world_size(self) -> int:
        return self.nodes * self.workers_per_node


def load(run_dir: Path) -> RunRecord | None:
    """Load a run from its folder, or return None if the record is missing or invalid."""
    try:
        return load_strictly(run_dir)
    except (OSError, Damaged):
        return None


def load_strictly(run_dir: Path, runs: safe_files.Folder | None = None, *, only_mine: bool = False) -> RunRecord:
    """Load a run from its folder; ``runs`` is the folder above it, if that is open.

    Raises FileNotFoundError without a record, and Damaged or another OSError for a bad one. With ``only_mine`` it
    raises NotMine for the folder of another user, of which no file is opened.
    """
    if not is_run_id(run_dir.name) or run_dir.parts[-3:-1] != (RECORDS, "runs") or ".." in run_dir.parts:
        raise Damaged("not a run folder")
    with runs.open_folder(run_dir.name) if runs else safe_files.open_folder(run_dir) as folder:
        owner = os.fstat(folder.descriptor).st_uid
        if only_mine and owner != os.getuid():
            raise NotMine(errno.EPERM, f"owned by {safe_files.user_name(owner)}", str(run_dir))
        data = parse_object(folder.read("record.json"))
        submissions = read_all(folder)
    if not submissions:
        raise FileNotFoundError(errno.ENOENT, "no submission", str(run_dir))
    return build_run(run_dir, data, submissions, owner, build_sources(data.get("sources", {})))


def build_run(
    run_dir: Path, data: Mapping[str, Any], submissions: Iterable[SubmissionRecord], owner: int,
    sources: Mapping[str, tuple[Any, str]],
) -> RunRecord:  # fmt: skip
    """Return a run from the object in its record.json, its submissions and its sources. Raises Damaged."""
    record = build(
        RunRecord, data, run_dir=run_dir, root=run_dir.parents[2], owner=owner, user=safe_files.user_name(owner),
        sources=sources, submissions=tuple(sorted(submissions, key=lambda one: one.at)),
    )  # fmt: skip
    cluster = record.submission.cluster or record.cluster
    record = record if cluster == record.cluster else replace(record, cluster=cluster)
    if record.run_id != run_dir.name:
        raise Damaged("the record belongs to another run")
    if not CLUSTER_NAME.fullmatch(record.cluster):
        raise Damaged("the cluster name is invalid")
    if record.sweep and not is_run_id(record.sweep):
        raise Damaged("the sweep's id is invalid")
    return record


class NotMine(PermissionError):
    """The folder of a run belongs to another user."""


def build_sources(sources: object) -> dict[str, tuple[Any, str]]:
    """Return the values in record.json with their sources. Raises Damaged."""
    if not isinstance(sources, dict):
        raise Damaged("sources is invalid")
    found = {}
    for name, pair in sources.items():
        match pair:
            case [value, str(source)]:
                found[name] = value, source
            case _:
                raise Damaged("sources is invalid")
    return found


def attempts(record: RunRecord, task: int | None = None) -> list[Path]:
    """Return the attempt folders of a run's submission, oldest first (by restart, then launch)."""
    one = record.submission
    return launches.folders(record.run_dir, one.key if task is None or one.task is not None else f"{one.token}_{task}")


def all_attempts(record: RunRecord, task: int | None = None) -> list[Path]:
    """Return the attempt folders of a run's submissions up to this one, oldest first."""
    jobs = map(record.as_submission, record.until_now)
    return [folder for job in jobs for folder in attempts(job, task)]


def newest_attempt(record: RunRecord, task: int | None = None) -> Path | None:
    """Return the newest attempt folder of a run's submission, None if it has not started."""
    folders = attempts(record, task)
    return folders[-1] if folders else None


def attempts_of(run: RunRecord, job: JobId) -> list[Path]:
    """Return the attempt folders of one of a run's jobs or of its task, oldest first (by restart, then launch)."""
    return attempts(run.as_job(job), job.task)


def submission_of(run: RunRecord, job: JobId) -> SubmissionRecord:
    """Return the submission with this job id, else the run's ``submission``."""
    found = (one for one in run.submissions if one.job_id and JobId.parse(one.job_id).base == job.base)
    return next(found, run.submission)


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder; none if it is missing or not accessible."""
    try:
        return safe_files.list_names(folder)
    except OSError:
        return []


def read_lines(path: Path) -> list[str]:
    """Return the lines of one of the user's own files; none if it is missing or not accessible."""
    try:
        data = safe_files.read_bytes(path, limit=1 << 30, owner=os.getuid())
    except OSError:
        return []
    return data.decode("utf-8", "surrogateescape").splitlines()


def age_key(record: RunRecord) -> tuple[int, int, int, str]:
    """Return the sort key of a run's age; the job id decides between runs of the same second."""
    job = record.job_id
    return record.at, job.number if job else 0, record.submission.task or 0, record.run_id


def has_job_id(record: RunRecord, job: JobId) -> bool:
    """Return whether any submission of a run had this job id; of an array without a task, each of its runs had it."""
    ids = (JobId.parse(s.job_id) for s in record.submissions if s.job_id)
    return job.cluster in ("", record.cluster) and any(
        one.base == job.base and (job.task is None or one.task in (None, job.task)) for one in ids
    )


def claim_of(record: RunRecord) -> Claim | None:
    """Return the claim of the newest submission, or None if there is none or it cannot be read."""
    try:
        return claims.read(record.run_dir, record.submission.key)
    except OSError:
        return None
