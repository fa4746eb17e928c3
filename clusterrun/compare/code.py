"""Compare the code that two runs have saved, file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import unified_diff
from itertools import chain, compress, islice
from pathlib import Path

from clusterrun.compare import Change, find_changes
from clusterrun.records import code_store
from clusterrun.records.code_store import FILES, Entry, load_manifest
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import safe_files

LARGEST = 256 * 1024
"""The size in bytes from which the lines of a file are not compared."""
MOST_LINES = 1000


def compare_code(first: RunRecord, second: RunRecord) -> tuple[tuple[str, ...], tuple[str, ...], tuple[RunRecord, ...]]:
    """Return the files in which the code of two runs differs, their diff, and the runs whose code has been deleted.

    The diff has at most ``MOST_LINES`` lines. Nothing is compared unless the code of both runs is there.
    """
    code, other_code = code_store.load_snapshot(first), code_store.load_snapshot(second)
    if code is None or other_code is None or code.digest == other_code.digest:
        return (), (), ()
    trees = (code_store.tree_of(first, code), code_store.tree_of(second, other_code))
    manifest, other_manifest = map(load_manifest, trees)
    if manifest is None or other_manifest is None:
        gone = compress((first, second), (manifest is None, other_manifest is None))
        return (), (), tuple(gone)
    changes = sorted(find_changes(manifest, other_manifest))
    return tuple(change.name for change in changes), _diff(changes, trees), ()


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
