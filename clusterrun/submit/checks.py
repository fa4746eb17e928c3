"""Check a job's Python and script before it is submitted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from clusterrun.base.decode import as_texts
from clusterrun.base.errors import RequestError
from clusterrun.jobspec.spec import JobSpec
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files
from clusterrun.submit import request
from clusterrun.submit.containers import check_image
from clusterrun.submit.environments import find_environment
from clusterrun.submit.job_python import JobPython, NotStarted
from clusterrun.submit.notify_target import check_address
from clusterrun.system import shell

SHORTEST_SECRET = 8
"""A shorter value may be part of any word."""


def check(
    spec: JobSpec, script: str, environ: Mapping[str, str], python: JobPython, notify: Mapping[str, Any] | None = None
) -> None:  # fmt: skip
    """Check that the secrets are set, that the image exists, that the script is bash, and that Python has torch.

    ``notify`` is the content of ``notify.json``, whose address is checked. Raises RequestError, and after all other
    checks NotStarted if ``python`` must not be started.
    """
    check_secrets(spec.secrets, shell.scrub(environ)[0], script)
    if spec.container_image:
        check_image(spec)
    if spec.stage_env:
        find_environment(spec.python)
    request.check_setup(spec, script, environ)
    if notify is not None:
        with suppress(NotStarted):  # raised below
            check_address(str(notify["target"]), python, environ)
    request.check_python(spec, python, environ)


def check_secrets(names: Iterable[str], environ: Mapping[str, str], stored: str = "") -> None:
    """Raise RequestError for a variable of --secret that the job would not inherit, or whose value would be stored.

    ``environ`` is the environment that the job inherits, ``stored`` the text of the script and the records.
    """
    for name in names:
        value = environ.get(name)
        if not value:
            hint = f"export {name}=…, then try again"
            if "CLUSTERRUN_REMOTE" in os.environ:  # the user's machine sends the variables that its command line names
                hint = f"export {name}=… on your own machine, and pass --secret {name} on the command line"
            raise RequestError(f"--secret: {name} is not set in this shell", hint=hint)
        if len(value) >= SHORTEST_SECRET and value in stored:
            raise RequestError(
                f"--secret: the value of {name} would be written to the job script and the run's records",
                hint=f"let the program read {name} from its environment, instead of passing ${name} as an argument",
            )


def check_recorded_secrets(names: Iterable[str], run: RunRecord) -> None:
    """Raise RequestError for a name that is not among the secrets a run was submitted with."""
    recorded = as_texts((files.read_json(run.run_dir / "spec.json") or {}).get("secrets"))
    for name in names:
        if name not in recorded:
            raise RequestError(
                f"--secret: run {run.run_id} was submitted without {name[:40]!r}",
                hint=f"its secrets: {' '.join(recorded)}" if recorded else "the run has no secrets; remove --secret",
            )
