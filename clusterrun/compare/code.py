"""Compare the code that two runs have saved, file by file."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from clusterrun.records import snapshots
from clusterrun.records.code_store import FILES, Entry, load_manifest
from clusterrun.records.run_record import RunRecord
from clusterrun.records.snapshots import Snapshot
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
    codes = Codes(snapshots.load_snapshot(first), snapshots.load_snapshot(second))
    if codes.same or codes.first is None or codes.second is None:
        return codes
    trees = [snapshots.tree_of(first, codes.first), snapshots.tree_of(second, codes.second)]
    one, other = map(load_manifest, trees)
    if one is None or other is None:
        gone = [run for run, found in ((first, one), (second, other)) if found is None]
        return codes._replace(gone=tuple(gone))
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    lines: list[str] = []
    for name in names:
        lines += _compare_file(name, trees, one.get(name), other.get(name))
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = ["… the rest of the diff is left out"]
            break
    return codes._replace(files=tuple(names), diff=tuple(lines))


def _compare_file(name: str, trees: list[Path], first: Entry | None, second: Entry | None) -> Iterator[str]:
    texts = [_read(tree, entry) for tree, entry in zip(trees, (first, second), strict=True)]
    if first is not None and second is not None and first.mode != second.mode:
        yield f"mode of {name} changed from {first.mode} to {second.mode}"
    one, other = texts
    if one is None or other is None:
        yield f"binary or large file {name} differs"
        return
    before, after = f"a/{name}" if first else "/dev/null", f"b/{name}" if second else "/dev/null"
    yield from unified_diff(one, other, before, after, lineterm="")


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
    return None if b"\0" in data else data.decode("utf-8", "replace").splitlines()
