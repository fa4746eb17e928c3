"""Check a job's Python and script before it is submitted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from clusterrun.jobspec.spec import JobSpec
from clusterrun.submit import request
from clusterrun.submit.notify_target import check_address


def check(
    spec: JobSpec, script: str, environ: Mapping[str, str], meanwhile: Callable[[], object] = lambda: None,
    notify: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Check that the job's Python has torch and the script is bash, and call ``meanwhile`` at the same time.

    ``notify`` is the content of ``notify.json``, whose address is checked. Raises RequestError.
    """
    errors: list[Exception] = []

    def run_checks() -> None:
        try:
            request.check_python(spec, environ)
            request.check_setup(spec, script, environ)
            if notify is not None:
                check_address(str(notify["target"]), spec.python, environ)
        except Exception as error:
            errors.append(error)

    checking = threading.Thread(target=run_checks)
    checking.start()
    try:
        meanwhile()
    finally:
        checking.join()
    for error in errors:
        raise error
