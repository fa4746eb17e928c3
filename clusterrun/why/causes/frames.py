"""Find the frame of a traceback that is in the user's code."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: packages that only start other code
_STARTERS = frozenset(("torch", "accelerate", "hydra", "click", "typer", "fire", "absl", "submitit", "ray"))
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>\w+)")
_LIBRARY_FILE = re.compile(r"/(?:site|dist)-packages/(?P<file>(?!torch/)\w.*)")
#: what a frame shows to be done -> how the sentence of a cause says it
_ACTIVITIES = (
    (re.compile(r'/filelock/_\w+\.py", line \d+, in acquire$'), "the process was waiting for a file lock (filelock)"),
    (
        re.compile(
            r", in (?:_?save_checkpoint\w*|save_pretrained|_?save_model|save_state_dict|_?save_zero_checkpoint)$"
            r"|/torch/serialization\.py\", line \d+, in _?save$"
        ),
        "a checkpoint or a model was being saved",
    ),
    (
        re.compile(r", in (?:_?load_(?:sharded_)?(?:optimizer_|model_)?state_dict|_?load_checkpoint\w*)$"),
        "a checkpoint was being loaded",
    ),
    (
        re.compile(r'/torch/nn/parallel/distributed\.py", line \d+, in __init__$'),
        "DistributedDataParallel was being set up",
    ),
    (re.compile(r'/datasets/(?:builder|arrow_writer)\.py", line'), "the datasets cache was being written"),
)
_NOT_OWN = re.compile(  # Cython's files are named by their path in the sources of a library
    r"^<|\.(?:pyx|pxi)$|(?:site|dist)-packages|/bin/[\w-]+$|/lib(?:64)?/python\d|/clusterrun/worker/"
)
_WEB = re.compile(r"/(?:urllib3?|http|requests|httpx|httpcore|aiohttp|huggingface_hub|botocore)/|/torch/hub\.py$")


def is_own(file: str) -> bool:
    """Return whether a frame is in the user's code, not in a library, a library's command or the interpreter."""
    return _NOT_OWN.search(file) is None


def is_web_library(file: str) -> bool:
    """Return whether a frame is in a library for requests to the internet."""
    return _WEB.search(file) is not None


def find_package(file: str) -> str:
    """Return the package of a frame's file, ``Python`` for the standard library, empty for the user's code."""
    return find_library(file) or ("" if is_own(file) else "Python")


def find_place(frames: Sequence[tuple[str, str]]) -> str:
    """Return file:line of the user's innermost frame, else of the library whose module or command was started."""
    own = [frame for frame in frames if is_own(frame[0])]
    file, number = (own or _of_started_package(frames) or frames)[-1]
    return f"{file}:{number}"


def _of_started_package(frames: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the frames of the outermost package that does not only start other code."""
    packages = [find_library(file) for file, _ in frames]
    for started in packages:
        if started and started not in _STARTERS:
            return [frame for frame, package in zip(frames, packages, strict=True) if package == started]
    return []


def find_library(file: str) -> str:
    """Return the installed package of a frame's file; empty if it is in none."""
    package = _PACKAGE.search(file)
    return package["name"] if package else ""


def find_activity(frame: str) -> str:
    """Return what the program was doing according to a frame's line, empty if unknown."""
    for pattern, words in _ACTIVITIES:
        if pattern.search(frame):
            return words
    return ""


def format_origin(frame: tuple[str, str], source: str, place: str) -> str:
    """Return where a library raised an exception, with the source line; empty for the user's code, torch and Python."""
    library = _LIBRARY_FILE.search(frame[0])
    if library is None:
        return ""
    raised = f"raised in {library['file']}:{frame[1]}"
    if place == f"{frame[0]}:{frame[1]}":
        raised = ""
    if source.startswith(("raise", "File ")) or not source.strip("^~ "):
        return raised
    shown = source[:120]
    if shown.endswith("("):
        shown += "…)"
    return f"{raised}: {shown}" if raised else f"raised by {shown}"
