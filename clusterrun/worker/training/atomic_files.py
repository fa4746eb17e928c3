"""Write the files of checkpoints under temporary names, sync them to disk, and rename their folder into place."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ...run_folder import atomic
from ...run_folder.atomic import Check

SMALL = 2**20  # bytes; a record has a few hundred
REMOTE_WRITER_DEAD_S = 3600.0  # whether a writer on another node lives is unknown: its file must be this old

_TEMPORARY = re.compile(
    r"\.tmp-(?:step-\d+(?:\.replaced)?|latest|best\.json|owner\.json)-(?P<host>.+)-(?P<pid>\d+)(?:\.\w+)?"
)
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Hashed:
    """A file that records the size and sha256 of what is written to it, and the last error."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        length = memoryview(data).nbytes
        self.digest.update(data)
        try:
            self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.size += length
        return length

    def flush(self) -> None:
        self.file.flush()


def write_file(path: Path, fill: Callable[[Hashed], Any]) -> dict[str, Any]:
    """Write and sync one file; return its size in bytes and its sha256. Raises OSError."""
    with open(path, "wb") as file:
        out = Hashed(file)
        try:
            fill(out)
        except RuntimeError:
            if out.error is not None:  # torch.save hides a full disk behind a RuntimeError
                raise out.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return {"size": out.size, "sha256": out.digest.hexdigest()}


def write_safetensors(tensors: dict[str, torch.Tensor], out: Hashed, metadata: dict[str, str] | None = None) -> None:
    """Write the safetensors format in one pass, from the tensors' memory, with more `metadata` in its header.

    The library's save_file would need a second pass for the sha256, and hides errors of the disk.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"} | (metadata or {})}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps them aligned
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        out.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def temporary(path: Path) -> Path:
    """Return a temporary name for `path`, which `sweep` knows."""
    return path.with_name(atomic.temporary_name(path.name))


def sweep(folder: Path) -> None:
    """Delete temporary files of dead writers; never raises."""
    try:
        leftovers = [(folder / match[0], match) for match in map(_TEMPORARY.fullmatch, os.listdir(folder)) if match]
    except OSError:
        return
    for path, match in leftovers:
        try:
            if _is_left(path, match["host"], int(match["pid"])):
                path.unlink() if path.is_file() else shutil.rmtree(path)
        except OSError:
            pass  # deleted by another process, or not possible now


def publish(temporary: Path, path: Path, check: Check) -> None:
    """Rename a finished file or folder, if this process may still write; raises OSError and Superseded."""
    check()
    os.rename(temporary, path)


def read_small(path: Path) -> bytes:
    """Read a small record; raises OSError also for a pipe, a device and a file beyond SMALL bytes.

    Another user may be able to write in a folder of checkpoints: such files must not hang this process or fill memory.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > SMALL:
            raise OSError(errno.EINVAL, "not a regular file, or too large", str(path))
        return file.read(SMALL)


def discard(path: Path, check: Check) -> None:
    """Delete a folder atomically, by renaming it first; raises OSError and Superseded."""
    gone = temporary(path)
    publish(path, gone, check)
    shutil.rmtree(gone, ignore_errors=True)


def _is_left(path: Path, host: str, pid: int) -> bool:
    if host != os.uname().nodename:
        touched = [path.stat().st_mtime, *(part.stat().st_mtime for part in path.glob("*"))]
        return time.time() - max(touched) > REMOTE_WRITER_DEAD_S
    if pid == os.getpid():
        return True  # this process has one writer, which is not writing now: an earlier process had this pid
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except (ProcessLookupError, OverflowError):
        return True
    return False
