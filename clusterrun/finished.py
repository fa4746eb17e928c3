"""Which runs are over, kept in a file, so that nobody who wants the others reads the records of these many again.

A cache of the user's: run folder, and when its submissions were last written once its end had been seen. It is
believed while that folder has not been touched since; a run that Slurm has started again is found by the queue.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from clusterrun import store as records
from clusterrun.store import RunRecord, Store


def open_runs(store: Store) -> list[RunRecord]:
    """Every run known from here whose end was not seen yet, oldest first."""
    cache = store.index.with_name("over")
    over = _read(cache)
    found, new = [], []
    for folder in store.folders():
        written = _written(folder)
        if written is not None and over.get(str(folder)) == written:
            continue
        run = records.load(folder)
        if run is None:
            continue
        if run.submission.final is None:
            found.append(run)
        elif written is not None:
            new.append(json.dumps([str(folder), written]))
    if new:
        with contextlib.suppress(OSError):
            cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            records.append_line(cache, "\n".join(new))
    return sorted(found, key=records.age_key)


def _written(folder: Path) -> int | None:
    try:
        return (folder / "submissions").stat().st_mtime_ns  # a file that is replaced in it touches the folder
    except OSError:
        return None


def _read(cache: Path) -> dict[str, int]:
    try:
        lines = cache.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # a torn line of a cache
            folder, written = json.loads(line)
            found[str(folder)] = int(written)
    return found
