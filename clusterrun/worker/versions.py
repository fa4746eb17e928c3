"""The versions that the nodes of a run should share."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/version")


def find_versions() -> dict[str, str]:
    """Return the versions of Python, torch, NCCL and the NVIDIA driver of this node; empty texts for what is absent."""
    return {
        "python": platform.python_version(),
        "torch": importlib.import_module("torch.version").__version__,  # also if only torch's stores are loaded
        "nccl": _nccl(),
        "driver": _driver(DRIVER),
    }


def _nccl() -> str:
    torch = sys.modules["torch"]
    try:
        found = torch.cuda.nccl.version() if torch.version.cuda else ()
    except Exception:  # a torch without NCCL
        return ""
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)


def _driver(file: Path) -> str:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", file.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
