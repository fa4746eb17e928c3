"""The index of ended runs, by which look-ups know them without opening their folders.

Beside ``runs/``, the folder ``over/`` has an empty file for each run whose end is recorded. Its name holds what
look-ups need, and ``over/records`` has the runs' records for those who list all. Both are caches: a run without a valid
name here is read. Whatever changes the submissions of a run that has ended removes its name before and after, so that
a name that exists is right, also after a crash in between.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.decode import Damaged, as_objects, parse_object
from clusterrun.base.job import RUN_ID
from clusterrun.records.run_record import RunRecord, build_run, build_sources, load
from clusterrun.run_folder import safe_files, submissions
from clusterrun.run_folder.submissions import ENDED, build_submission

RECORDS = "records"
_LONGEST = 255  # bytes in a file name; a run with a longer one is read
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
_HEX = "="  # begins a job's name that is written as hexadecimal bytes
_CHECK = "check"
_BETWEEN = b"\t"  # a record and its sources in a line: JSON has no tab
_SUM = 8  # characters of a check sum
_MOST = 1 << 30  # bytes of records
_JOB = r"(?:L?[0-9]{1,18}(?:[_+][0-9]{1,9})?)?"
#: A file name as it is written; one of another version is another. ``parse`` relies on it.
_ENTRY = re.compile(
    rf"{RUN_ID},-?[0-9a-f]+,[0-9]{{1,11}},{_JOB}(?:\.{_JOB})*,(?:{_CHECK}|{RUN_ID})?,"
    rf"(?:{_PLAIN.pattern}|{_HEX}(?:(?!00)[0-9a-f]{{2}})*),[0-9a-f]{{{_SUM}}}",
    re.ASCII,
)
_DERIVED = ("run_dir", "root", "owner", "user")  # from the path, or from the file system


class RunSummary(NamedTuple):
    """What look-ups need to know of a run, whose folder is in the folder ``runs``.

    ``at`` is when its newest submission was made, in epoch seconds; ``jobs`` has the job ids of all submissions, the
    newest last, each empty if there is none. ``sweep`` is empty for most runs. ``is_check``: ``check`` submitted it.
    """

    runs: Path
    run_id: str
    at: int
    jobs: tuple[str, ...]
    sweep: str
    is_check: bool
    name: str

    @property
    def run_dir(self) -> Path:
        return self.runs / self.run_id

    @property
    def root(self) -> Path:
        """The folder with the run's ``.clusterrun``."""
        return self.runs.parents[1]

    @property
    def handle(self) -> str:
        """The job id of the newest submission, else the run id."""
        return self.jobs[-1] or self.run_id

    @property
    def age_key(self) -> tuple[int, int]:
        """A key that sorts by time of submission; within a second, by the job's number."""
        return self.at, int(number_of(self.jobs[-1]).lstrip("L") or 0)


def number_of(job: str) -> str:
    """Return the number of a job id without task or component; empty for an empty text."""
    return job.partition("_")[0].partition("+")[0]


def summarize(run: RunRecord) -> RunSummary:
    """Return the summary of a run."""
    jobs = tuple(one.job_id.partition(";")[0] for one in run.submissions)
    is_check = run.what == _CHECK
    return RunSummary(run.run_dir.parent, run.run_id, run.submission.at, jobs, run.sweep, is_check, run.name)


# -- reading -------------------------------------------------------------------------------------------------------


def load_index(runs: Path) -> dict[str, str]:
    """Return the index of a folder of runs: a file name by run id, for each run whose end is known.

    Empty if there is none, or if another user could have written it.
    """
    found: dict[str, str] = {}
    try:
        with safe_files.open_folder(runs.with_name(ENDED)) as folder:
            names = folder.names() if _is_trusted(folder) else []
    except OSError:
        return found
    for name in names:
        if _is_whole(name):
            run_id = name.partition(",")[0]
            found[run_id] = "" if run_id in found else name  # two names for a run: neither is believed
    return {run_id: name for run_id, name in found.items() if name}


def parse(runs: Path, entry: str) -> RunSummary:
    """Return the summary in a file name of the index."""
    run_id, _, at, jobs, kind, name, _ = entry.split(",")
    if name.startswith(_HEX):
        name = bytes.fromhex(name[1:]).decode("utf-8", "surrogateescape")
    is_check = kind == _CHECK
    return RunSummary(runs, run_id, int(at), tuple(jobs.split(".")), "" if is_check else kind, is_check, name)


def unchanged(runs: Path, index: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an index whose runs have not changed since, according to their folders."""
    found = {}
    with contextlib.suppress(OSError), safe_files.open_folder(runs) as folder:
        for run_id, entry in index.items():
            with contextlib.suppress(OSError):
                info = os.stat(f"{run_id}/submissions", dir_fd=folder.descriptor, follow_symlinks=False)
                if entry.split(",", 2)[1] == f"{info.st_mtime_ns:x}":
                    found[run_id] = entry
    return found


def load_records(runs: Path, index: Mapping[str, str]) -> dict[str, RunRecord]:
    """Return the records of runs in the index, by run id, as far as they were kept."""
    try:
        data = safe_files.read_bytes(runs.with_name(ENDED) / RECORDS, _MOST, owner=os.getuid())
    except OSError:
        return {}
    lines = {}
    for line in data.split(b"\n"):
        entry, _, record = line[_SUM:].partition(b" ")
        if index.get(os.fsdecode(entry.partition(b",")[0])) == os.fsdecode(entry) and _sum(line[_SUM:]) == line[:_SUM]:
            lines[entry] = record
    found = (_record(runs / os.fsdecode(entry.partition(b",")[0]), record) for entry, record in lines.items())
    return {run.run_id: run for run in found if run is not None}


def _record(run_dir: Path, line: bytes) -> RunRecord | None:
    """Return the record in a line, checked as that in the run's own files: a cloned project may bring an index."""
    try:
        record, _, sources = line.partition(_BETWEEN)
        data = parse_object(record)
        submissions = [build_submission(one) for one in as_objects(data.get("submissions"))]
        kept = _KeptSources(run_dir, sources)
        return build_run(run_dir, data, submissions, os.getuid(), kept) if submissions and sources else None
    except Damaged:  # of another version
        return None


class _KeptSources(Mapping[str, tuple[Any, str]]):
    """A run's values with their sources, parsed only if they are needed: most of a record, and a table shows none."""

    def __init__(self, run_dir: Path, text: bytes) -> None:
        self._run_dir, self._text = run_dir, text

    @cached_property
    def _values(self) -> Mapping[str, tuple[Any, str]]:
        try:
            return build_sources(parse_object(self._text))
        except Damaged:
            run = load(self._run_dir)
            return run.sources if run is not None else {}

    def __getitem__(self, name: str) -> tuple[Any, str]:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


# -- writing -------------------------------------------------------------------------------------------------------


def add(runs: Path, ended: Iterable[tuple[RunRecord, int]]) -> None:
    """Add ended runs of one folder to its index, each with the value of ``submissions.changed_at`` before it was read.

    A run that has changed since is not added. An index that cannot be written costs only time.
    """
    with contextlib.suppress(OSError):
        if safe_files.owner_of(runs.parent) != os.getuid():
            return
        safe_files.make_folder(runs.with_name(ENDED), 0o700)
        with safe_files.open_folder(runs.with_name(ENDED)) as folder:
            if _is_trusted(folder):
                _add_to(folder, [(_entry(summarize(run), changed), run, changed) for run, changed in ended])


def _add_to(folder: safe_files.Folder, new: Sequence[tuple[str, RunRecord, int]]) -> None:
    _remove_others(folder, {run.run_id: entry for entry, run, _ in new})
    added = [(entry, run) for entry, run, changed in new if _add(folder, entry, run, changed)]
    lines = [os.fsencode(f"{entry} {_json(run)}") for entry, run in added]
    text = b"".join(_sum(line) + line + b"\n" for line in lines)
    safe_files.append(folder.path / RECORDS, b"\n" + text)  # the last line may be cut


def _remove_others(folder: safe_files.Folder, entries: Mapping[str, str]) -> None:
    """Remove other entries of the same runs: they are wrong."""
    for name in folder.names():
        run_id = name.partition(",")[0]
        if run_id in entries and name != entries[run_id]:
            os.unlink(name, dir_fd=folder.descriptor)


def _add(folder: safe_files.Folder, entry: str, run: RunRecord, changed: int) -> bool:
    if len(entry) > _LONGEST:
        return False
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(entry, flags, 0o600, dir_fd=folder.descriptor))
    if submissions.changed_at(run.run_dir) == changed:
        return True
    os.unlink(entry, dir_fd=folder.descriptor)
    return False


def _json(run: RunRecord) -> str:
    record = {name: value for name, value in asdict(run).items() if name not in _DERIVED}
    sources = record.pop("sources")
    return json.dumps(record) + _BETWEEN.decode() + json.dumps(sources)


def _entry(summary: RunSummary, changed: int) -> str:
    name = summary.name
    if not _PLAIN.fullmatch(name):
        name = _HEX + name.encode("utf-8", "surrogateescape").hex()
    kind = _CHECK if summary.is_check else summary.sweep
    text = f"{summary.run_id},{changed:x},{summary.at},{'.'.join(summary.jobs)},{kind},{name},"
    return text + _sum(text.encode()).decode()


def _is_whole(name: str) -> bool:
    """Return whether a file name is one of an index, and is as it was written."""
    return _ENTRY.fullmatch(name) is not None and _sum(name[:-_SUM].encode()) == name[-_SUM:].encode()


def _sum(data: bytes) -> bytes:
    return b"%08x" % binascii.crc32(data)


def _is_trusted(folder: safe_files.Folder) -> bool:
    """Return whether only this user can have written to a folder."""
    info = os.fstat(folder.descriptor)
    return info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
