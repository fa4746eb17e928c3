"""How long a test waits before it calls something hung: much longer than a busy machine needs.

A bound on time only ends a test of something that hangs. No test measures speed; benchmarks/ does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds after which anything that answers at once on a quiet machine counts as hung.
HUNG = 300.0
#: Times as long as a quiet machine needs, for waits that name their own seconds.
PATIENCE = 4


def until(
    condition: Callable[[], Any], seconds: float = 30, what: Callable[[], str] | str = "it", pause: float = 0.02
) -> Any:
    """The first true answer of a condition; fails, saying `what`, after PATIENCE times so many seconds."""
    deadline = time.monotonic() + PATIENCE * seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE * seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(pause)
    return answer
