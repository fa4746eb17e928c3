"""Check the target of --notify before a run is submitted. Messages show no address: it may be a secret."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from clusterrun.errors import CommandError, RequestError
from clusterrun.system import shell

_HINT = "give a webhook (https://…), an address of apprise, or a command"
_NO_APPRISE, _REFUSED = 3, 4
_APPRISE = f"""
import sys
try:
    import apprise
except ImportError:
    sys.exit({_NO_APPRISE})
sys.exit(0 if apprise.Apprise().add(sys.stdin.read()) else {_REFUSED})
"""


def check_target(target: str, python: str, environ: Mapping[str, str], workdir: Path) -> None:
    """Check what worker/notify.py will send events to: a webhook, an address of apprise, or a command.

    ``python`` is the job's Python, which needs apprise; ``workdir`` is where the command runs. Raises RequestError.
    """
    scheme, separator, _ = target.partition("://")
    if not separator or " " in scheme:
        _check_command(target, environ, workdir)
    elif scheme in ("http", "https"):
        try:
            host = urlsplit(target).hostname
        except ValueError:
            host = None
        if not host:
            raise RequestError(f"--notify: the {scheme}:// address has no host", hint=_HINT)
    else:
        _check_apprise(target, scheme, python, environ)


def _check_command(target: str, environ: Mapping[str, str], workdir: Path) -> None:
    try:
        first = shlex.split(target)[0]
    except (ValueError, IndexError) as error:
        raise RequestError(f"--notify: not a command line: {error}", hint="--notify 'command --option …'") from None
    name = str(workdir / first) if "/" in first else first
    if shutil.which(name, path=environ.get("PATH")) is None:
        what = "neither an address nor a command" if ":" in first else f"no such command: {first}"
        raise RequestError(f"--notify: {what}", hint=_HINT)


def _check_apprise(target: str, scheme: str, python: str, environ: Mapping[str, str]) -> None:
    clean, _ = shell.scrub(environ)
    try:
        # on stdin: other users can list the arguments of processes
        status = shell.run([python, "-c", _APPRISE], env=clean, cwd=Path("/"), stdin=target).status
    except CommandError:
        return  # the job's Python is checked elsewhere
    if status == _NO_APPRISE:
        hint = f"{shlex.quote(python)} -m pip install apprise   (http:// and https:// work without it)"
        raise RequestError(f"--notify: {scheme}:// needs apprise, which {python} does not have", hint=hint)
    if status == _REFUSED:
        raise RequestError(f"--notify: apprise does not accept this {scheme}:// address", hint=_HINT)
