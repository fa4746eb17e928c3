"""How far a training has come, how long it still takes, and whether it ends before its job's time limit. Pure."""

from __future__ import annotations

from clusterrun.base.job import JobStatus
from clusterrun.base.units import format_left
from clusterrun.records.progress import Metrics

#: Seconds by which a training must miss its time limit to be warned of.
SHORT_S = 60.0
#: It must have run this part of its time limit by then, and so many seconds.
SURE_AFTER, SURE_AFTER_S = 0.05, 60.0

#: No time left is shown if the last step was so many seconds ago, and so many times as long as a step takes.
STUCK_S, STUCK_STEPS = 120.0, 10.0
#: A step that is done is known so many seconds later, at most: the supervisor looks at that pace.
KNOWN_AFTER_S = 5.0
LONGEST_S = 10 * 365 * 86_400.0


def seconds_left(figures: Metrics, now: float) -> float | None:
    """Return how long a training still takes at its mean speed, in seconds; None while that is not known."""
    if figures.steps is None or not figures.steps_per_second or figures.step > figures.steps:
        return None
    step_s = 1 / figures.steps_per_second
    since = max(0.0, now - figures.time) if figures.time is not None else 0.0
    left = (figures.steps - figures.step) * step_s - min(max(step_s, KNOWN_AFTER_S), since)
    is_stuck = since > max(STUCK_S, STUCK_STEPS * step_s)
    return max(0.0, left) if left < LONGEST_S and not is_stuck else None


def seconds_in_all(figures: Metrics) -> float | None:
    """Return how long all steps of a training take at its mean speed, in seconds; None if that is not known."""
    if not figures.steps or not figures.steps_per_second:
        return None
    seconds = figures.steps / figures.steps_per_second
    return seconds if seconds < LONGEST_S else None


def percent(figures: Metrics) -> str:
    """Return the part of a training that is done; empty if it is not known."""
    if not figures.steps or figures.step > figures.steps:
        return ""
    return f"{100 * figures.step // figures.steps} %"


def describe(figures: Metrics, now: float) -> str:
    """Return ``45 %, 2h 15m left``, or the part of it that is known."""
    done, left = percent(figures), seconds_left(figures, now)
    return done if not done or left is None or figures.step == figures.steps else f"{done}, {format_left(left)} left"


def missed_by(figures: Metrics, job: JobStatus, now: float) -> float | None:
    """Return by how many seconds a training will miss its job's time limit; None if it will not, or it is not clear."""
    left = seconds_left(figures, now)
    if left is None or job.time_limit is None or job.elapsed is None:
        return None
    missed = job.elapsed + left - job.time_limit
    is_sure = job.elapsed >= max(SURE_AFTER * job.time_limit, SURE_AFTER_S)
    return missed if is_sure and missed >= SHORT_S else None
