"""A cache of the runs that have ended, so that listing active runs does not read all records.

Each line of the user's cache file holds a run's folder and when its submissions were last written. An entry is valid
while that folder has not changed; a run that Slurm restarts is found through the queue.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from clusterrun.base.decode import parse_lines
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store, append_line


def open_runs(store: Store) -> list[RunRecord]:
    """Return the runs without a recorded end, oldest first."""
    cache = store.index.with_name("over")
    over = _read(cache)
    written = {folder: _written(folder) for folder in store.folders()}
    found, new = [], []
    for run in store.load_all(f for f, at in written.items() if at is None or over.get(str(f)) != at):
        if run.submission.final is None:
            found.append(run)
        elif (at := written[run.run_dir]) is not None:
            new.append(json.dumps([str(run.run_dir), at]))
    if new:
        with contextlib.suppress(OSError):
            cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            append_line(cache, "\n".join(new))
    return sorted(found, key=run_record.age_key)


def _written(folder: Path) -> int | None:
    try:
        return (folder / "submissions").stat().st_mtime_ns  # replacing a file in the folder changes its time
    except OSError:
        return None


def _read(cache: Path) -> dict[str, int]:
    found = {}
    for row in parse_lines(run_record.read_lines(cache)):
        match row:
            case [str(folder), int(written)]:
                found[folder] = written
    return found
