"""The saved code of a run: ``snapshot.json`` and ``code.diff`` in its folder, written at its first submission."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, build
from clusterrun.base.units import plural
from clusterrun.records import code_store
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files

RECORD, DIFF = "snapshot.json", "code.diff"
_SAVED = re.compile(r"/.*/\.clusterrun/snapshots/trees/[0-9a-f]{20}/files/", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{20}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The code of a run: the folder it was copied from, and its digest in the store.

    ``commit`` is empty before the first commit, ``branch`` if none was checked out. ``changed`` is the number of files
    that differed from the commit.
    """

    root: str
    digest: str
    commit: str = ""
    branch: str = ""
    changed: int = 0
    files: int = 0

    @property
    def line(self) -> str:
        """The code in words: ``a1b2c3d (main) + 2 changed files``."""
        commit = self.commit[:7] if self.commit else "no commit"
        branch = f" ({self.branch})" if self.branch else ""
        return f"{commit}{branch}" + (f" + {plural(self.changed, 'changed file')}" if self.changed else "")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``snapshot.json``."""
        return {"version": 1, **asdict(self)}


def load_snapshot(run: RunRecord) -> Snapshot | None:
    """Return the code of a run; None if none was saved, or its record is damaged."""
    try:
        found = build(Snapshot, files.read_json(run.run_dir / RECORD) or {})
    except Damaged:
        return None
    return found if _DIGEST.fullmatch(found.digest) else None


def is_damaged(run: RunRecord) -> bool:
    """Return whether a run has a record of saved code that cannot be read."""
    return os.path.lexists(run.run_dir / RECORD) and load_snapshot(run) is None


def tree_of(run: RunRecord, snapshot: Snapshot) -> Path:
    """Return the folder of a run's saved code; `clean` may have deleted it."""
    return code_store.tree_folder(run.root, snapshot.digest)


def code_line(run: RunRecord | None) -> str:
    """Return the code of a run in words; empty if none was saved."""
    snapshot = load_snapshot(run) if run is not None else None
    return snapshot.line if snapshot else ""


def project_path(run: RunRecord, path: str) -> str:
    """Return the file of the project whose saved copy is ``path``, and other paths unchanged."""
    found = _SAVED.match(path)
    snapshot = load_snapshot(run) if found else None
    return f"{snapshot.root}/{path[found.end() :]}" if found and snapshot else path
