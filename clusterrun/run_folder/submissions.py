"""The submissions of a run, ``submissions/<token>.json``: one sbatch each, with a token of its own.

A command writes them, and a job that submits its successor. Another user may have written them, or a newer version:
keys that are not known are ignored.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..base.decode import Damaged, as_int, build, parse_object
from ..base.job import MAX_TASKS, JobId, is_job_id
from . import identity, safe_files
from .files import file_mode, read_json

ENDED = "over"  # the folder beside those of the runs with the index of ended runs
CANCEL_S = 3600.0  # in which a cancelled job ends, its grace time included
#: The states of a submission.
SUBMITTING, ACCEPTED, NOT_SUBMITTED = "submitting", "accepted", "not submitted"
_TOKEN = re.compile(r"[a-z2-7]{16}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """One submission of a run: its token, its state and, once known, its end.

    Times are seconds since the epoch. ``submitter`` is the submitting process: (host, pid, start time in clock ticks).
    ``final`` holds the end of the job, with the names of ``JobStatus``, and the last ``figures`` of
    the training. ``cancel_asked`` is when `cancel` was run, unless it was refused. ``cluster`` is empty if unknown.
    ``log_start`` holds the sizes in bytes of the two log files before the job, -1 if unknown: older jobs of the same id
    may have written to them. ``script`` is the name of its script in the run's folder. ``task`` is the index in an
    array: the runs of an array share its token, and their job ids differ in the index only. ``resume_args`` are what
    a job that continues its run appends to the run's arguments, and ``changed`` are options with the values that it has
    instead of the run's.
    """

    token: str
    state: str = SUBMITTING
    job_id: str = ""
    cluster: str = ""
    log_start: tuple[int, int] = (0, 0)
    at: int = 0
    submitter: tuple[str, int, int] = ("", 0, 0)
    cancel_asked: int = 0
    script: str = "script.sh"
    task: int | None = None
    resume_args: str = ""
    changed: tuple[tuple[str, str], ...] = ()
    final: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """The name of the submission's claim, and the start of its attempts' names."""
        return self.token if self.task is None else f"{self.token}_{self.task}"

    def job(self, number: str) -> JobId:
        """Return the job id of this submission, if sbatch returned ``number``."""
        return JobId(number, self.task)


def next_after(last: SubmissionRecord, submitter: tuple[str, int, int], resume_args: str = "") -> SubmissionRecord:
    """Return a new submission of a run, later than its last one and with its options; its script is not written yet."""
    token, at = identity.new_token(), max(int(time.time()), last.at + 1)
    script = identity.name_of_next(token)
    return SubmissionRecord(
        token=token, at=at, submitter=submitter, script=script, resume_args=resume_args, changed=last.changed
    )


def path_of(run_dir: Path, token: str) -> Path:
    """Return the file of a submission."""
    return run_dir / "submissions" / f"{token}.json"


def write(run_dir: Path, submission: SubmissionRecord) -> None:
    """Replace the file of a submission; the run must be this user's. Raises OSError."""
    path = path_of(run_dir, submission.token)
    data = json.dumps({"version": 1, **asdict(submission)}, indent=1).encode()
    safe_files.write(path, data, file_mode(path.parent))


def unlist(run_dir: Path) -> None:
    """Remove a run from the index of ended runs, and wait until that is on disk; raises OSError.

    Called before a submission is written and after it: a command that read the run before may have added it meanwhile.
    """
    try:
        folder = run_dir.parent.with_name(ENDED)
        names = [name for name in safe_files.list_names(folder) if name.startswith(f"{run_dir.name},")]
    except FileNotFoundError:
        return
    if names:
        safe_files.remove(folder, names)


def read(run_dir: Path, token: str) -> SubmissionRecord:
    """Return one submission of a run. Raises OSError and Damaged."""
    with safe_files.open_folder(run_dir / "submissions") as folder:
        return _read(folder, f"{token}.json")


def read_all(run: safe_files.Folder) -> list[SubmissionRecord]:
    """Return the submissions of a run whose folder is open, in no order. Raises OSError and Damaged."""
    try:
        with run.open_folder("submissions") as folder:
            names = [name for name in folder.names() if name.endswith(".json") and not name.startswith(".")]
            return [_read(folder, name) for name in names]
    except FileNotFoundError:
        return []


def _read(folder: safe_files.Folder, name: str) -> SubmissionRecord:
    one = build_submission(parse_object(folder.read(name)))
    if f"{one.token}.json" != name:
        raise Damaged("the token does not match the file name")
    return one


def build_submission(data: Mapping[str, Any]) -> SubmissionRecord:
    """Return a submission from its JSON object. Raises Damaged."""
    # without these three the job is found, too
    one = build(SubmissionRecord, data, lenient=("submitter", "log_start", "final"))
    if why := _why_wrong(one):
        raise Damaged(why)
    return one if one.job_id else replace(one, final=None)


def _why_wrong(one: SubmissionRecord) -> str:
    """Return what is wrong with a submission, or an empty text."""
    if not _TOKEN.fullmatch(one.token):
        return "the token is invalid"
    if not identity.is_script(one.script):
        return "the script's name is invalid"
    if one.task is not None and one.task >= MAX_TASKS:
        return "the array index is invalid"
    return "the job id is invalid" if one.job_id and not is_job_id(one.job_id) else ""


def submitted_at(run_dir: Path, token: str) -> int:
    """Return when a submission was sent, in seconds since the epoch; 0 if that is not known."""
    return as_int((read_json(path_of(run_dir, token)) or {}).get("at")) or 0


def is_cancelled(run_dir: Path, token: str) -> bool:
    """Return whether the user has just cancelled this submission: `clusterrun cancel` records it before scancel.

    An old mark is of a cancel that did not come through, or after which the user requeued the job.
    """
    asked = as_int((read_json(path_of(run_dir, token)) or {}).get("cancel_asked"))
    return asked is not None and time.time() - asked < CANCEL_S


def changed_at(run_dir: Path) -> int | None:
    """Return when a file of a run's submissions was last replaced, in nanoseconds; None if that is unknown."""
    try:
        with safe_files.open_folder(run_dir / "submissions") as folder:
            return folder.changed_at()
    except OSError:
        return None
