"""The records of a node's ranks in one file, `node-R.ranks` (R: the node's first rank): progress and end of each.

Each rank has a slot of SLOT bytes at its local rank: its progress record, then its end record, each one line of JSON
padded with spaces to HALF bytes. A record is written in place by one write, so the file is created once and heartbeats
cost no further metadata operation. All writers of a file are on one node. A file may be missing, cut off or another
user's, and a reader may find a record torn: it reads the record again, and a record that is still damaged counts as
absent.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ..base.decode import Damaged, parse_object, parse_unchecked
from . import safe_files
from .files import file_mode

HALF = 1024
SLOT = 2 * HALF
LARGEST = 4096 * SLOT  # bytes of a file
MOST_WRITES_PER_S = 750  # of all ranks together, as they share a file system: with more ranks each writes less often
POLLS = 10  # between two writes
SILENT_INTERVALS = 3  # without a write: the heartbeat of a rank is missing
ANNOUNCE_S = 3.0  # in which the ranks of a large job that stopped advancing together say so
SLOW = 0.7  # of the median speed: a slow rank
FEWEST = 3  # ranks: of two, neither is the usual one
SHORTEST_S = 0.010  # per step: below, a rank is slowed by anything
READS_PER_S = 60  # of each kind of file by a whole job: a metadata server of a shared file system has other users too
PROGRESS, END = 0, 1  # the halves of a slot
_NAME = re.compile(r"node-(\d{1,7})\.ranks", re.ASCII)
_ENTRY = 32  # bytes of an entry of a mapping, about: a shortened record keeps the first ones

Records = dict[int, dict[str, Any]]


def path_of(folder: Path, first_rank: int) -> Path:
    """Return the file of the node whose first rank this is."""
    return folder / f"node-{first_rank}.ranks"


class RankSlot:
    """The slot of one rank. Its file is opened at the first write and stays open; all methods raise OSError."""

    def __init__(self, folder: Path, rank: int, local_rank: int) -> None:
        self.rank = rank
        slot = min(rank, local_rank)  # whatever the launcher numbers: each rank has its own
        self.path = path_of(folder, rank - slot)
        self._offset = slot * SLOT
        self._file: tuple[int, str] | None = None  # its descriptor, and what that refers to

    def write_progress(self, document: dict[str, Any]) -> None:
        """Replace the progress record; after a crash of the node it may be lost."""
        self._write(encode(document), self._offset, lasting=False)

    def write_end(self, document: dict[str, Any]) -> None:
        """Replace the end record, on the disk when this returns."""
        self._write(encode(document), self._offset + HALF)

    def clear_end(self) -> None:
        """Remove the end record of an earlier start of this rank in the same folder."""
        self._write(b" " * HALF, self._offset + HALF)

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        descriptor = self._descriptor()
        self._file = None
        if descriptor is not None:
            os.close(descriptor)

    def _write(self, data: bytes, offset: int, lasting: bool = True) -> None:
        descriptor = self._descriptor()
        if descriptor is None:
            descriptor = _open(self.path)
            self._file = descriptor, _target(descriptor)
        try:
            if os.pwrite(descriptor, data, offset) != len(data):
                raise OSError(errno.ENOSPC, "a record was only partly written", str(self.path))
            if lasting:
                os.fsync(descriptor)
            else:
                os.close(os.dup(descriptor))  # an NFS client sends its writes at any close; elsewhere it costs nothing
        except OSError:
            with suppress(OSError):
                self.close()  # after an error a file server may require a new descriptor
            raise

    def _descriptor(self) -> int | None:
        """Return the descriptor unless the user's code has closed it: it may then be that of a file of theirs."""
        if self._file is not None and _target(self._file[0]) == self._file[1]:
            return self._file[0]
        return None


def encode(document: dict[str, Any]) -> bytes:
    """Return a record of HALF bytes. If it is too long, its texts and nested mappings are cut to the same length.

    Raises ValueError if that does not suffice.
    """

    def line(most: int) -> bytes:
        short = {name: _cut(value, most) for name, value in document.items()}
        # a lone surrogate becomes JSON's own escape of it
        return json.dumps(short, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")

    data = line(HALF)
    if len(data) >= HALF:
        too_long = bisect_left(range(HALF), True, key=lambda most: len(line(most)) >= HALF)
        if too_long == 0:
            raise ValueError("the record is too long")
        data = line(too_long - 1)
    return data.ljust(HALF - 1) + b"\n"


def read(attempt: Path) -> tuple[Records, Records]:
    """Return the progress and the end records of an attempt, each by rank; what cannot be read counts as absent."""
    records: tuple[Records, Records] = {}, {}
    for half, rank, record in _load(attempt, (PROGRESS, END)):
        records[half][rank] = record
    return records


def read_node(attempt: Path, first_rank: int) -> tuple[Records, Records]:
    """Return the progress and the end records of one node, each by rank; raises OSError."""
    records: tuple[Records, Records] = {}, {}
    with safe_files.open_folder(attempt) as folder:
        for half, rank, record in _of_node(folder, first_rank, (PROGRESS, END)):
            records[half][rank] = record
    return records


def load(attempt: Path, half: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each rank that has a record in this half of its slot, with the record, in no order."""
    # one by one: with 80,000 of them in memory the garbage collector would take as long as the reading
    return ((rank, record) for _, rank, record in _load(attempt, (half,)))


def load_first_end(attempt: Path) -> dict[str, Any]:
    """Return the end record of rank 0, empty if there is none; it reads one file."""
    try:
        return read_node(attempt, 0)[END].get(0, {})
    except OSError:
        return {}


def find_slow(busy: Mapping[int, float]) -> dict[int, float]:
    """Return the speeds of the slow ranks, as fractions of the ranks' median, by the seconds that each works in a step.

    There are none if the times of too few ranks are known.
    """
    if len(busy) < FEWEST:
        return {}
    from statistics import median  # it loads decimal and fractions, which `list` does without

    usual = median(busy.values())
    least = max(SHORTEST_S, usual / SLOW)
    return {rank: usual / seconds for rank, seconds in busy.items() if seconds > least}


def _load(attempt: Path, halves: Sequence[int]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    with suppress(OSError), safe_files.open_folder(attempt) as folder:
        for name in folder.names():
            if match := _NAME.fullmatch(name):
                with suppress(OSError):
                    yield from _of_node(folder, int(match[1]), halves)


def _of_node(
    folder: safe_files.Folder, first_rank: int, halves: Sequence[int]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield half, rank and record of a node's records; raises OSError."""
    descriptor, size = folder.open_file(path_of(folder.path, first_rank).name)
    try:
        data = os.pread(descriptor, size, 0) if size <= LARGEST else b""
        for half in halves:
            filled = [at for at in range(HALF * half, len(data), SLOT) if data[at] == ord("{")]
            # a third faster than one by one, as the keys are the same
            records = _parse_list([data[at : at + HALF] for at in filled])
            for at, first in zip(filled, records, strict=True):
                record = _parse(os.pread(descriptor, HALF, at)) if first is None else first
                if record is not None:
                    yield half, first_rank + at // SLOT, record
    finally:
        os.close(descriptor)


def _parse_list(texts: list[bytes]) -> list[dict[str, Any] | None]:
    """Return what _parse returns for each."""
    try:
        values = parse_unchecked(b"[" + b",".join(texts) + b"]")
    except Damaged:
        return [*map(_parse, texts)]
    if len(values) == len(texts) and all(isinstance(value, dict) for value in values):
        return list(values)
    return [*map(_parse, texts)]


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        return parse_object(data)
    except Damaged:
        return None


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return value[:most]
    if isinstance(value, dict):
        return {name: _cut(one, most) for name, one in islice(value.items(), most // _ENTRY)}
    return value


def _open(path: Path) -> int:
    """Open the file for writing, and create it if no rank of this node has; raises OSError for anything else there.

    It is not replaced, unlike other records: another rank of the node may just have created it.
    """
    mode = file_mode(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "not a regular file owned by this user", str(path))
        if stat.S_IMODE(info.st_mode) != mode:
            os.fchmod(descriptor, mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _target(descriptor: int) -> str:
    """Return what a descriptor refers to, empty if it is closed: a look into /proc, which asks no file server."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
