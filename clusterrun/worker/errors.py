"""The worker's error, a hint for a misspelt word, and a line in the job's error log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from ..base.errors import WorkerError, closest

__all__ = ["WorkerError", "nearest", "say"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'X'?)` for the known name nearest to `name`, or an empty string."""
    choice = closest(name, known)
    return f" (did you mean {choice!r}?)" if choice else ""


def say(text: str) -> None:
    """Print one line into the job's error log."""
    with suppress(OSError):
        print(f"clusterrun: {text}", file=sys.stderr, flush=True)
