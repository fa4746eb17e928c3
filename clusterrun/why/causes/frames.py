"""Find the frame of a traceback that is in the user's code."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: packages that only start other code
_STARTERS = frozenset(("torch", "accelerate", "hydra", "click", "typer", "fire", "absl", "submitit", "ray"))
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>\w+)")
_WEB = re.compile(r"/(?:urllib3?|http|requests|httpx|httpcore|aiohttp|huggingface_hub|botocore)/|/torch/hub\.py$")


def is_own(file: str) -> bool:
    """Return whether a frame is in the user's code, not in a library, a library's command or the interpreter."""
    return not (
        file.startswith("<")
        or "site-packages" in file
        or "dist-packages" in file
        or re.search(r"/bin/[\w-]+$", file) is not None
        or re.search(r"/lib(?:64)?/python\d", file) is not None
        or "/clusterrun/worker/" in file
    )


def is_web_library(file: str) -> bool:
    """Return whether a frame is in a library for requests to the internet."""
    return _WEB.search(file) is not None


def find_place(frames: Sequence[tuple[str, str]]) -> str:
    """Return file:line of the user's innermost frame, else of the library whose module or command was started."""
    own = [frame for frame in frames if is_own(frame[0])]
    packages = [match["name"] if (match := _PACKAGE.search(file)) else "" for file, _ in frames]
    started = next((name for name in packages if name and name not in _STARTERS), "")
    its = [frame for frame, name in zip(frames, packages, strict=True) if started and name == started]
    file, number = (own or its or frames)[-1]
    return f"{file}:{number}"
