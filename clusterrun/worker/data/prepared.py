"""The cache of prepared data: tensors written once, by rank 0, and mapped by all ranks and later runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ...base.errors import WorkerError
from ...run_folder import atomic, attempt_number
from ..rank.distenv import DistEnv
from ..training.consensus import broadcast
from ..training.work import Samples
from .sources import find_sources

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TENSORS = "tensors.safetensors"
KEY = "key.json"
VISIBLE_S = 60.0  # NFS clients may not see a new file for up to a minute (acdirmax)
LEFTOVER_S = 86_400.0  # an unfinished folder older than this was abandoned

Build = Callable[[Path], dict[str, torch.Tensor]]


class Corpus(NamedTuple):
    """The data of a task; `fingerprint` identifies the samples and their tokens."""

    tokenizer: PreTrainedTokenizerBase
    train: Samples
    held_out: Samples
    fingerprint: str


def prepare(root: Path, key: dict[str, Any], build: Build, dist: DistEnv) -> tuple[Path, dict[str, torch.Tensor]]:
    """Return the folder and the tensors (on the CPU, mapped from the file) that belong to `key`; a collective.

    Rank 0 uses `root/<key["name"]>-<hash of key>` if it is whole, else calls `build(folder)`, which returns the tensors
    and may write more files into `folder`, and makes it appear at once. `key` is JSON. What another user made or could
    change is not used. Raises WorkerError where the folder cannot be written, or is not seen by this rank within
    VISIBLE_S; and what `build` raises, on rank 0.
    """
    message: Any = None
    if dist.rank == 0:
        if problem := _distrust(root):
            raise WorkerError(f"cannot use the cache folder: {problem}")
        folder = _folder(root, key)
        if problem := _distrusted(folder):
            print(f"clusterrun: preparing the data again: {problem}", flush=True)
        files = _whole(folder, key)
        if files is None:
            files = _make(folder, key, build)
        message = [str(folder), dist.node, files]
    if dist.world_size > 1:
        message = broadcast(message)
    name, node, files = message
    folder = Path(name)
    if dist.rank != 0:
        _await(folder, files, dist, node)
    return folder, _load(folder, dist)


def marks(*data: str | Sequence[str]) -> list[Any]:
    """Return every file of the data with its size and modification time, for a key; for builtin data Python's version.

    Empty names are left out. Raises WorkerError for a file that is not there.
    """
    found: list[Any] = []
    for names in data:
        sources = find_sources(names) if names else []
        found += [fingerprint(s) if os.path.exists(s) else [s, platform.python_version()] for s in sources]
        found.append("|")  # a file that moves between the lists makes other data
    return found


def fingerprint(path: str) -> list[Any]:
    """Return a file's absolute path, size in bytes and mtime in ns, for a key; raises WorkerError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise WorkerError(f"cannot read {path}: {error.strerror}") from None
    return [os.path.abspath(path), status.st_size, status.st_mtime_ns]


def _folder(root: Path, key: dict[str, Any]) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", str(key["name"]))
    return root.absolute() / f"{name}-{hashlib.sha256(_canonical(key).encode()).hexdigest()[:16]}"


def _distrust(path: Path) -> str:
    """Return why another user may have written a file or folder of the cache; empty if not."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link"
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user"
    if found.st_mode & 0o022:
        return f"other users can change {path} (run: chmod go-w {shlex.quote(str(path))})"
    return ""


def _distrusted(folder: Path) -> str:
    return next(filter(None, map(_distrust, [folder, *folder.rglob("*")])), "")


def _canonical(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"))


def _whole(folder: Path, key: dict[str, Any]) -> dict[str, int] | None:
    """Return the files of a folder with their sizes if this user made it for `key`, all of it; else None."""
    if _distrusted(folder):
        return None
    try:
        document = json.loads((folder / KEY).read_bytes())
        files: dict[str, int] = document["files"]
        if _canonical(document["key"]) != _canonical(key) or not _visible(folder, files):
            return None
        load_file(folder / TENSORS)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError):
        return None
    return files


def _visible(folder: Path, files: dict[str, int]) -> bool:
    try:
        return all(os.stat(folder / name).st_size == size for name, size in files.items())
    except OSError:
        return False


def _make(folder: Path, key: dict[str, Any], build: Build) -> dict[str, int]:
    """Build into a temporary folder, sync it, and rename it to `folder`; returns its files with their sizes."""
    with _in_words(folder.parent):
        attempt_number.check()  # of a project that was renamed meanwhile, nothing is created again
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        temporary = _beside(folder)
        try:
            temporary.mkdir()
            tensors = build(temporary)
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary / TENSORS)
            files = {
                path.relative_to(temporary).as_posix(): path.stat().st_size
                for path in sorted(temporary.rglob("*"))
                if path.is_file()
            }
            (temporary / KEY).write_text(json.dumps({"key": key, "files": files}))
            for path in [temporary, *temporary.rglob("*")]:
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)  # a default ACL goes before the umask
                atomic.sync(path)
            files = _publish(temporary, folder, key) or files
            atomic.sync(folder.parent)
            return files
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, folder: Path, key: dict[str, Any]) -> dict[str, int] | None:
    """Rename the finished folder into place; return the files of another job's folder that came first, if complete."""
    try:
        os.rename(temporary, folder)
        return None
    except OSError:  # rename does not replace a folder with files
        if not folder.exists():
            raise
    files = _whole(folder, key)
    if files is None:
        broken = _beside(folder)
        with contextlib.suppress(FileNotFoundError):  # another job may move it away at the same moment
            os.rename(folder, broken)
        shutil.rmtree(broken, ignore_errors=True)
        try:
            os.rename(temporary, folder)
        except OSError:
            files = _whole(folder, key)
            if files is None:
                raise
    return files


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _remove_leftovers(folder: Path) -> None:
    """Delete what old, killed builds of the same key left."""
    for path in folder.parent.glob(f".{folder.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFTOVER_S:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _in_words(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkerError(f"cannot write to the cache folder {root}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise WorkerError(f"cannot write to the cache folder {root}: {error}") from None


def _await(folder: Path, files: dict[str, int], dist: DistEnv, writer: str) -> None:
    """Wait until this node sees the files that rank 0 sees."""
    deadline = time.monotonic() + VISIBLE_S
    pause = 0.05
    while not _visible(folder, files):
        if time.monotonic() > deadline:
            raise WorkerError(
                f"{folder / TENSORS}, written on node {writer}, is not visible on node {dist.node} after"
                f" {VISIBLE_S:g} s: is the cache folder on a file system that all nodes share?"
            )
        time.sleep(pause)
        pause = min(1.0, 2 * pause)
        with contextlib.suppress(OSError):
            os.listdir(folder.parent)  # makes an NFS client refresh the folder


def _load(folder: Path, dist: DistEnv) -> dict[str, torch.Tensor]:
    if problem := _distrusted(folder):
        raise WorkerError(f"cannot use the cache on node {dist.node}: {problem}")
    try:
        return load_file(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise WorkerError(f"cannot read {folder / TENSORS} on node {dist.node}: {error}") from None
