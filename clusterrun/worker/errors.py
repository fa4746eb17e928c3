"""The worker's error class, a message for the user and an exit status; and a line in the job's error log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from ..base.errors import closest


class WorkerError(Exception):
    """Ends this rank with a one-line message and no traceback.

    `status` is the exit status of the rank: 2 for a bad request, else 1. `kind` and `values` say the same as data, for
    the end records: clusterrun/why/causes/recorded.py has a sentence for each kind.
    """

    def __init__(self, message: str, status: int = 1, kind: str = "", **values: object) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind or ("refused" if status == 2 else "worker")
        self.values = values


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'X'?)` for the known name nearest to `name`, or an empty string."""
    choice = closest(name, known)
    return f" (did you mean {choice!r}?)" if choice else ""


def say(text: str) -> None:
    """Print one line into the job's error log."""
    with suppress(OSError):
        print(f"clusterrun: {text}", file=sys.stderr, flush=True)
