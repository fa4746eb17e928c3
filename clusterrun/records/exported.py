"""The finished model of a run: its folder, and the files in it that are this user's."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import safe_files
from clusterrun.run_folder.files import read_json

CARD = "clusterrun.json"  # which the run writes beside the weights


class Model(NamedTuple):
    """A model's folder, the sizes of its files in bytes by name, and what is left out, as ``NAME: why``."""

    folder: Path
    sizes: dict[str, int]
    left_out: list[str]


def find_model(run: RunRecord, handle: str) -> Model:
    """Return the finished model of this user's run; raises RequestError if there is none or others could change it."""
    folder = _folder(run)
    if not run.mine:
        raise RequestError(f"job {handle} is another user's", hint="push models of your own runs")
    if os.path.lexists(folder) and (why := _why_unsafe(folder)):
        raise RequestError(f"not uploading {folder}: {why}", hint="others could put files into it")
    card = read_json(folder / CARD)
    if card is None:
        hint = f"a run of a built-in task writes one at its end: clusterrun status {handle}"
        raise RequestError(f"job {handle} has no model in {folder}", hint=hint)
    if card.get("run_id") != run.run_id:
        raise RequestError(f"the model in {folder} is another run's", hint="clusterrun list --all")
    return Model(folder, *_files(folder))


def _folder(run: RunRecord) -> Path:
    settings = run.sources.get("set", ({}, ""))[0]
    named = settings.get("save_path") if isinstance(settings, dict) else None
    return run.root / Path(str(named)).expanduser() if named else run.run_dir / "model"


def _why_unsafe(folder: Path) -> str:
    info = folder.lstat()
    return "it is a link" if stat.S_ISLNK(info.st_mode) else safe_files.why_untrusted(info, os.getuid())


def _files(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Return the files of a folder to upload, and what is left out: links, and what is another user's."""
    sizes: dict[str, int] = {}
    left_out: list[str] = []
    for place, folders, names in os.walk(folder):  # it follows no link
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for path in (Path(place) / name for name in sorted([*names, *links])):
            info, name = path.lstat(), str(path.relative_to(folder))
            if not stat.S_ISREG(info.st_mode):
                left_out.append(f"{name}: not a regular file")
            elif info.st_uid != os.getuid():
                left_out.append(f"{name}: owned by {safe_files.user_name(info.st_uid)}")
            else:
                sizes[name] = info.st_size
    return sizes, left_out
