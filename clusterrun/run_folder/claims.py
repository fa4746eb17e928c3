"""The claim on a run: one job may work in its folder, and only the newest start of that job may write checkpoints.

A claim makes a submission that was sent twice run once. The job that renames its folder to the run's token first owns
it; the other exits before it uses a GPU or a checkpoint of the run. A job that Slurm restarts renews its own claim.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..base.errors import RequestError, WorkerError
from ..base.job import JobId
from . import safe_files, submissions
from .files import write_text

CLUSTER_NAME = re.compile(r"(?!\.)[A-Za-z0-9_.-]{0,64}", re.ASCII)
ALREADY_RUNS = 75


@dataclass(frozen=True)
class JobIdentity:
    """Which job of which cluster runs, and how often it was restarted; `task` is `_N` in an array, else empty.

    A task's job id is `ARRAY_N`: its own number may be the array's, which names all tasks in scontrol and scancel.
    """

    cluster: str
    job_id: str
    task: str
    restart: int

    @classmethod
    def resolve(cls, environ: Mapping[str, str]) -> JobIdentity:
        """Read the variables of Slurm or of the local scheduler; the job id is `none` for a script run by hand."""
        task = f"_{number}" if (number := environ.get("SLURM_ARRAY_TASK_ID")) else ""
        # a local job inside a Slurm job has both
        own = environ.get("CLUSTERRUN_LOCAL_JOB_ID") or environ.get("SLURM_JOB_ID") or "none"
        return cls(
            cluster=environ.get("SLURM_CLUSTER_NAME") or "local",
            job_id=f"{environ.get('SLURM_ARRAY_JOB_ID') or own}{task}",
            task=task,
            restart=int(environ.get("SLURM_RESTART_COUNT") or 0),
        )


def own_folders(run_dir: Path) -> None:
    """Create the run's folders. A link or another user's folder could redirect its files: raises WorkerError then."""
    for folder in (run_dir, run_dir / "claims", run_dir / "attempts"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkerError(f"cannot create {folder}: {error.strerror}") from None
        if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
            raise WorkerError(
                f"{folder} is a symbolic link or belongs to another user, so nothing was started.\n"
                "clusterrun: hint: submit the job again from a folder that only you can write to"
            )


def claim(run_dir: Path, token: str, job: JobIdentity, mode: int) -> None:
    """Claim the run for this start of the job; `mode` is that of a new folder.

    Raises WorkerError, with status 75 if another job, or a later start of this one, has the run.
    """
    import shutil  # only a job claims a run: commands, which read claims, start without these
    import tempfile

    claims, name = run_dir / "claims", token + job.task
    if later := _later_owner(run_dir, token):
        raise _already_runs(run_dir, later, job)
    try:
        staged = Path(tempfile.mkdtemp(prefix=".", dir=claims))
        staged.chmod(mode)
        write_text(staged / "owner", _text(job) + "\n")
    except OSError as error:
        raise WorkerError(f"cannot record in {claims} that this job owns the run: {error.strerror}") from None
    owner = _owner_file(run_dir, name)
    try:
        os.rename(staged, claims / name)
    except OSError:
        cluster, job_id, restart = found = _owner(owner)
        if (cluster, job_id) != (job.cluster, job.job_id) or job.restart < int(restart or 0):
            shutil.rmtree(staged)
            raise _already_runs(run_dir, found, job) from None
        os.replace(staged / "owner", owner)
        staged.rmdir()


def _already_runs(run_dir: Path, owner: list[str], job: JobIdentity) -> WorkerError:
    return WorkerError(
        f"job {owner[1]} (restart {owner[2]}) is already running {run_dir.name}:"
        f" this copy, job {job.job_id} (restart {job.restart}), is exiting.",
        status=ALREADY_RUNS,
    )


def check_owner(run_dir: Path, token: str, job: JobIdentity) -> None:
    """Raise WorkerError with status 75 if the run is no longer this start's."""
    if later := _later_owner(run_dir, token):
        raise _already_runs(run_dir, later, job)
    owner = _read(_owner_file(run_dir, token + job.task)).strip()
    if owner != _text(job):
        raise WorkerError(
            f"job {job.job_id} has been restarted: this earlier copy (restart {job.restart}) is exiting.",
            status=ALREADY_RUNS,
        )


def _text(job: JobIdentity) -> str:
    return f"{job.cluster} {job.job_id} {job.restart}"


def _owner_file(run_dir: Path, key: str) -> Path:
    return run_dir / "claims" / key / "owner"


def _owner(file: Path) -> list[str]:
    """Return cluster, job id and restart of a claim; empty texts if it cannot be read."""
    return [*_read(file).split(), "", "", ""][:3]


def _later_owner(run_dir: Path, token: str) -> list[str]:
    """Return the owner of a later submission's claim, empty if there is none: Slurm may restart a run's old job."""
    mine = submissions.submitted_at(run_dir, token)
    try:
        names = sorted(os.listdir(run_dir / "claims"))
    except OSError:
        return []
    for name in names:
        other = name.partition("_")[0]
        if not name.startswith(".") and other != token and submissions.submitted_at(run_dir, other) > mine > 0:
            return _owner(_owner_file(run_dir, name))
    return []


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


class Claim(NamedTuple):
    """The job that claimed a submission; ``restart`` is Slurm's restart count, ``at`` the time in epoch seconds."""

    cluster: str
    job: str
    restart: int
    at: int


def read(run_dir: Path, key: str) -> Claim | None:
    """Return the claim of a submission (``SubmissionRecord.key``), or None; raises OSError if it cannot be read."""
    try:
        with safe_files.open_file(_owner_file(run_dir, key)) as descriptor:
            text, at = os.read(descriptor, 1024), int(os.fstat(descriptor).st_mtime)
        cluster, job, restart = text.decode("ascii").split()
        is_valid = CLUSTER_NAME.fullmatch(cluster) and re.fullmatch("[0-9]{1,9}", restart)
        return Claim(cluster, JobId.parse(job).base, int(restart), at) if is_valid else None
    except FileNotFoundError:
        return None
    except (ValueError, RequestError):
        return None
