"""Install this clusterrun on another host: in a virtual environment of its own, from a wheel made here."""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from clusterrun.base.errors import ClusterrunError, RequestError, SchedulerError
from clusterrun.remote.run import INSTALLED
from clusterrun.remote.ssh import Host

_PYTHONS = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
_USABLE = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
_TIMEOUT = 900.0
_NO_NETWORK = (
    "if pip on the login node has no network access, run `pip wheel -w wheels .` in a checkout of clusterrun on this"
    " machine, then try again with --wheels wheels"
)


def install(host: Host, python: str | None, wheels: Path | None, note: Callable[[str], None]) -> Iterator[str]:
    """Install clusterrun and yield lines about what was done; nothing is done if this wheel is installed.

    pip there downloads the dependencies; with ``wheels`` it takes them from that folder here. Raises RequestError if
    the host has no suitable Python, SchedulerError if pip fails.
    """
    name, wheel = make_wheel()
    mark = hashlib.sha256(wheel).hexdigest()
    place = f'"$HOME"/{INSTALLED}'
    if host.run(f"cat {place}/wheel.sha256").stdout.strip() == mark:
        yield f"clusterrun {name.split('-')[1]} is already installed on {host.name}, in ~/{INSTALLED}"
        return
    found = _find_python(host, python)
    note(f"installing clusterrun on {host.name} with {found}")
    _run(host, f"rm -rf {place}/wheels && mkdir -p {place}/wheels", "create the folder")
    sent = {name: wheel}
    if wheels is not None:
        sent |= {path.name: path.read_bytes() for path in sorted(wheels.glob("*.whl")) if path.name != name}
        if len(sent) == 1:
            hint = f"run `pip wheel -w {wheels} .` in a checkout of clusterrun"
            raise RequestError(f"no wheels in {wheels}", hint=hint)
    for file, data in sent.items():
        _run(host, f"base64 -d >{place}/wheels/{shlex.quote(file)}", f"copy {file}", base64.b64encode(data).decode())
    source = f"--no-index --find-links {place}/wheels" if wheels is not None else ""
    pip = f"{place}/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --force-reinstall"
    _run(host, f"{shlex.quote(found)} -m venv {place}", "create a virtual environment")
    _run(host, f"{pip} {source} {place}/wheels/{name}", "install clusterrun", hint=_NO_NETWORK if not source else "")
    _run(host, f"rm -rf {place}/wheels && echo {mark} >{place}/wheel.sha256", "finish the installation")
    yield f"Installed clusterrun {name.split('-')[1]} on {host.name}, in ~/{INSTALLED}, with {found}"
    yield f"  next    clusterrun --remote {host.name} list"


def _find_python(host: Host, python: str | None) -> str:
    for candidate in _PYTHONS if python is None else (python,):
        done = host.run(
            f"{shlex.quote(candidate)} -c {shlex.quote(_USABLE)} 2>/dev/null && type -P {shlex.quote(candidate)}"
        )
        if done.status == 0:
            return done.stdout.strip().splitlines()[-1]
    what = f"{python} on {host.name} is not" if python is not None else f"{host.name} has no"
    raise RequestError(
        f"{what} Python 3.11 or later with venv and pip",
        hint=f"run `clusterrun remote setup {host.name} --python PATH`; on that host, `module avail python` may list"
        " a suitable Python",
    )


def _run(host: Host, command: str, what: str, stdin: str | None = None, hint: str = "") -> None:
    done = host.run(command, stdin=stdin, timeout=_TIMEOUT)
    if done.status != 0:
        raise SchedulerError(f"cannot {what} on {host.name}", detail=done.stderr.strip()[-2000:], hint=hint)


_PACKAGE = Path(__file__).parents[1]
_WHEEL = "Wheel-Version: 1.0\nGenerator: clusterrun\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_TIME = (2020, 1, 1, 0, 0, 0)  # the same files make the same wheel


def make_wheel() -> tuple[str, bytes]:
    """Return the file name and content of a wheel. Raises ClusterrunError if clusterrun is not installed by pip."""
    try:
        installed = distribution("clusterrun")
    except PackageNotFoundError as error:
        hint = "install clusterrun with pip on this machine"
        raise ClusterrunError("this copy of clusterrun was not installed with pip", hint=hint) from error
    name = f"clusterrun-{installed.version}"
    files = {f"clusterrun/{path.relative_to(_PACKAGE)}": path.read_bytes() for path in sorted(_package_files())}
    info = {"METADATA": installed.read_text("METADATA"), "entry_points.txt": installed.read_text("entry_points.txt")}
    files |= {f"{name}.dist-info/{part}": (text or "").encode() for part, text in info.items()}
    files[f"{name}.dist-info/WHEEL"] = _WHEEL.encode()
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{name}.dist-info/RECORD"] = f"{record}{name}.dist-info/RECORD,,\n".encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, _TIME), data, zipfile.ZIP_DEFLATED)
    return f"{name}-py3-none-any.whl", content.getvalue()


def _package_files() -> list[Path]:
    return [path for path in _PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
