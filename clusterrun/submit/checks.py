"""Check a job's Python, its script and the target of --notify before it is submitted."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clusterrun.base.decode import as_texts
from clusterrun.base.errors import CommandError, RequestError
from clusterrun.jobspec.spec import JobSpec
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files
from clusterrun.submit import request
from clusterrun.submit.containers import check_image
from clusterrun.submit.environments import find_environment
from clusterrun.submit.job_python import JobPython, NotStarted
from clusterrun.system import shell

SHORTEST_SECRET = 8
"""A shorter value may be part of any word."""
#: Of messages about --notify, which show no address: it may be a secret.
_HINT = "give a webhook (https://…), an apprise address, or a command"
_NO_APPRISE, _REFUSED = 3, 4
_APPRISE = f"""
import sys
try:
    import apprise
except ImportError:
    sys.exit({_NO_APPRISE})
sys.exit(0 if apprise.Apprise().add(sys.stdin.read()) else {_REFUSED})
"""


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


def check_address(target: str, python: JobPython, environ: Mapping[str, str]) -> None:
    """Check a webhook or an address of apprise; other targets are commands, see ``check_command``.

    ``python`` is the job's Python, which needs apprise. Raises RequestError, or NotStarted for apprise's addresses.
    """
    scheme = target.partition("://")[0]
    if _is_command(target):
        return
    if scheme in ("http", "https"):
        try:
            host = urlsplit(target).hostname
        except ValueError:
            host = None
        if not host:
            raise RequestError(f"--notify: the {scheme}:// address has no host", hint=_HINT)
    else:
        _check_apprise(target, scheme, python, environ)


def check_command(target: str, spec: JobSpec, environ: Mapping[str, str], workdir: Path, *, local: bool) -> list[str]:
    """Check a command that worker/job/notify.py will run in ``workdir``, and return notices; other targets have none.

    A command that is not found here may still be found on a compute node: by an absolute path, or after setup lines and
    variables of the job. Raises RequestError if the command cannot be on a compute node either.
    """
    if not _is_command(target):
        return []
    try:
        first = shlex.split(target)[0]
    except (ValueError, IndexError) as error:
        raise RequestError(f"--notify: invalid command line: {error}", hint="--notify 'command --option …'") from None
    name = str(workdir / first) if "/" in first else first
    if shutil.which(name, path=environ.get("PATH")) is not None:
        return []
    if ":" in first:
        raise RequestError("--notify: the target is neither an address nor a command", hint=_HINT)
    if spec.setup or "PATH" in dict(spec.env) or (first.startswith("/") and not local):
        return [f"--notify: command {first} not found on this node; make sure that the compute nodes have it"]
    raise RequestError(f"--notify: no such command: {first}", hint=_HINT)


def _is_command(target: str) -> bool:
    scheme, separator, _ = target.partition("://")
    return not separator or " " in scheme


def _check_apprise(target: str, scheme: str, python: JobPython, environ: Mapping[str, str]) -> None:
    try:
        # on stdin: other users can list the arguments of processes
        status = python.run(["-c", _APPRISE], environ=environ, stdin=target).status
    except CommandError:
        return  # the job's Python is checked elsewhere
    if status == _NO_APPRISE:
        hint = f"{shlex.quote(python.path)} -m pip install apprise   (http:// and https:// work without it)"
        raise RequestError(f"--notify: {scheme}:// needs apprise, which {python.path} does not have", hint=hint)
    if status == _REFUSED:
        raise RequestError(f"--notify: apprise does not accept this {scheme}:// address", hint=_HINT)
