"""What a training script may report about its progress. It imports nothing, so that scripts can afford it."""

from __future__ import annotations

import sys

_WORKER = "_clusterrun_worker.progress"  # the worker's module in a process that it runs a script in


def heartbeat(step: int) -> None:
    """Report the step that a script has reached: `status` shows it, and the watchdog sees that the script advances.

    It costs one assignment, and does nothing outside of a clusterrun job. It is optional: the collectives of the
    script's process groups show its progress too.
    """
    worker = sys.modules.get(_WORKER)
    if worker is not None:
        worker.here.step = int(step)
