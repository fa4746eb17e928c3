"""The store of runs: writing their records, and finding them again by run id or job id."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clusterrun.errors import Ambiguous, RequestError
from clusterrun.job import JobId, is_run_id
from clusterrun.records.run_record import (
    ACCEPTED,
    RunRecord,
    SubmissionRecord,
    age_key,
    had,
    lines,
    load,
    load_strictly,
    names,
)
from clusterrun.system import safe_files
from clusterrun.system.safe_files import RECORDS


def state_folder(environ: Mapping[str, str]) -> Path:
    """The user's state folder: ``CLUSTERRUN_STATE``, else ``clusterrun`` in ``XDG_STATE_HOME`` (``~/.local/state``)."""
    if environ.get("CLUSTERRUN_STATE"):
        return Path(environ["CLUSTERRUN_STATE"])
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "clusterrun"


@dataclass(frozen=True, slots=True)
class Base:
    """The folder that holds ``.clusterrun`` and ``logs`` of my runs; ``why`` it is not the project's own."""

    folder: Path
    why: str = ""


def base_of(root: Path, state: Path) -> Base:
    """Find the place for my records and logs of a project.

    It is the project's folder, unless other users could change what stands there: then it is a folder of the project's
    name in my state folder, so that each user of a group's project has records of their own.
    """
    weak = safe_files.weakness(root)
    why = f"{weak.folder}: {weak.why}" if weak else ""
    if not weak:
        with contextlib.suppress(OSError):
            info = (root / RECORDS).lstat()
            if info.st_uid != os.getuid():
                why = f"{root / RECORDS}: it belongs to {safe_files.user_name(info.st_uid)}"
    if not why:
        return Base(root)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", root.name)[:40].lstrip(".") or "project"
    import hashlib  # it loads OpenSSL, which most commands do without

    mark = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    return Base(state / "projects" / f"{name}-{mark}", why)


class Store:
    """The records below one project, and the user's index over all of them.

    ``tell`` gets a line about records that could not be read.
    """

    def __init__(self, root: Path, state: Path, tell: Callable[[str], None] = lambda line: None) -> None:
        self.root = root
        self.base = base_of(root, state)
        self.runs = self.base.folder / RECORDS / "runs"
        self.jobs = self.base.folder / RECORDS / "jobs"
        self.index = state / "index"
        self._tell = tell

    # -- writing ---------------------------------------------------------------------------------------------------

    def prepare(self, shared: bool) -> Path:
        """Make the folders of records and logs, prove that nobody else can change them; returns that of the logs.

        A job whose log folder is missing fails without a log anywhere. Raises RequestError with the
        command that mends it.
        """
        base = self.base.folder
        mode = 0o750 if shared else 0o700
        if base.parent == self.index.parent / "projects":
            for folder in (base.parent.parent, base.parent, base):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (base, base / RECORDS, self.runs, base / "logs"):
            if weak := safe_files.weakness(folder):
                raise RequestError(
                    f"records and logs cannot be kept in {weak.folder}: {weak.why}",
                    hint=weak.fix or "submit from a folder of yours, or set CLUSTERRUN_STATE to one",
                )
        logs = base / "logs"
        try:
            safe_files.make_folder(base / RECORDS, mode)
            safe_files.make_folder(self.runs, mode)
            if not logs.is_dir():  # a link to a folder elsewhere is fine: whose it is has been looked at
                safe_files.make_folder(logs, mode)
            elif shared:
                logs.chmod(logs.stat().st_mode & 0o7777 | 0o050)
            probe = logs / f".write-{os.getpid()}"
            safe_files.write(probe, b"")
            probe.unlink()
        except OSError as error:
            raise RequestError(
                f"records and logs cannot be written: {error.filename or base}: {error.strerror}",
                hint="submit from a folder of yours with room",
            ) from error
        if shared and (closed := safe_files.closed_to_group(base / RECORDS)):
            self._tell(f"--shared: your group cannot enter {closed}; let it in with: chmod g+x {closed}")
        return logs

    def stage(self, record: RunRecord, spec: Mapping[str, Any], script: str) -> None:
        """Write a run's folder, synced, before the scheduler hears of it."""
        folder = 0o750 if record.shared else 0o700
        try:
            for path in (self.base.folder / RECORDS, self.runs, record.run_dir, record.run_dir / "submissions",
                         record.run_dir / "claims", record.run_dir / "attempts"):  # fmt: skip
                safe_files.make_folder(path, folder)
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
        """Replace one submission's file; returns the record with it. Raises OSError, always for another user's run."""
        if not record.mine:
            raise PermissionError(errno.EPERM, f"the run belongs to {record.user}", str(record.run_dir))
        path = record.run_dir / "submissions" / f"{submission.token}.json"
        write(path, json.dumps({"version": 1, **asdict(submission)}, indent=1), record.shared)
        rest = tuple(s for s in record.submissions if s.token != submission.token)
        return replace(record, submissions=(*rest, submission), cluster=submission.cluster or record.cluster)

    def commit(self, record: RunRecord, job: JobId, cluster: str = "") -> RunRecord:
        """Write down that a submission became a job of a cluster, then the two short cuts that lead to it."""
        cluster = job.cluster or cluster or record.cluster
        new = replace(record.submission, state=ACCEPTED, job_id=str(job), cluster=cluster)
        if str(job) != record.submission.job_id:
            new = replace(new, log_start=_older_logs(record, job))
        record = self.save_submission(record, new)
        with contextlib.suppress(OSError):  # short cuts: rebuilt when they are missing
            folder = record.root / RECORDS / "jobs"  # the run's project, not where we stand
            safe_files.make_folder(folder, 0o700)
            safe_files.make_folder(folder / (cluster or "unknown"), 0o700)
            append_line(folder / (cluster or "unknown") / job.base, record.run_id)
            self.point_to(cluster, job, record.run_dir)
        return record

    def point_to(self, cluster: str, job: JobId, run_dir: Path) -> None:
        """Add a line to the user's index."""
        self.index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        append_line(self.index, json.dumps([cluster, job.base, str(run_dir)]))

    def discard(self, record: RunRecord) -> None:
        """Remove a run of mine that never became a job."""
        with contextlib.suppress(OSError):
            if safe_files.owner_of(record.run_dir) == os.getuid():
                shutil.rmtree(record.run_dir, ignore_errors=True)

    @contextlib.contextmanager
    def submitting(self, record: RunRecord) -> Iterator[None]:
        """Hold the one lock of a run's submission; raises Ambiguous where another command holds it."""
        path = record.run_dir / "submissions" / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                os.close(descriptor)
                raise Ambiguous(
                    f"another command is submitting run {record.run_id}", hint="wait until it has ended"
                ) from None
            # a file system without locks: the claim of the job makes a second one harmless
        try:
            yield
        finally:
            os.close(descriptor)

    # -- reading ---------------------------------------------------------------------------------------------------

    def all(self) -> list[RunRecord]:
        """Every run of mine known from here: this project's, and those the index leads to, oldest first."""
        return sorted(self.load_all(self.folders()), key=age_key)

    def folders(self) -> list[Path]:
        """The folder of every run known from here, each once."""
        return list(dict.fromkeys([*self._folders_here(), *(run_dir for _, _, run_dir in self._index_lines())]))

    def load_all(self, folders: Iterable[Path]) -> Iterator[RunRecord]:
        """Read the runs in these folders that are mine, and tell in one line which records are damaged."""
        damaged = []
        for folder in folders:
            try:
                run = load_strictly(folder)
            except FileNotFoundError:
                continue  # removed, or not written to its end
            except (OSError, ValueError) as problem:
                damaged.append(f"{folder}: {_short(problem)}")
                continue
            if run.mine:
                yield run
        if damaged:
            more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            self._tell(f"skipped a record that cannot be read: {damaged[0]}{more}")

    def by_run_id(self, run_id: str) -> RunRecord | None:
        """The run of that id, here or anywhere the index leads; another user's too, where it stands here."""
        for runs in dict.fromkeys((self.runs, self.root / RECORDS / "runs")):
            if (here := load(runs / run_id)) is not None:
                return here
        return next((r for r in self.all() if r.run_id == run_id), None)

    def by_job(self, job: JobId, hint: Iterable[Path] = ()) -> list[RunRecord]:
        """The runs that had this job id, newest last.

        Looked for in the index, in this project's ``jobs/`` and, where both fail, in all runs known from here; ``hint``
        adds run folders that the scheduler names and that belong to the job's user. Each must say by its own record
        that it had the id.
        """
        folders: dict[Path, None] = {}
        folders.update(dict.fromkeys(d for c, j, d in self._index_lines() if j == job.base and job.cluster in ("", c)))
        for cluster in names(self.jobs):
            rows = lines(self.jobs / cluster / job.base)
            folders.update(dict.fromkeys(self.runs / line for line in rows if is_run_id(line)))
        found = [r for folder in folders if (r := load(folder)) is not None and r.mine and had(r, job)]
        found += [r for folder in hint if folder not in folders and (r := load(folder)) is not None and had(r, job)]
        if not found:
            found = [r for r in self.all() if had(r, job)]
            for record in found:  # the index was lost or stale: mend it
                with contextlib.suppress(OSError):
                    self.point_to(record.cluster, job, record.run_dir)
        return sorted(found, key=lambda r: r.at)  # stable: of one second, the one written down last is the newest

    def _folders_here(self) -> Iterator[Path]:
        for runs in dict.fromkeys((self.runs, self.root / RECORDS / "runs")):
            yield from (runs / name for name in sorted(names(runs)) if is_run_id(name))

    def _index_lines(self) -> Iterator[tuple[str, str, Path]]:
        for line in lines(self.index):
            try:
                cluster, job, run_dir = json.loads(line)
                yield str(cluster), str(job), Path(run_dir)
            except (ValueError, TypeError, RecursionError):
                continue  # a torn line of a cache


def write(path: Path, text: str, shared: bool = False) -> None:
    """Replace a file of mine whole. Mode 0600, or 0640 if shared; raises OSError."""
    safe_files.write(path, text.encode("utf-8", "surrogateescape"), 0o640 if shared else 0o600)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file that several processes write: in one write, so that lines never mix."""
    safe_files.append(path, (line + "\n").encode("utf-8", "surrogateescape"))


def _older_logs(record: RunRecord, job: JobId) -> tuple[int, int]:
    """The sizes of log files that were last written before this submission: those of an older job of the same id.

    0 where there is none, -1 where the job may have written to it already.
    """
    sizes = []
    for kind in ("out", "err"):
        try:
            info = (record.logs / f"train_{job.base}.{kind}").lstat()
            sizes.append(info.st_size if info.st_mtime < record.submission.at - 1 else -1)
        except OSError:
            sizes.append(0)
    return sizes[0], sizes[1]


def _record_json(record: RunRecord) -> dict[str, Any]:
    data = asdict(record)
    for name in ("submissions", "run_dir", "root", "owner", "user"):
        del data[name]
    return {"version": 1, **data}


def _short(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)[:100]
