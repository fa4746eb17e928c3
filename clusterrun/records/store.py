"""The store of runs: write their records and find them by run id or job id."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clusterrun.base.decode import Damaged, parse_json, parse_lines
from clusterrun.base.errors import Ambiguous, RequestError
from clusterrun.base.job import JobId, is_run_id, log_paths
from clusterrun.records import ended_index
from clusterrun.records.ended_index import RunSummary, number_of
from clusterrun.records.run_record import (
    NotMine,
    RunRecord,
    age_key,
    has_job_id,
    list_names,
    load,
    load_strictly,
    read_lines,
    submission_of,
)
from clusterrun.run_folder import safe_files, submissions
from clusterrun.run_folder.safe_files import RECORDS
from clusterrun.run_folder.submissions import ACCEPTED, SubmissionRecord

_NOT_STORED = ("submissions", "run_dir", "root", "owner", "user")  # known from other files, or from the file system


def find_base(root: Path, state: Path) -> tuple[Path, str]:
    """Return the folder with the user's ``.clusterrun`` and ``logs``, and why it is not the project's own folder.

    This is the project's folder, unless other users can change its content. Then it is a folder with the project's name
    in the user's state folder, so each user of a shared project has their own records.
    """
    why, _ = safe_files.find_weakness(root)
    if not why:
        with contextlib.suppress(OSError):
            info = (root / RECORDS).lstat()
            if info.st_uid != os.getuid():
                why = f"{root / RECORDS}: owned by {safe_files.user_name(info.st_uid)}"
    if not why:
        return root, ""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", root.name)[:40].lstrip(".") or "project"
    import hashlib  # it loads OpenSSL, which most commands do without

    mark = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    return state / "projects" / f"{name}-{mark}", why


def _refuse_weak(folder: Path) -> None:
    why, fix = safe_files.find_weakness(folder)
    if why:
        raise RequestError(
            f"cannot store records and logs in {why}",
            hint=fix or "submit from a folder that you own, or set CLUSTERRUN_STATE to such a folder",
        )


class Store:
    """The records of one project, and the user's index of the runs of all projects.

    ``notify`` gets a line about records that could not be read.
    """

    def __init__(self, root: Path, state: Path, notify: Callable[[str], None] = lambda line: None) -> None:
        self.root = root
        self.base, _ = find_base(root, state)
        self.runs = self.base / RECORDS / "runs"
        self.jobs = self.base / RECORDS / "jobs"
        self.state = state
        self.index = state / "index"
        self._notify = notify
        self._named: set[str] = set()  # the unreadable records that a notice has named

    # -- writing ---------------------------------------------------------------------------------------------------

    def check_folders(self) -> None:
        """Raise RequestError, with a command as the hint, if other users can change the records or logs."""
        base = self.base
        for folder in (base, base / RECORDS, self.runs, base / "logs"):
            _refuse_weak(folder)

    def prepare_again(self, run: RunRecord) -> None:
        """Create the folders of a recorded run as :meth:`prepare` does, and raise as it does.

        They may have become writable for others since the run was submitted; then new runs have other folders.
        """
        for folder in (run.run_dir, run.logs):
            _refuse_weak(folder)
        self.prepare(run.shared)

    def prepare(self, shared: bool) -> None:
        """Create the folders for records and logs.

        A job without a log folder fails without a log. Raises RequestError, with a command as the hint, if a folder is
        not writable or other users can change it.
        """
        base, mode = self.base, 0o750 if shared else 0o700
        if base.parent == self.index.parent / "projects":
            for folder in (base.parent.parent, base.parent, base):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.check_folders()
        logs = base / "logs"
        try:
            safe_files.make_folder(base / RECORDS, mode)
            safe_files.make_folder(self.runs, mode)
            if not logs.is_dir():  # it may be a link: find_weakness has checked its target
                safe_files.make_folder(logs, mode)
            elif shared:
                logs.chmod(logs.stat().st_mode & 0o7777 | 0o050)
            probe = logs / f".write-{os.getpid()}"
            safe_files.append(probe, b"")
            probe.unlink()
        except OSError as error:
            raise RequestError(
                f"cannot write records and logs: {error.filename or base}: {error.strerror}",
                hint="submit from a writable folder with free space",
            ) from error
        if shared and (closed := safe_files.closed_to_group(base / RECORDS)):
            self._notify(f"--shared: your group cannot enter {closed}; run `chmod g+x {closed}`")

    def stage(
        self, record: RunRecord, spec: Mapping[str, Any], script: str, notify: Mapping[str, Any] | None = None,
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Write a run's folder to disk before it is submitted; only the user can read ``notify`` and ``files``."""
        folder = 0o750 if record.shared else 0o700
        hint = "nothing was submitted; if the disk is full, free some space or submit from another folder"
        with self._staging(record, self.runs, hint):
            for path in (self.base / RECORDS, self.runs, record.run_dir, record.run_dir / "submissions",
                         record.run_dir / "claims", record.run_dir / "attempts"):  # fmt: skip
                safe_files.make_folder(path, folder)
            write(record.run_dir / "spec.json", json.dumps(spec, indent=1), record.shared, sync_folder=False)
            write(record.script, script, record.shared, sync_folder=False)  # the write of record.json syncs it
            if notify:
                write(record.run_dir / "notify.json", json.dumps(notify), sync_folder=False)
            for name, text in files.items():
                write(record.run_dir / name, text, sync_folder=False)
            kept = {name: value for name, value in asdict(record).items() if name not in _NOT_STORED}
            write(record.run_dir / "record.json", json.dumps({"version": 1, **kept}, indent=1), record.shared)
            self.save_submission(record, record.submission)

    def stage_again(
        self, record: RunRecord, script: str, files: Mapping[str, str] = MappingProxyType({})
    ) -> None:  # fmt: skip
        """Write a run's newest submission, which is not its first, to disk before it is submitted.

        Only the user can read ``files``; one without content is deleted.
        """
        hint = "nothing was submitted; if the disk is full, free some space, then try again"
        with self._staging(record, record.run_dir, hint):
            self.write_files(record, files)
            write(record.script, script, record.shared)
            self.save_submission(record, record.submission)

    def write_files(self, record: RunRecord, files: Mapping[str, str]) -> None:
        """Replace files of a run that only the user can read; delete those without content. Raises OSError."""
        for name, text in files.items():
            if text:
                write(record.run_dir / name, text, sync_folder=False)
            else:
                (record.run_dir / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _staging(self, record: RunRecord, place: Path, hint: str) -> Iterator[None]:
        """Discard what a submission has written if it cannot be written whole; raises RequestError then."""
        try:
            yield
        except OSError as error:
            self.discard(record)
            message = f"cannot write the run's records: {error.filename or place}: {error.strerror}"
            raise RequestError(message, hint=hint) from error

    def save_submission(self, record: RunRecord, submission: SubmissionRecord) -> RunRecord:
        """Replace one submission's file and return the updated record. Raises OSError, also for another user's run."""
        if not record.mine:
            raise PermissionError(errno.EPERM, f"the run belongs to {record.user}", str(record.run_dir))
        before = load(record.run_dir)
        was_ended = before is not None and before.submission.final is not None
        if was_ended:
            submissions.unlist(record.run_dir)
        submissions.write(record.run_dir, submission)
        if was_ended:  # once more: a command that read the run before may have added it meanwhile
            submissions.unlist(record.run_dir)
        rest = tuple(s for s in record.submissions if s.token != submission.token)
        return replace(record, submissions=(*rest, submission), cluster=submission.cluster or record.cluster)

    def commit(self, record: RunRecord, job: JobId, cluster: str = "") -> RunRecord:
        """Record the job id of a submission and return the updated record; also write the two index entries."""
        cluster = job.cluster or cluster or record.cluster
        new = replace(record.submission, state=ACCEPTED, job_id=str(job), cluster=cluster)
        if str(job) != record.submission.job_id:
            new = replace(new, log_start=_older_logs(record, job))
        record = self.save_submission(record, new)
        with contextlib.suppress(OSError):  # index entries are rebuilt if missing
            folder = record.root / RECORDS / "jobs" / (cluster or "unknown")  # of the run's project, perhaps another's
            safe_files.make_folder(folder.parent, 0o700)
            safe_files.make_folder(folder, 0o700)
            append_line(folder / job.base, record.run_id)
            self.point_to(cluster, job, record.run_dir)
        return record

    def point_to(self, cluster: str, job: JobId, run_dir: Path) -> None:
        """Add a run to the user's index."""
        self.index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        append_line(self.index, json.dumps([cluster, job.base, str(run_dir)]))

    def discard(self, record: RunRecord) -> None:
        """Delete a run of this user that never became a job; if it did before, only its newest submission."""
        with contextlib.suppress(OSError):
            if safe_files.owner_of(record.run_dir) != os.getuid():
                return
            if len(record.submissions) > 1:
                submissions.path_of(record.run_dir, record.submission.token).unlink(missing_ok=True)
                record.script.unlink(missing_ok=True)
            else:
                import shutil  # it loads the archive formats

                shutil.rmtree(record.run_dir, ignore_errors=True)

    @contextlib.contextmanager
    def submitting(self, record: RunRecord) -> Iterator[None]:
        """Hold the lock of a run's submission. Raises Ambiguous if another command holds it."""
        path = record.run_dir / "submissions" / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                os.close(descriptor)
                raise Ambiguous(
                    f"another command is submitting run {record.run_id}", hint="wait until that command ends"
                ) from None
            # a file system without locks: the job's claim makes a second submission harmless
        try:
            yield
        finally:
            os.close(descriptor)

    # -- reading ---------------------------------------------------------------------------------------------------

    def all(self) -> list[RunRecord]:
        """Return all runs of this user in this project and in the index, oldest first; reads all of them."""
        return self._read_all(self._places())

    def is_here(self, run: RunRecord) -> bool:
        """Return whether a run is of this project."""
        return run.run_dir.parent in self._runs_here()

    def open_runs(self) -> list[RunRecord]:
        """Return this user's runs without a recorded end, in this project and in the index, oldest first."""
        loaded, _ = self._survey(self._places())
        return sorted((run for run in loaded if run.submission.final is None), key=age_key)

    def summaries(self, *, here: bool = False) -> list[RunSummary]:
        """Return what look-ups need to know of all runs of this user, of this project only if ``here``.

        Runs whose ends are known are not read.
        """
        loaded, ended = self._survey(self._places_here() if here else self._places())
        found = [ended_index.parse(runs, name) for runs, names in ended.items() for name in names]
        return [*map(ended_index.summarize, loaded), *found]

    def folders(self) -> list[Path]:
        """Return the folders of all runs in this project and in the index."""
        return _run_folders(self._places())

    def _read_all(self, places: Mapping[Path, set[str]]) -> list[RunRecord]:
        """Return all runs; the record of an ended run that has not changed since is from the index."""
        found: list[RunRecord] = []
        unknown: dict[Path, set[str]] = {}
        for runs, names in places.items():
            kept = ended_index.load_records(runs, ended_index.unchanged(runs, ended_index.load_index(runs)))
            found += [run for run_id, run in kept.items() if run_id in names]
            unknown[runs] = names - kept.keys()
        return sorted([*found, *self._read(unknown)], key=age_key)

    def _survey(self, places: Mapping[Path, set[str]]) -> tuple[list[RunRecord], dict[Path, list[str]]]:
        """Read the runs whose ends are not known; return them, and the others' index entries by folder of runs."""
        ended: dict[Path, list[str]] = {}
        unknown: dict[Path, set[str]] = {}
        for runs, names in places.items():
            index = ended_index.load_index(runs)
            ended[runs] = [entry for run_id, entry in index.items() if run_id in names]
            unknown[runs] = names - index.keys()
        return self._read(unknown), ended

    def _read(self, places: Mapping[Path, set[str]]) -> list[RunRecord]:
        """Read runs, and add those that have ended to the index."""
        changed = {folder: submissions.changed_at(folder) for folder in _run_folders(places)}
        loaded = list(self.load_all(changed))
        ended = defaultdict[Path, list[tuple[RunRecord, int]]](list)
        for run in loaded:
            if run.submission.final is not None and (at := changed[run.run_dir]) is not None:
                ended[run.run_dir.parent].append((run, at))
        for runs, some in ended.items():
            ended_index.add(runs, some)
        return loaded

    def load_all(self, folders: Iterable[Path]) -> Iterator[RunRecord]:
        """Load this user's runs from these folders; one notice names the records that cannot be read."""
        damaged: list[str] = []
        for parent, group in itertools.groupby(folders, key=lambda folder: folder.parent):
            with contextlib.ExitStack() as stack:
                runs = None
                with contextlib.suppress(OSError):
                    runs = stack.enter_context(safe_files.open_folder(parent))
                for folder in group:
                    try:
                        run = load_strictly(folder, runs if runs and runs.holds_runs else None, only_mine=True)
                    except (FileNotFoundError, NotMine):
                        continue  # deleted, not completely written, or another user's
                    except (OSError, Damaged) as problem:
                        damaged += [f"{folder}: {_short(problem)}"] if safe_files.is_mine(folder) else []
                        continue
                    yield run
        self._name_damaged(damaged)

    def _name_damaged(self, damaged: Sequence[str]) -> None:
        """Name records that cannot be read in one notice, and each only once."""
        if self._named.issuperset(damaged):
            return
        self._named.update(damaged)
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        self._notify(f"skipped an unreadable record: {damaged[0]}{more}")

    def by_run_id(self, run_id: str) -> RunRecord | None:
        """Return the run with this id, from this project (of any user) or the index, or None."""
        for runs in dict.fromkeys((*self._runs_here(), *self._indexed_runs(run_id))):
            if (found := load(runs / run_id)) is not None and (found.mine or runs in self._runs_here()):
                return found
        return None

    def by_job(self, job: JobId, hint: Iterable[Path] = ()) -> list[RunRecord]:
        """Return the runs that had this job id, newest last.

        They are looked up in the index, in this project's ``jobs/`` and, if both fail, in all known runs. ``hint`` adds
        run folders from the scheduler, which may be another user's. The run's own record must contain the id.
        """
        folders = self._folders_of(job)
        runs = _mine(_load_with(job, folders)) + _load_with(job, (folder for folder in hint if folder not in folders))
        if not runs:
            had = [one.run_dir for one in self.summaries() if job.base in map(number_of, one.jobs)]
            runs = _mine(_load_with(job, had))
            for run in runs:  # the index was lost or stale: repair it
                with contextlib.suppress(OSError):
                    self.point_to(run.cluster, job, run.run_dir)
        return sorted(runs, key=lambda run: run.at)  # stable: within a second, the last one is the newest

    def array_of(self, job: JobId) -> list[RunRecord]:
        """Return the runs of an array with this number, in the order of its tasks; none for any other job."""
        if job.task is not None:
            return []
        runs = _mine(_load_with(job, self._folders_of(job)))
        _, newest = max(((run.at, run.sweep) for run in runs), default=(0, ""))
        tasks = {submission_of(run, job).task: run for run in runs if run.sweep == newest}
        tasks.pop(None, None)  # of a job that is no array
        return [tasks[task] for task in sorted(tasks, key=lambda task: task or 0)]

    def _folders_of(self, job: JobId) -> dict[Path, None]:
        """Return the folders that the indexes name for a job's number, oldest first."""
        lines = self._index_lines(f'"{job.base}"')
        found = dict.fromkeys(d for c, j, d in lines if j == job.base and job.cluster in ("", c))
        for cluster in list_names(self.jobs):
            rows = read_lines(self.jobs / cluster / job.base)
            found.update(dict.fromkeys(self.runs / line for line in rows if is_run_id(line)))
        return found

    def _runs_here(self) -> tuple[Path, ...]:
        """Return the folders with the runs of this project."""
        return tuple(dict.fromkeys((self.runs, self.root / RECORDS / "runs")))

    def _places_here(self) -> dict[Path, set[str]]:
        """Return the names in the folders of this project's runs."""
        return {runs: _names(runs) for runs in self._runs_here()}

    def _places(self) -> dict[Path, set[str]]:
        """Return the names in the folders of this project's runs, and those in other folders that the index has too."""
        places = self._places_here()
        for runs, run_ids in self._indexed().items():
            if runs not in places:
                places[runs] = run_ids & _names(runs)
        return places

    def _indexed_runs(self, run_id: str) -> list[Path]:
        """Return the folders of runs in which the index knows a run."""
        return [run_dir.parent for _, _, run_dir in self._index_lines(f'/{run_id}"') if run_dir.name == run_id]

    def _indexed(self) -> dict[Path, set[str]]:
        """Return the run ids in the user's index, by the folder of runs."""
        found = defaultdict[str, set[str]](set)
        for line in read_lines(self.index):
            start, _, end = line.rpartition("/")
            # a quote within a path is escaped, so this is where the path begins
            found[start.rpartition(', "')[2]].add(end[:-2])
        places = {}
        for text, run_ids in found.items():
            with contextlib.suppress(Damaged):  # a partly written line
                runs = Path(parse_json(f'"{text}"'))
                if runs.parts[-2:] == (RECORDS, "runs"):
                    places[runs] = run_ids
        return places

    def _index_lines(self, part: str) -> Iterator[tuple[str, str, Path]]:
        """Yield the lines of the user's index that contain a text: a cluster, a job's number and a run's folder."""
        for row in parse_lines(line for line in read_lines(self.index) if part in line):
            match row:
                case [str(cluster), str(job), str(run_dir)]:
                    yield cluster, job, Path(run_dir)


def _load_with(job: JobId, folders: Iterable[Path]) -> list[RunRecord]:
    """Return the runs of these folders that had a job id."""
    return [run for folder in folders if (run := load(folder)) is not None and has_job_id(run, job)]


def _mine(runs: Iterable[RunRecord]) -> list[RunRecord]:
    return [run for run in runs if run.mine]


def _names(runs: Path) -> set[str]:
    """Return the names in a folder of runs; in another user's folder only those of this user's runs."""
    try:
        with safe_files.open_folder(runs) as folder:
            names = folder.names()
            if os.fstat(folder.descriptor).st_uid != os.getuid():
                return {name for name in names if folder.owner_of(name) == os.getuid()}
            return set(names)
    except OSError:
        return set()


def _run_folders(places: Mapping[Path, Iterable[str]]) -> list[Path]:
    """Return the folders of the runs with these names, by folder of runs."""
    return [runs / name for runs, names in places.items() for name in sorted(filter(is_run_id, names))]


def write(path: Path, text: str, shared: bool = False, *, sync_folder: bool = True) -> None:
    """Replace a file atomically, see :func:`safe_files.write`. Mode 0600, or 0640 if shared; raises OSError."""
    data, mode = text.encode("utf-8", "surrogateescape"), 0o640 if shared else 0o600
    safe_files.write(path, data, mode, sync_folder=sync_folder)


def append_line(path: Path, line: str) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    safe_files.append(path, (line + "\n").encode("utf-8", "surrogateescape"))


def _older_logs(record: RunRecord, job: JobId) -> tuple[int, int]:
    """Return the sizes of the two log files if an older job of the same id wrote them.

    0 if there is no file, -1 if this job may have written to it already.
    """
    sizes = []
    for path in log_paths(record.logs, job):
        try:
            info = path.lstat()
            sizes.append(info.st_size if info.st_mtime < record.submission.at - 1 else -1)
        except OSError:
            sizes.append(0)
    return sizes[0], sizes[1]


def _short(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)[:100]
