"""Make a wheel of the clusterrun that runs: the files of its package, and what its installation says of it."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from clusterrun.base.errors import ClusterrunError

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
