"""The versions that the nodes of a run should share."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

DRIVER = Path("/proc/driver/nvidia/version")


def find_versions() -> dict[str, str]:
    """Return the versions of Python, torch, NCCL and the NVIDIA driver of this node; empty texts for what is absent."""
    return {
        "python": platform.python_version(),
        "torch": _torch(),
        "nccl": _nccl(),
        "driver": _driver(DRIVER),
    }


def find_packages() -> list[str]:
    """Return this Python's packages as `name==version`, sorted; only the names of folders are read."""
    found = set()
    for entry in sys.path:
        if not entry.endswith("-packages"):  # another folder may be the user's, and large
            continue
        with suppress(OSError):
            found |= {name for name in os.listdir(entry) if name.endswith((".dist-info", ".egg-info"))}
    pairs = (name.rpartition(".")[0].split("-")[:2] for name in found)
    return sorted("==".join([pair[0].lower().replace("_", "-"), *pair[1:]]) for pair in pairs)


def digest_packages(packages: list[str]) -> str:
    """Return a short text that differs if the packages do."""
    return hashlib.sha256("\n".join(packages).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _torch() -> str:
    if "torch" in sys.modules:  # perhaps only its stores
        return str(importlib.import_module("torch.version").__version__)
    with suppress(OSError, ImportError, ValueError):  # a single rank of a command loads no torch, and may have none
        found = importlib.util.find_spec("torch")
        if found is not None and found.origin:
            text = Path(found.origin).with_name("version.py").read_text()
            version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
            return version[1] if version else ""
    return ""


def _nccl() -> str:
    torch: Any = sys.modules.get("torch")
    try:
        found = torch.cuda.nccl.version() if torch.version.cuda else ()
    except Exception:  # no torch, or one without NCCL
        return ""
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)


def _driver(file: Path) -> str:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", file.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
