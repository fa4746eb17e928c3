"""Read a job's logs, within bounds, as lines for the tables of causes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from itertools import zip_longest
from pathlib import Path

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.logs.ends import Ends, read_ends
from clusterrun.logs.files import Stream
from clusterrun.run_folder.safe_files import written_at
from clusterrun.why.causes.model import Line

#: Texts of errors: the lines around one in the middle of a large log are read too.
MENTION = (
    b"Traceback (most recent call last)",
    b"srun: error:",
    b"slurmstepd: error:",
    b"CUDA out of memory",
    b"oom_kill",
    b"oom-kill",
    b"Watchdog caught collective",
    b"NVRM: Xid",
    b"failed first",
    b"Fatal Python error",
    b"thread terminated with exception",
    b"terminate called after",
    b"exited on signal",
    b"(first observed failure)",
)
_MOST_FILES = 64
_LOGS = re.compile(r"\.(?:out|err|log|txt|stdout|stderr)(?:\.\d+)?$|^(?:slurm-|stdout|stderr)|^(?:out|err|log)$")
_RANK = re.compile(r"(?:rank|task|proc)[_.-]?(\d{1,6})(?!\d)|(?:^|[_/])(\d{1,6})/(?:std(?:out|err)|out|err)")


#: The lines of each log, most trusted first, and notes on what was not read.
LogsAndNotes = tuple[list[tuple[Line, ...]], list[str]]


def read_logs(
    paths: Sequence[Path], *, world_size: int | None = None, run_id: str = "", search: bool = True,
    begin: Sequence[int] = (), owners: Collection[int] | None = None,
) -> LogsAndNotes:  # fmt: skip
    """Return the lines of these files, errors first; with ``run_id`` only those since the newest start.

    ``begin`` is the offset of the job's own lines in each file, ``owners`` are the users that may own the files. With
    ``search`` the middle of a large file is searched for the first error.
    """
    since = (f"clusterrun: {run_id}: job ".encode(), b"DUE TO JOB REQUEUE ***\n", b"Distributed environment: ")
    logs: list[tuple[Line, ...]] = []
    notes: list[str] = []
    for path, offset in zip_longest(paths, begin, fillvalue=0):
        assert isinstance(path, Path)
        stream: Stream = "err" if path.suffix == ".err" else "out"
        try:
            ends = read_ends(
                path, stream, world_size=world_size, since=since if run_id else (), begin=offset, owners=owners,
                mention=MENTION if search else (),
            )  # fmt: skip
        except FileNotFoundError:
            notes.append(f"not found: {_shown(path)}")
            continue
        except ClusterrunError as error:
            notes.append(error.message)
            continue
        logs.append(_lines(ends))
        if ends.skipped:
            notes.append(
                f"{_shown(path)} is large ({ends.size / 1e6:,.0f} MB): only the beginning, the end and the first errors"
                f" were read; {ends.skipped / 1e6:,.0f} MB were not read"
            )
    return logs, notes


def read_folder(folder: Path) -> LogsAndNotes:
    """Return the lines of all logs in a folder and its subfolders; raises RequestError if there are none.

    Error streams come first, then by the time of the last write, since the rank that failed first stops writing first.
    """
    if not os.path.isdir(folder):
        raise RequestError(f"not a folder: {folder}", hint="specify the folder that contains the job's logs")
    found = [path for path in _walk(folder) if _LOGS.search(path.name)]
    if not found:
        raise RequestError(f"no logs in {folder}", hint="log files are named *.out, *.err, *.log or slurm-*")
    found.sort(key=lambda path: (not _is_err(path), written_at(path)))
    logs, notes = read_logs(found[:_MOST_FILES])
    if len(found) > _MOST_FILES:
        notes.append(f"only {_MOST_FILES} of the {len(found)} logs in {folder} were read")
    return logs, notes


def _lines(ends: Ends) -> tuple[Line, ...]:
    name, rank_of_log = _shown(ends.path), rank_of_file(ends.path)
    lines = []
    for number, line in ends.lines:
        rank = rank_of_log if line.rank is None else line.rank
        lines.append(Line(name, number, rank, line.text))
    return tuple(lines)


def rank_of_file(path: Path) -> int | None:
    """Return the rank in a log's name (``rank3.err``, ``…/3/stderr.log``), None if there is none."""
    match = _RANK.search("/".join(path.parts[-2:]))
    return int(match[1] or match[2]) if match else None


def _is_err(path: Path) -> bool:
    return "err" in path.name.lower().rpartition(".")[2] or "stderr" in path.name.lower()


def _walk(folder: Path) -> list[Path]:
    """Return the regular files below a folder, three levels deep, without links, at most some 10,000."""
    files: list[Path] = []
    level = [folder]
    for _ in range(3):
        below: list[Path] = []
        for one in level:
            entries = _entries(one)
            files += [entry for entry in entries if entry.is_file()]
            below += [entry for entry in entries if entry.is_dir()]
            if len(files) > 10_000:
                return files
        level = below
    return files


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, without links; nothing if it cannot be read."""
    try:
        return [entry for entry in sorted(folder.iterdir()) if not entry.is_symlink()]
    except OSError:
        return []


def _shown(path: Path) -> str:
    """Return a path relative to the current folder if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
