"""The versions that the nodes of a run should share."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

DRIVER = Path("/proc/driver/nvidia/version")


def find_versions() -> dict[str, str]:
    """Return the versions of Python, torch, NCCL and the NVIDIA driver of this node; empty texts for what is absent."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nccl": _nccl(),
        "driver": _driver(DRIVER),
    }


def _nccl() -> str:
    try:
        found = torch.cuda.nccl.version() if torch.version.cuda else ()  # type: ignore[no-untyped-call]
    except Exception:  # a torch without NCCL
        return ""
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)


def _driver(file: Path) -> str:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", file.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
