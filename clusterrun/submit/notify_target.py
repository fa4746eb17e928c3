"""Check the target of --notify before a run is submitted. Messages show no address: it may be a secret."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from clusterrun.base.errors import CommandError, RequestError
from clusterrun.jobspec.spec import JobSpec
from clusterrun.submit.job_python import JobPython

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
