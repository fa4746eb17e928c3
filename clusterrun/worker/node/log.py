"""The lines of clusterrun itself in the job's error log."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Print one line into the job's error log."""
    with suppress(OSError, ValueError):  # a full disk, or a closed stream
        print(f"clusterrun: {text}", file=sys.stderr, flush=True)
