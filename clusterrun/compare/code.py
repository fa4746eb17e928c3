"""Compare the code that two runs have saved, file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import unified_diff
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple

from clusterrun.compare import Change, find_changes
from clusterrun.records import code_store
from clusterrun.records.code_store import FILES, Entry, Snapshot, load_manifest
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import safe_files

LARGEST = 256 * 1024
"""The size in bytes from which the lines of a file are not compared."""
MOST_LINES = 1000


class Codes(NamedTuple):
    """Two runs' code: what was saved of each (None: nothing), the files that differ, and their diff.

    ``gone`` are the runs whose saved code has been deleted; then the files are not known.
    """

    first: Snapshot | None
    second: Snapshot | None
    files: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()
    gone: tuple[RunRecord, ...] = ()

    @property
    def same(self) -> bool:
        """Whether both runs have saved the same files."""
        return self.first is not None and self.second is not None and self.first.digest == self.second.digest


def compare_code(first: RunRecord, second: RunRecord) -> Codes:
    """Compare the code of two runs; the diff has at most ``MOST_LINES`` lines."""
    codes = Codes(code_store.load_snapshot(first), code_store.load_snapshot(second))
    if codes.same or codes.first is None or codes.second is None:
        return codes
    trees = (code_store.tree_of(first, codes.first), code_store.tree_of(second, codes.second))
    manifest, other_manifest = map(load_manifest, trees)
    if manifest is None or other_manifest is None:
        gone = compress((first, second), (manifest is None, other_manifest is None))
        return codes._replace(gone=tuple(gone))
    changes = sorted(find_changes(manifest, other_manifest))
    return codes._replace(files=tuple(change.name for change in changes), diff=_diff(changes, trees))


def _diff(changes: Iterable[Change], trees: tuple[Path, Path]) -> tuple[str, ...]:
    diffs = (_compare_file(change, trees) for change in changes)
    lines = tuple(islice(chain.from_iterable(diffs), MOST_LINES + 1))
    if len(lines) > MOST_LINES:
        return (*lines[:MOST_LINES], "… the rest of the diff is left out")
    return lines


def _compare_file(change: Change, trees: tuple[Path, Path]) -> Iterator[str]:
    entries: tuple[Entry | None, Entry | None] = (change.first, change.second)
    modes = {entry.mode for entry in entries if entry is not None}
    if len(modes) > 1:
        yield f"mode of {change.name} changed from {change.first.mode} to {change.second.mode}"
    lines, other_lines = map(_read, trees, entries)
    if lines is None or other_lines is None:
        yield f"binary or large file {change.name} differs"
        return
    before = f"a/{change.name}" if change.first else "/dev/null"
    after = f"b/{change.name}" if change.second else "/dev/null"
    yield from unified_diff(lines, other_lines, before, after, lineterm="")


def _read(tree: Path, entry: Entry | None) -> list[str] | None:
    """Return the lines of a saved file, None if it is not a text or too large; a link has its target."""
    if entry is None:
        return []
    if entry.is_link:
        return [entry.content]
    try:
        data = safe_files.read_bytes(tree / FILES / entry.path, LARGEST)
    except OSError:
        return None
    if b"\0" in data:
        return None
    return data.decode("utf-8", "replace").splitlines()
