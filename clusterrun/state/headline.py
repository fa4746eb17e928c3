"""What matters about a job now, in one line: the first of `status` and `top`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clusterrun.base.job import JobStatus, Outcome
from clusterrun.base.units import format_age, format_duration, plural
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.state import time_left

#: Per cent of its time in which a GPU works at least, if it is not idle.
IDLE = 5.0
_PHASES = {"script": "running", "": "running"}  # others are named as they are
_ENDS = {Outcome.DONE: "done", Outcome.UNKNOWN: "its end is not known", Outcome.LOST: "lost"}


def of_job(
    job: JobStatus, figures: Metrics | None = None, ranks: Sequence[RankProgress] = (), *, now: float, first: str = ""
) -> str:
    """Return the line; ``first`` is the first cause of an end, if it is known."""
    if job.is_over:
        return _ended(job, first)
    if job.state == "PENDING":
        return f"waiting: {job.reason}" if job.reason else "waiting"
    if job.state != "RUNNING":
        return job.state.lower()
    return _silent(ranks, now) or _working(figures, ranks, now)


def _ended(job: JobStatus, first: str) -> str:
    how = _ENDS.get(job.outcome, job.outcome.value)
    if job.elapsed and job.outcome is not Outcome.LOST:
        how += f" after {format_duration(job.elapsed)}"
    return f"{how}: {first}" if first else how


def _silent(ranks: Sequence[RankProgress], now: float) -> str:
    """Return which ranks no longer write heartbeats; empty if all do."""
    silent = sorted((rank for rank in ranks if rank.is_silent(now)), key=lambda rank: rank.time)
    if not silent:
        return ""
    oldest = silent[0]
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    count = f"{len(silent)} of {plural(len(ranks), 'rank')}"
    return f"{count} silent for {format_age(now - oldest.time)}: rank {oldest.rank} on {oldest.node}{more}"


def _working(figures: Metrics | None, ranks: Sequence[RankProgress], now: float) -> str:
    phases = Counter(_PHASES.get(rank.phase, rank.phase) for rank in ranks)
    phase = phases.most_common(1)[0][0] if phases else "running"
    done = time_left.describe(figures, now) if figures is not None else ""
    line = ", ".join(filter(None, (phase, done)))
    return "; ".join(filter(None, (line, _steps(ranks), _idle(ranks))))


def _steps(ranks: Sequence[RankProgress]) -> str:
    """Return the step at which the ranks are, by their heartbeats, which are seconds old."""
    steps = [rank.step for rank in ranks if rank.step is not None]
    if len(steps) < 2:
        return ""
    least, most = min(steps), max(steps)
    who = f"all {len(steps)} ranks" if len(steps) == len(ranks) else f"{len(steps)} of {plural(len(ranks), 'rank')}"
    return f"{who} at step {most:,}" if least == most else f"{who} at steps {least:,} to {most:,}"


def _idle(ranks: Sequence[RankProgress]) -> str:
    """Return how many GPUs do nothing, of those whose use is known."""
    uses = [rank.gpu.use for rank in ranks if rank.gpu is not None and rank.gpu.use is not None]
    idle = sum(use < IDLE for use in uses)
    return f"{idle} of {plural(len(uses), 'GPU')} idle" if idle else ""
