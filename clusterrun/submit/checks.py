"""Check a job's Python, its script and its log folder before it is submitted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.jobspec.spec import JobSpec
from clusterrun.submit import request
from clusterrun.submit.notify_target import check_target


def check(
    spec: JobSpec, script: str, environ: Mapping[str, str], notify: Mapping[str, Any] | None = None,
    workdir: Path = Path(), logs: Path | None = None,
) -> None:  # fmt: skip
    """Check that the job's Python has torch, that the script is bash, and that ``logs`` can be written.

    ``notify`` is the content of ``notify.json``, whose target is checked in ``workdir``. Raises RequestError.
    """
    request.check_python(spec, environ)
    request.check_setup(spec, script, environ)
    if notify is not None:
        check_target(str(notify["target"]), spec.python, environ, workdir)
    if logs is not None:
        folder = next(path for path in (logs, *logs.parents) if path.exists())
        if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
            raise RequestError(f"cannot write logs to {logs}: {folder} is not a writable folder", hint="check it")
