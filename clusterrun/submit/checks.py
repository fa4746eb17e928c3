"""Check a job's Python and script before it is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.jobspec.spec import JobSpec
from clusterrun.submit import request
from clusterrun.submit.notify_target import check_address


def check(
    spec: JobSpec, script: str, environ: Mapping[str, str], notify: Mapping[str, Any] | None = None
) -> None:  # fmt: skip
    """Check that the secrets are set, that the job's Python has torch, and that the script is bash.

    ``notify`` is the content of ``notify.json``, whose address is checked. Raises RequestError.
    """
    check_secrets(spec, environ)
    request.check_python(spec, environ)
    request.check_setup(spec, script, environ)
    if notify is not None:
        check_address(str(notify["target"]), spec.python, environ)


def check_secrets(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Raise RequestError for a variable of --secret that this shell does not have."""
    for name in spec.secrets:
        if not environ.get(name):
            raise RequestError(f"--secret: {name} is not set in this shell", hint=f"export {name}=…, then try again")
