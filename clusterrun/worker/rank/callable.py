"""Run a pickled callable in this rank, as `python -m submitit.core._submit FOLDER` does, after a safety check.

Unpickling can run any code, so only a file that this user owns and nobody else can write is loaded. Run by path with
the job's Python, which needs submitit.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
import traceback
from pathlib import Path
from typing import Any

CALL = "call.pkl"
"""The call of a run of ``Cluster.map``; submitit's files have other names."""


def load(path: str | Path) -> Any:
    """Unpickle a file; raises PermissionError before reading it if another user could have written it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"refusing to unpickle {path}: it must be a regular file that only you can write")
        return pickle.load(file)


def dump(value: Any, path: str | Path) -> None:
    """Pickle a value into a new file of mode 0600, regardless of the umask."""
    import cloudpickle

    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        cloudpickle.dump(value, file, pickle.HIGHEST_PROTOCOL)


def call(folder: Path, rank: int) -> None:
    """Run a call of ``Cluster.map``: rank 0 writes its result, and any rank its exception with the traceback."""
    try:
        result = load(folder / CALL).result()
        if rank == 0:
            _replace(result, folder / "result.pkl")
    except Exception as error:
        _replace((_pickled(error), traceback.format_exc()), folder / "error.pkl")
        raise


def _replace(value: Any, path: Path) -> None:
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    dump(value, new)
    new.replace(path)


def _pickled(error: Exception) -> bytes:
    """Return an exception as a pickle; empty if it cannot be loaded again."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # fails if its __init__ takes other arguments
    except Exception:
        return b""
    return data


def main(folder: str) -> None:
    """Run the job's callable and write its result beside it."""
    if (Path(folder) / CALL).exists():
        call(Path(folder), int(os.environ["RANK"]))
        return
    from submitit.core import submission, utils

    utils.pickle_load, utils.cloudpickle_dump = load, dump  # type: ignore[assignment]  # other names of parameters
    submission.process_job(folder)


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()  # as under -m; modules in this folder could shadow the user's
    main(sys.argv[1])
