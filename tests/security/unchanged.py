"""Whether anything in a folder is another than it was."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def look(folder: Path, *, but: tuple[Path, ...] = ()) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder as it is now: type, mode, owner, size, content, and when a folder was changed."""
    found = {}
    but = tuple(left_out for left_out in but if left_out not in folder.parents)
    below = [] if folder.is_symlink() else sorted(folder.rglob("*"))  # a link is looked at, not what it leads to
    for path in (folder, *below):
        if any(path == left_out or left_out in path.parents for left_out in but):
            continue
        info = path.lstat()
        content = ""
        if stat.S_ISREG(info.st_mode) and info.st_size < 1 << 24:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(info.st_mode):
            content = os.readlink(path)
        seen = (oct(info.st_mode), info.st_uid, info.st_gid, info.st_size, content)
        # a name that came and went again shows in its folder's time alone
        passing = stat.S_ISDIR(info.st_mode) and not any(path in left_out.parents for left_out in but)
        found[str(path)] = (*seen, info.st_mtime_ns) if passing else seen
    return found


@contextlib.contextmanager
def unchanged(*folders: Path, but: tuple[Path, ...] = ()) -> Iterator[None]:
    """Fail where anything below the folders is another afterwards, except below those of `but`."""
    before = {folder: look(folder, but=but) for folder in folders}
    yield
    for folder in folders:
        after = look(folder, but=but)
        changed = [path for path in {**before[folder], **after} if before[folder].get(path) != after.get(path)]
        told = {path: (before[folder].get(path), after.get(path)) for path in changed}
        assert not changed, f"changed: {told}"
