"""Pack the job's Python environment at submission, once for all runs; worker/job/staged_env.py copies it to nodes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from clusterrun.base.errors import CommandError, RequestError
from clusterrun.base.units import format_bytes
from clusterrun.records.cleaning import CACHE
from clusterrun.run_folder import safe_files
from clusterrun.run_folder.safe_files import RECORDS
from clusterrun.submit.environments import find_environment
from clusterrun.submit.plan import Plan
from clusterrun.system import shell

RECORD, ARCHIVE = "environment.json", "environment.tar.gz"
_TIMEOUT = 3600.0
_CHANGED = 1  # tar's status if a file changed while it was read
_KEY_FILES = ("pyvenv.cfg", "conda-meta/*.json", "lib/python*/site-packages/*.pth",
              "lib/python*/site-packages/*.dist-info/RECORD")  # fmt: skip


def pack(plan: Plan, environ: Mapping[str, str], notify: Callable[[str], None]) -> dict[str, str]:
    """Pack the environment of --stage-env unless its packages are packed, and return the file for the run's folder.

    ``notify`` gets a line about it. Raises RequestError.
    """
    if not plan.spec.stage_env:
        return {}
    folder = find_environment(plan.spec.python)
    root = plan.record.root.resolve()
    if folder.resolve() in (root, *root.parents):
        raise RequestError(
            f"--stage-env: the environment {folder} contains the project, which would be packed too",
            hint="create the environment in a folder of its own, and choose it with --venv",
        )
    cache = plan.record.root / RECORDS / CACHE
    place = cache / f"environment-{_key(folder)}"
    archive, new = place / ARCHIVE, place / f".new-{os.urandom(8).hex()}"
    clean, _ = shell.scrub(environ)
    try:
        for one in (cache, place):
            safe_files.make_folder(one, 0o700)
        with suppress(FileNotFoundError):
            os.utime(archive)  # `clean` keeps recently used caches
            notify(f"environment: {folder}, packed before ({format_bytes(archive.stat().st_size)})")
            return {RECORD: json.dumps({"archive": str(archive)})}
        notify(f"environment: packing {folder}; later submissions use the same archive")
        # gzip is on all nodes; its fastest level, as most of the bytes are libraries. A base environment has others
        command = ["tar", "-C", str(folder), "--exclude=./pkgs", "--exclude=./envs", "-I", "gzip -1", "-cf", str(new)]
        # another process may write byte code meanwhile, which is no error
        command += ["--exclude=*.pyc.[0-9]*", "--warning=no-file-changed", "--warning=no-file-removed", "."]
        try:
            done = shell.run(command, env=clean, timeout=_TIMEOUT, umask=0o077)
            if done.status not in (0, _CHANGED):
                raise CommandError(command, status=done.status, stderr=done.stderr)
            new.rename(archive)
        finally:
            new.unlink(missing_ok=True)
    except (CommandError, OSError) as error:
        why = error.detail if isinstance(error, CommandError) else f"{error.filename}: {error.strerror}"
        raise RequestError(
            f"--stage-env: cannot pack {folder}", detail=why, hint="free some space, or remove --stage-env"
        ) from error
    return {RECORD: json.dumps({"archive": str(archive)})}


def _key(folder: Path) -> str:
    """Return a text that differs if the environment or its packages do."""
    files = sorted(path for pattern in _KEY_FILES for path in folder.glob(pattern))
    names = sorted(str(path) for path in folder.glob("lib/python*/site-packages/*") if path.name != "__pycache__")
    stats = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    return hashlib.sha256(json.dumps([str(folder), names, stats]).encode()).hexdigest()[:20]
