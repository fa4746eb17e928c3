"""A question to Slurm by a command that goes on: what another window has just heard will do, where it is as good."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from clusterrun.job import JobId
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.kept import Kept

#: Seconds since its question was begun for which an answer serves other windows.
FRESH = 10.0
#: Seconds by which the clocks of two file systems may differ, so that an answer seems younger than it is.
SKEW = 2.0
#: Seconds for which an answer to another window is waited for, before asking beside it.
PATIENCE = 5.0
_LOOK = 0.1


def ask(
    scheduler: Scheduler, ids: Collection[JobId], since: float, *, sleep: Callable[[float], None] = time.sleep
) -> tuple[Answer, float]:
    """All of my jobs, and the age in seconds of that answer: 0 where it was asked for now.

    Another window's answer is taken only where none of the ids is missing from it or over in it, and where its question
    was begun after ``since``, the epoch second of what files told last (infinite: it is asked for in any case). Whoever
    asks at this moment is waited for, never for long.
    """
    kept: Kept | None = getattr(scheduler, "kept", None)
    if kept is None or math.isinf(since):
        return scheduler.query(), 0.0
    waited = 0.0
    while (known := _known(kept, ids, since)) is None and not kept.take_turn() and waited < PATIENCE:
        sleep(_LOOK)
        waited += _LOOK
    try:
        # whoever had the turn before may have been answered while it was being taken
        known = known or _known(kept, ids, since)
        return known or (scheduler.query(), 0.0)
    finally:
        kept.end_turn()


def _known(kept: Kept, ids: Collection[JobId], since: float) -> tuple[Answer, float] | None:
    heard = kept.heard()
    if heard is None or heard.age >= FRESH or heard.begun - SKEW <= since:
        return None
    wanted = {one.base for one in ids}
    rows = [job for job in heard.jobs if job.id.base in wanted]
    if {job.id.base for job in rows} != wanted or any(job.is_over for job in rows):
        return None
    return Answer(heard.jobs), heard.age
