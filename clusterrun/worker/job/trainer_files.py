"""Find and read the file that a trainer writes its progress to, for a script that prints and reports nothing.

Only a file counts that is certainly this launch's: rank 0 has it open for writing, or it was written since the launch
began in a folder that the script's arguments name, and is the only one there. What a script writes into a folder of its
own choice is not looked for: two jobs in one working directory could not be told apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ...base.decode import Damaged, as_int, as_number, as_objects, parse_object
from ...base.printed_progress import Reading, read_line
from ...run_folder import safe_files

STATE = "trainer_state.json"  # of transformers, in the folder of each checkpoint
TABLE = "metrics.csv"  # of Lightning
NAMES = frozenset({STATE, TABLE, "metrics.jsonl"})
DEEPEST = 3  # folders below a named one: lightning_logs/version_0
MOST_ENTRIES = 1000
MOST_DESCRIPTORS = 1000
MOST = 65_536  # bytes that are read at the end of a file of rows
_LOSSES = ("loss", "train_loss", "train_loss_step", "train/loss")


def find(arguments: Sequence[str], began: float, process: int | None, attempt: Path) -> Path | None:
    """Return the file of a launch that ``began`` at this time; ``process`` is rank 0's, if it is known."""
    if process is not None and (opened := _find_open(Path(f"/proc/{process}"), attempt)):
        return opened
    files: dict[Path, tuple[float, Path]] = {}  # by folder; of checkpoints, by the folder of all
    for path, written in _find_written(arguments, began):
        place = path.parent.parent if path.name == STATE else path.parent
        files[place] = max(files.get(place, (0.0, path)), (written, path))
    return next(iter(files.values()))[1] if len(files) == 1 else None


def read(path: Path) -> Reading:
    """Return what a file says last; nothing if it is another user's or damaged."""
    with suppress(OSError, Damaged, KeyError, TypeError, ValueError):
        if path.name == STATE:
            return _read_state(parse_object(safe_files.read_bytes(path, owner=os.getuid())))
        head, last = _read_rows(path)
        return _read_row(head, last) if path.name == TABLE else read_line(last)
    return Reading()


def _find_open(process: Path, attempt: Path) -> Path | None:
    """Return the file that a rank of this attempt has open for writing."""
    with suppress(OSError):
        variables = (process / "environ").read_bytes().split(b"\0")
        if b"CLUSTERRUN_ATTEMPT_DIR=" + os.fsencode(attempt) not in variables:
            return None  # a process of another container, or of a later program
        for descriptor in os.listdir(process / "fd")[:MOST_DESCRIPTORS]:
            target = Path(os.readlink(process / "fd" / descriptor))
            if target.name in NAMES and _is_for_writing(process / "fdinfo" / descriptor):
                return target
    return None


def _is_for_writing(info: Path) -> bool:
    flags = info.read_text().split()[3]  # pos: 0 flags: 0100001
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _find_written(arguments: Iterable[str], began: float) -> Iterator[tuple[Path, float]]:
    """Yield the trainers' files of this user in folders that arguments name, with the time of their last change."""
    for name in chain.from_iterable((argument, argument.partition("=")[2]) for argument in arguments):
        with suppress(OSError, ValueError):  # the working directory is gone; a text with a NUL is no path
            here = Path.cwd()
            folder = here / name
            if folder.is_dir() and not here.is_relative_to(folder.resolve()):
                yield from _written_in(folder, began)


def _written_in(folder: Path, began: float) -> Iterator[tuple[Path, float]]:
    folders, left = [(folder, 0)], MOST_ENTRIES
    while folders and left > 0:
        place, depth = folders.pop()
        with suppress(OSError), os.scandir(place) as entries:
            for entry in islice(entries, left):  # a folder of data may have millions
                left -= 1
                if entry.is_dir(follow_symlinks=False) and depth < DEEPEST:
                    folders.append((place / entry.name, depth + 1))
                elif entry.name in NAMES:
                    status = entry.stat(follow_symlinks=False)
                    if status.st_mtime >= began and status.st_uid == os.getuid():
                        yield place / entry.name, status.st_mtime


def _read_state(state: dict[str, Any]) -> Reading:
    losses = [as_number(row["loss"]) for row in as_objects(state.get("log_history")) if "loss" in row]
    step, steps = as_int(state.get("global_step")), as_int(state.get("max_steps"))
    return Reading("file", step, steps, loss=losses[-1] if losses else None)


def _read_rows(path: Path) -> tuple[str, str]:
    """Return the first line of a file and its last whole one."""
    with safe_files.open_file(path, owner=os.getuid()) as file:
        size = os.fstat(file).st_size
        first = os.pread(file, MOST, 0).partition(b"\n")[0]
        rows = os.pread(file, MOST, max(0, size - MOST)).split(b"\n")
    return first.decode("utf-8", "replace"), rows[-2].decode("utf-8", "replace") if len(rows) > 2 else ""


def _read_row(head: str, last: str) -> Reading:
    row = dict(zip(head.strip().split(","), last.strip().split(","), strict=True))  # numbers, and names without commas
    losses = [float(row[name]) for name in _LOSSES if row.get(name)]
    return Reading("file", int(row["step"]), loss=losses[0] if losses else None)
