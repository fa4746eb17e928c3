"""The one error of the worker: a sentence for the user and an exit status."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkerError(Exception):
    """Something that ends this rank with one clear line and no traceback of ours.

    `status` is the exit status of the rank: 2 for a wrong request, else 1.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'X'?)` for the known word nearest to `word`, or an empty string."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""
