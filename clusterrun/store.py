"""The records of runs: plain files, each with one writer, replaced whole.

A run's own folder is the truth. ``.clusterrun/jobs/<cluster>/<id>`` and the user's index lead to it and
are believed only as far as the run's files agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.job import JobId

#: How a submission stands, as its submitter knows it.
SUBMITTING, ACCEPTED, NOT_SUBMITTED = "submitting", "accepted", "not submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """One sbatch of a run: its token, what became of it, and the last state we saw it end in.

    Times are seconds since the epoch. ``submitter`` is (host, pid, start time in clock ticks): whether
    the process that was submitting is still at it. ``final`` is the end once it was seen: what of a
    :class:`clusterrun.job.JobStatus` is to be told later, by its names there, and the last ``figures`` of the training.
    ``cancel_asked`` is when our own cancel was accepted.
    """

    token: str
    state: str = SUBMITTING
    job_id: str = ""
    at: int = 0
    submitter: tuple[str, int, int] = ("", 0, 0)
    cancel_asked: int = 0
    final: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as it was asked for, with its submissions, oldest first."""

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


def state_folder(environ: Mapping[str, str]) -> Path:
    """The user's state folder: ``CLUSTERRUN_STATE``, else ``clusterrun`` in ``XDG_STATE_HOME`` (``~/.local/state``)."""
    if environ.get("CLUSTERRUN_STATE"):
        return Path(environ["CLUSTERRUN_STATE"])
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "clusterrun"


class Store:
    """The records below one project root, and the user's index over all of them."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root = root
        self.runs = root / ".clusterrun" / "runs"
        self.jobs = root / ".clusterrun" / "jobs"
        self.index = state / "index"

    # -- writing ---------------------------------------------------------------------------------------------------

    def prepare_logs(self, shared: bool) -> Path:
        """Make ``logs/`` and prove that it can be written; raises RequestError.

        A job whose log folder is missing fails without a log anywhere, so this is asked before sbatch is.
        """
        logs = self.root / "logs"
        try:
            logs.mkdir(mode=0o750 if shared else 0o700, exist_ok=True)
            probe = logs / f".write-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RequestError(
                f"the log folder cannot be written: {logs}: {error.strerror}",
                hint="submit from a folder of yours with room",
            ) from error
        if logs.stat().st_mode & 0o002:
            raise RequestError(f"the log folder is writable by everybody: {logs}", hint=f"chmod o-w {logs}")
        return logs

    def stage(self, record: RunRecord, spec: Mapping[str, Any], script: str) -> None:
        """Write a run's folder, synced, before the scheduler hears of it."""
        folder = 0o750 if record.shared else 0o700
        try:
            for path in (self.root / ".clusterrun", self.runs, record.run_dir, record.run_dir / "submissions",
                         record.run_dir / "claims", record.run_dir / "attempts"):  # fmt: skip
                path.mkdir(mode=folder, exist_ok=True)
            write(record.run_dir / "spec.json", json.dumps(spec, indent=1), record.shared)
            write(record.run_dir / "script.sh", script, record.shared)
            write(record.run_dir / "record.json", json.dumps(_record_json(record), indent=1), record.shared)
            self.save_submission(record, record.submission)
        except OSError as error:
            self.discard(record)
            raise RequestError(
                f"the run's records cannot be written: {error.filename or self.runs}: {error.strerror}",
                hint="nothing was submitted; free some room or use another folder",
            ) from error

    def save_submission(self, record: RunRecord, submission: SubmissionRecord) -> RunRecord:
        """Replace one submission's file; returns the record with it."""
        path = record.run_dir / "submissions" / f"{submission.token}.json"
        write(path, json.dumps({"version": 1, **asdict(submission)}, indent=1), record.shared)
        rest = tuple(s for s in record.submissions if s.token != submission.token)
        return replace(record, submissions=(*rest, submission))

    def commit(self, record: RunRecord, job: JobId) -> RunRecord:
        """Write down that a submission became a job, then the two short cuts that lead to it."""
        record = self.save_submission(record, replace(record.submission, state=ACCEPTED, job_id=str(job)))
        with contextlib.suppress(OSError):  # short cuts: rebuilt when they are missing
            folder = record.root / ".clusterrun" / "jobs" / record.cluster  # the run's project, not where we stand
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            append_line(folder / job.base, record.run_id)
            self.point_to(record.cluster, job, record.run_dir)
        return record

    def point_to(self, cluster: str, job: JobId, run_dir: Path) -> None:
        """Add a line to the user's index."""
        self.index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        append_line(self.index, json.dumps([cluster, job.base, str(run_dir)]))

    def discard(self, record: RunRecord) -> None:
        """Remove a run that never became a job."""
        shutil.rmtree(record.run_dir, ignore_errors=True)

    # -- reading ---------------------------------------------------------------------------------------------------

    def all(self) -> list[RunRecord]:
        """Every run known from here: this project's, and those the index leads to, oldest first."""
        records = (load(folder) for folder in self.folders())
        return sorted((r for r in records if r is not None), key=age_key)

    def folders(self) -> list[Path]:
        """The folder of every run known from here, each once."""
        return list(dict.fromkeys([*self._folders_here(), *(run_dir for _, _, run_dir in self._index_lines())]))

    def by_run_id(self, run_id: str) -> RunRecord | None:
        """The run of that id, here or anywhere the index leads."""
        here = load(self.runs / run_id)
        if here is not None:
            return here
        return next((r for r in self.all() if r.run_id == run_id), None)

    def by_job(self, job: JobId, hint: Iterable[Path] = ()) -> list[RunRecord]:
        """The runs that had this job id, newest last.

        Looked for in the index, in this project's ``jobs/`` and, where both fail, in all runs known from here; ``hint``
        adds run folders the scheduler itself told. Each must say by its own record that it had the id.
        """
        folders: dict[Path, None] = dict.fromkeys(hint)
        folders.update(dict.fromkeys(d for c, j, d in self._index_lines() if j == job.base and job.cluster in ("", c)))
        for path in self.jobs.glob(f"*/{job.base}"):
            folders.update(dict.fromkeys(self.runs / line for line in _lines(path)))
        found = [r for folder in folders if (r := load(folder)) is not None and _had(r, job)]
        if not found:
            found = [r for r in self.all() if _had(r, job)]
            for record in found:  # the index was lost or stale: mend it
                with contextlib.suppress(OSError):
                    self.point_to(record.cluster, job, record.run_dir)
        return sorted(found, key=lambda r: r.at)  # stable: of one second, the one written down last is the newest

    def _folders_here(self) -> Iterator[Path]:
        try:
            yield from sorted(self.runs.iterdir())
        except OSError:
            return

    def _index_lines(self) -> Iterator[tuple[str, str, Path]]:
        for line in _lines(self.index):
            try:
                cluster, job, run_dir = json.loads(line)
                yield str(cluster), str(job), Path(run_dir)
            except (ValueError, TypeError):
                continue  # a torn line of a cache


def load(run_dir: Path) -> RunRecord | None:
    """Read a run's own files; None where there is no whole record of ours."""
    try:
        data = json.loads((run_dir / "record.json").read_bytes())
        submissions = [
            SubmissionRecord(**(_submission_json(json.loads(path.read_bytes()))))
            for path in (run_dir / "submissions").glob("[!.]*.json")
        ]
        if not submissions:
            return None
        return RunRecord(
            **{**_known(data, RunRecord), "run_dir": run_dir, "root": Path(data["root"])},
            submissions=tuple(sorted(submissions, key=lambda s: s.at)),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """A small JSON object that a job wrote, or None where it is missing, half-written or not an object."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def attempts(record: RunRecord, task: int | None = None) -> list[Path]:
    """The attempt folders of the newest submission, oldest first (restart, then launch)."""
    prefix = record.submission.token + ("" if task is None else f"_{task}") + "."
    found: list[tuple[int, int, Path]] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(record.run_dir / "attempts"):
            restart, _, launch = entry.name.removeprefix(prefix).partition(".")
            if entry.name.startswith(prefix) and restart.isdigit() and launch.isdigit():
                found.append((int(restart), int(launch), Path(entry.path)))
    return [path for _, _, path in sorted(found)]


def claim_of(record: RunRecord) -> tuple[str, str, int] | None:
    """Who owns the newest submission's token: (cluster, job id, restart count), or None before its first act."""
    try:
        cluster, job, restart = (record.run_dir / "claims" / record.submission.token / "owner").read_text().split()
        return cluster, JobId.parse(job).base, int(restart)
    except (OSError, ValueError, RequestError):
        return None


def write(path: Path, text: str, shared: bool = False) -> None:
    """Replace a file whole: temporary name, fsync, rename, fsync of the folder. Mode 0600, or 0640 if shared."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fchmod(file.fileno(), 0o640 if shared else 0o600)
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def written_at(path: Path) -> float:
    """When a file was last written, in epoch seconds; 0 where there is none, or none that may be seen."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def append_line(path: Path, line: str) -> None:
    """Add a line to a file that several processes write: in one write, so that lines never mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, (line + "\n").encode("utf-8", "surrogateescape"))  # one write: lines never mix
    finally:
        os.close(descriptor)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def age_key(record: RunRecord) -> tuple[int, int, str]:
    """What orders runs by age: several may be of the same second, and then their job ids tell."""
    job = record.job_id
    return record.at, int(job.raw.lstrip("L")) if job else 0, record.run_id


def _had(record: RunRecord, job: JobId) -> bool:
    return any(s.job_id and JobId.parse(s.job_id).base == job.base for s in record.submissions) and job.cluster in (
        "",
        record.cluster,
    )


def _record_json(record: RunRecord) -> dict[str, Any]:
    data = asdict(record)
    del data["submissions"], data["run_dir"]
    return {"version": 1, **data, "root": str(record.root)}


def _submission_json(data: dict[str, Any]) -> dict[str, Any]:
    known = _known(data, SubmissionRecord)
    known["submitter"] = tuple(known.get("submitter") or ("", 0, 0))
    return known


def _known(data: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The keys of ours: a newer version's record may hold more, and an older program still reads it."""
    return {k: v for k, v in data.items() if k in kind.__slots__}  # type: ignore[attr-defined]
