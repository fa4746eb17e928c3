"""The records of runs: plain files, each with one writer, replaced whole.

A run's own folder is the truth. ``.clusterrun/jobs/<cluster>/<id>`` and the user's index lead to it and
are believed only as far as the run's files agree. Another user's run can be read, never written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.job import JobId, is_run_id
from clusterrun.system import safe_files
from clusterrun.system.safe_files import RECORDS

#: How a submission stands, as its submitter knows it.
SUBMITTING, ACCEPTED, NOT_SUBMITTED = "submitting", "accepted", "not submitted"
_TOKEN = re.compile(r"[a-z2-7]{16}", re.ASCII)
_CLUSTER = re.compile(r"(?!\.)[A-Za-z0-9_.-]{0,64}", re.ASCII)
_KINDS: dict[Any, type] = {"str": str, "int": int, "bool": bool}
#: The largest number that a record may hold: a later time than this is in no calendar.
_MOST = 253_402_300_799


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """One sbatch of a run: its token, what became of it, and the last state we saw it end in.

    Times are seconds since the epoch. ``submitter`` is (host, pid, start time in clock ticks): whether
    the process that was submitting is still at it. ``final`` is the end once it was seen: what of a
    :class:`clusterrun.job.JobStatus` is to be told later, by its names there, and the last ``figures`` of the training.
    ``cancel_asked`` is when our own cancel was accepted. ``cluster`` took the job, as far as it is known, and
    ``log_start`` has the sizes in bytes of what older jobs of the same id left in the two log files, -1 where that is
    not known.
    """

    token: str
    state: str = SUBMITTING
    job_id: str = ""
    cluster: str = ""
    log_start: tuple[int, int] = (0, 0)
    at: int = 0
    submitter: tuple[str, int, int] = ("", 0, 0)
    cancel_asked: int = 0
    final: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as it was asked for, with its submissions, oldest first.

    ``root`` holds ``.clusterrun`` and ``logs``. ``owner`` is the uid that the run's folder belongs to, and
    ``user`` that owner's name: both come from the file system.
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
    tasks_per_node: int
    shared: bool
    sources: Mapping[str, tuple[Any, str]]
    submissions: tuple[SubmissionRecord, ...] = ()
    owner: int = -1

    @property
    def mine(self) -> bool:
        """Whether this user may write the run's records and act on its jobs."""
        return self.owner in (-1, os.getuid())

    @property
    def submission(self) -> SubmissionRecord:
        """The newest submission."""
        return self.submissions[-1]

    @property
    def job_id(self) -> JobId | None:
        """The id of the newest submission, None where it has none."""
        return JobId.parse(self.submission.job_id) if self.submission.job_id else None

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def world_size(self) -> int:
        return self.nodes * self.tasks_per_node


def load(run_dir: Path) -> RunRecord | None:
    """Read a run's own files; None where there is no whole record."""
    try:
        return load_strictly(run_dir)
    except (OSError, ValueError):
        return None


def load_strictly(run_dir: Path) -> RunRecord:
    """Read a run's own files; raises FileNotFoundError where there are none, OSError and ValueError for bad ones."""
    if not is_run_id(run_dir.name) or run_dir.parts[-3:-1] != (RECORDS, "runs") or ".." in run_dir.parts:
        raise ValueError("not the folder of a run")
    owner = safe_files.owner_of(run_dir)
    data = _checked(_json(run_dir / "record.json"), RunRecord)
    sources = data.get("sources", {})
    submissions = [
        _submission(run_dir / "submissions" / name) for name in names(run_dir / "submissions")
        if name.endswith(".json") and not name.startswith(".")
    ]  # fmt: skip
    if not submissions:
        raise FileNotFoundError(errno.ENOENT, "no submission", str(run_dir))
    submissions.sort(key=lambda s: s.at)
    if data.get("run_id") != run_dir.name:
        raise ValueError("the record is that of another run")
    if not isinstance(sources, dict) or not all(isinstance(v, list) and len(v) == 2 for v in sources.values()):
        raise ValueError("sources is not what it should be")
    cluster = submissions[-1].cluster or data.get("cluster", "")
    if not _CLUSTER.fullmatch(cluster):
        raise ValueError("the name of the cluster is none")
    try:
        return RunRecord(
            **{**data, "run_dir": run_dir, "root": run_dir.parents[2], "owner": owner, "cluster": cluster,
               "user": safe_files.user_name(owner), "submissions": tuple(submissions)}
        )  # fmt: skip
    except TypeError as error:  # a key is missing
        raise ValueError(str(error).partition("() ")[2] or "a key is missing") from None


def _submission(path: Path) -> SubmissionRecord:
    data = _checked(_json(path), SubmissionRecord)
    who, start, final = data.get("submitter"), data.get("log_start"), data.get("final")
    data["submitter"] = (str(who[0]), *map(int, who[1:3])) if isinstance(who, list) and len(who) == 3 else ("", 0, 0)
    data["log_start"] = tuple(map(int, start)) if isinstance(start, list) and len(start) == 2 else (0, 0)
    if data.get("token") != path.name.removesuffix(".json") or not _TOKEN.fullmatch(data["token"]):
        raise ValueError("the token is not that of the file")
    if data.get("job_id"):
        with contextlib.suppress(RequestError):
            JobId.parse(data["job_id"])
            final = final if isinstance(final, dict) or final is None else {}
            return SubmissionRecord(**{**data, "final": final})
        raise ValueError("the job id is none")
    return SubmissionRecord(**{**data, "final": None})


def read_json(path: Path) -> dict[str, Any] | None:
    """A small JSON object that a job wrote, or None where it is missing, half-written or not an object."""
    try:
        return _json(path)
    except (OSError, ValueError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(safe_files.read(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    return data


def attempts(record: RunRecord, task: int | None = None) -> list[Path]:
    """The attempt folders of the newest submission, oldest first (restart, then launch)."""
    prefix = record.submission.token + ("" if task is None else f"_{task}") + "."
    found: list[tuple[int, int, Path]] = []
    folder = record.run_dir / "attempts"
    for name in names(folder):
        restart, _, launch = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and _is_count(restart) and _is_count(launch):
            found.append((int(restart), int(launch), folder / name))
    return [path for _, _, path in sorted(found)]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who owns a submission's token: ``restart`` is Slurm's count, ``at`` the epoch second at which it was written."""

    cluster: str
    job: str
    restart: int
    at: int


def claim_of(record: RunRecord) -> Claim | None:
    """The claim of the newest submission, None before the job's first act, and where it cannot be read."""
    try:
        return read_claim(record)
    except OSError:
        return None


def read_claim(record: RunRecord) -> Claim | None:
    """The claim of the newest submission, None before the job's first act; raises OSError where that is not known."""
    path = record.run_dir / "claims" / record.submission.token / "owner"
    try:
        with safe_files.open_file(path) as descriptor:
            text, at = os.read(descriptor, 1024), int(os.fstat(descriptor).st_mtime)
        cluster, job, restart = text.decode("ascii").split()
        known = _CLUSTER.fullmatch(cluster) and _is_count(restart)
        return Claim(cluster, JobId.parse(job).base, int(restart), at) if known else None
    except FileNotFoundError:
        return None
    except (ValueError, RequestError):
        return None


def written_at(path: Path) -> float:
    """When a file was last written, in epoch seconds; 0 where there is none, or none that may be seen."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def names(folder: Path) -> list[str]:
    try:
        return safe_files.names(folder)
    except OSError:
        return []


def lines(path: Path) -> list[str]:
    try:
        return safe_files.read(path, limit=1 << 30, owner=os.getuid()).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def age_key(record: RunRecord) -> tuple[int, int, str]:
    """What orders runs by age: several may be of the same second, and then their job ids tell."""
    job = record.job_id
    return record.at, int(job.raw.lstrip("L")) if job else 0, record.run_id


def had(record: RunRecord, job: JobId) -> bool:
    return any(s.job_id and JobId.parse(s.job_id).base == job.base for s in record.submissions) and job.cluster in (
        "",
        record.cluster,
    )


def _checked(data: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The keys that this version knows, each of its type; a newer version's record may hold more."""
    found = {}
    for one in fields(kind):
        if one.name not in data:
            continue
        value, wanted = data[one.name], _KINDS.get(one.type)
        if (wanted and type(value) is not wanted) or (wanted is int and not 0 <= value <= _MOST):
            raise ValueError(f"{one.name} is not what it should be")
        found[one.name] = value
    return found


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
