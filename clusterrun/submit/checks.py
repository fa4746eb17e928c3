"""Check a job's Python and script before it is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterrun.jobspec.spec import JobSpec
from clusterrun.submit import request
from clusterrun.submit.notify_target import check_address


def check(
    spec: JobSpec, script: str, environ: Mapping[str, str], notify: Mapping[str, Any] | None = None
) -> None:  # fmt: skip
    """Check that the job's Python has torch, and that the script is bash.

    ``notify`` is the content of ``notify.json``, whose address is checked. Raises RequestError.
    """
    request.check_python(spec, environ)
    request.check_setup(spec, script, environ)
    if notify is not None:
        check_address(str(notify["target"]), spec.python, environ)
