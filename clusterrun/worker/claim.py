"""The claim on a run: one job may work in its folder, and only the newest start of that job may write checkpoints.

A claim makes a submission that was sent twice run once. The job that renames its folder to the run's token first owns
it; the other exits before it uses a GPU or a checkpoint of the run. A job that Slurm restarts renews its own claim.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.decode import as_int
from ..run_folder.files import read_json, write_text
from .errors import WorkerError

ALREADY_RUNS = 75
CANCEL_S = 3600.0  # in which a cancelled job ends, its grace time included


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
        own = environ.get("SLURM_JOB_ID") or environ.get("CLUSTERRUN_LOCAL_JOB_ID") or "none"
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
    claims, name = run_dir / "claims", token + job.task
    if later := _later_owner(run_dir, token):
        raise _already_runs(run_dir, later, job)
    mine = f"{job.cluster} {job.job_id} {job.restart}"
    try:
        staged = Path(tempfile.mkdtemp(prefix=".", dir=claims))
        staged.chmod(mode)
        write_text(staged / "owner", mine + "\n")
    except OSError as error:
        raise WorkerError(f"cannot record in {claims} that this job owns the run: {error.strerror}") from None
    owner = claims / name / "owner"
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


def _owner(file: Path) -> list[str]:
    """Return cluster, job id and restart of a claim; empty texts if it cannot be read."""
    return [*_read(file).split(), "", "", ""][:3]


def _later_owner(run_dir: Path, token: str) -> list[str]:
    """Return the owner of a later submission's claim, empty if there is none: Slurm may restart a run's old job."""
    mine = _submitted_at(run_dir, token)
    try:
        names = sorted(os.listdir(run_dir / "claims"))
    except OSError:
        return []
    for name in names:
        other = name.partition("_")[0]
        if not name.startswith(".") and other != token and _submitted_at(run_dir, other) > mine > 0:
            return _owner(run_dir / "claims" / name / "owner")
    return []


def _submitted_at(run_dir: Path, token: str) -> int:
    return as_int(_submission(run_dir, token).get("at")) or 0


def _submission(run_dir: Path, token: str) -> dict[str, Any]:
    return read_json(run_dir / "submissions" / f"{token}.json") or {}


def is_cancelled(run_dir: Path, token: str) -> bool:
    """Return whether the user has just cancelled this submission: `clusterrun cancel` records it before scancel.

    An old mark is of a cancel that did not come through, or after which the user requeued the job.
    """
    asked = as_int(_submission(run_dir, token).get("cancel_asked"))
    return asked is not None and time.time() - asked < CANCEL_S


def epoch_file(run_dir: Path, job: JobIdentity) -> Path:
    """Return the file with the run's epoch (epoch.py); each task of an array has its own."""
    return run_dir / f"epoch{job.task}"


def listed(file: Path) -> bool:
    """Return whether a file exists.

    NFS may remember "no such file" for a minute, but asks the server when it opens a folder.
    """
    try:
        return file.name in os.listdir(file.parent)
    except OSError:
        return False


def raise_epoch(run_dir: Path, token: str, job: JobIdentity) -> int:
    """Begin the run's next epoch: processes of an earlier one may write no more (epoch.py). Return its number.

    Raises WorkerError, with status 75 if the run is no longer this start's.
    """
    later = _later_owner(run_dir, token)
    if later:
        raise _already_runs(run_dir, later, job)
    file = epoch_file(run_dir, job)
    text = _read(file).strip() if listed(file) else "0"
    if not (text.isascii() and text.isdigit()):
        raise WorkerError(f"{file} does not contain a number: {text!r}")
    owner = _read(run_dir / "claims" / (token + job.task) / "owner").strip()
    if owner != f"{job.cluster} {job.job_id} {job.restart}":
        raise WorkerError(
            f"job {job.job_id} has been restarted: this earlier copy (restart {job.restart}) is exiting.",
            status=ALREADY_RUNS,
        )
    try:
        write_text(file, f"{int(text) + 1}\n")
    except OSError as error:
        raise WorkerError(f"cannot write {file}: {error.strerror}") from None
    return int(text) + 1


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
