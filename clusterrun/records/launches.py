"""The launches of a run, the starts of its ranks: when each ran, why it failed, and what that cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterrun.base.job import JobId, log_paths
from clusterrun.records import progress, run_record
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord, attempts_of, submission_of
from clusterrun.run_folder import files
from clusterrun.run_folder.launches import BY_SIGTERM, LAUNCH, STEPS, Launch, load

if TYPE_CHECKING:
    from clusterrun.logs.files import Source


_STEPS_OF = attrgetter(*STEPS)


class Goodput(NamedTuple):
    """The seconds of the steps that count, the seconds that the job was allocated, and what its restarts cost of them.

    ``lost_s`` is None if it is not known.
    """

    useful_s: float
    allocated_s: float
    restarts: int
    lost_s: float | None

    @property
    def share(self) -> float:
        """Return the useful part of the allocated time."""
        return max(0.0, min(1.0, self.useful_s / self.allocated_s))


def load_launches(run: RunRecord, task: int | None = None) -> list[Launch]:
    """Return the launches of a run's job and of those before it, oldest first; of an array those of a task."""
    found = [load(folder) for folder in run_record.all_attempts(run, task)]
    timed_out = {one.token for one in run.submissions if (one.final or {}).get("state") == "TIMEOUT"}
    last = {launch.token: at for at, launch in enumerate(found)}  # the launch that a job's end ended
    for at in (last[token] for token in timed_out & last.keys()):
        if found[at].cause == BY_SIGTERM:
            found[at] = found[at]._replace(cause="the time limit")
    return found


def log_start(folder: Path) -> tuple[int, int] | None:
    """Return the bytes in both logs when the launch of an attempt's folder began; None if it recorded none."""
    from clusterrun.logs import files as log_files  # `status` reads no log

    if (recorded := log_files.log_start(folder)) is not None:  # of the first launch of a start
        return recorded
    match (files.read_json(folder / LAUNCH) or {}).get("log_start"):
        case [int(out), int(err)] if min(out, err) >= 0:
            return out, err
    ticks = log_files.clock_ticks([folder])
    return ticks[0][1:] if ticks else None


def until_now(launches: Sequence[Launch], ranks: Sequence[RankProgress], now: float | None) -> list[Launch]:
    """Return the launches with an end and steps for those that recorded none.

    The last one of a running job has run until ``now`` (seconds since 1970, None if the job does not run), with these
    heartbeats of its ``ranks``. The supervisor of another was killed: it ends with its last heartbeat.
    """
    return [_with_end(launch, ranks, now if launch is launches[-1] else None) for launch in launches]


def _with_end(launch: Launch, ranks: Sequence[RankProgress], now: float | None) -> Launch:
    """Return a launch that recorded no end with one, and with the steps in rank 0's heartbeat."""
    if launch.began is None or launch.ended is not None:
        return launch
    if now is None:
        ranks = progress.read_ranks(launch.folder)
        now = max((rank.time for rank in ranks), default=launch.began)
    launch = launch._replace(ended=now)
    for rank in ranks:
        if rank.rank == 0 and rank.step is not None:
            launch = launch._replace(**dict(zip(STEPS, _STEPS_OF(rank), strict=True)))
    return launch


def failed_launches(launches: Sequence[Launch]) -> list[str]:
    """Return why each launch failed after which the same job started its ranks again, oldest first."""
    return [one.cause or "unknown" for one, after in pairwise(launches) if one.start == after.start]


def lost_seconds(launches: Sequence[Launch]) -> list[float | None]:
    """Return what the restarts cost of each launch, in seconds; None where that is not known.

    That is a launch without a step that is followed by another; the time after its last step, if it is; and after a
    restart the time until its first step, and the steps that it repeated. Nothing is known of a script whose steps
    nothing says.
    """
    if not any(launch.first_step_at for launch in launches):
        return [0.0] if len(launches) == 1 else [None for _ in launches]
    lost: list[float | None] = []
    before: Launch | None = None  # the last launch that made steps
    for launch in launches:
        costs = _costs(launch, before, is_followed=launch is not launches[-1])
        lost.append(None if None in costs else max(0.0, sum(filter(None, costs))))
        if launch.first_step_at is not None:
            before = launch
    return lost


def _costs(launch: Launch, before: Launch | None, *, is_followed: bool) -> list[float | None]:
    """Return what was lost of a launch, part by part; ``before`` is the last one before it that made steps."""
    if launch.first_step_at is None:
        return [_seconds(launch.began, launch.ended)]
    costs: list[float | None] = []
    if before is not None:
        costs += [_seconds(launch.began, launch.first_step_at), _repeated(before, launch)]
    if is_followed:
        costs.append(_seconds(launch.stepped, launch.ended))
    return costs


def _seconds(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else until - since


def _repeated(before: Launch, launch: Launch) -> float | None:
    """Return the seconds of the steps that a launch made once more."""
    if before.step is None or launch.first_step is None:
        return None
    steps = before.step - launch.first_step + 1
    if steps <= 0:
        return 0.0
    pace = before.step_s or launch.step_s  # a short launch has none
    return None if pace is None else steps * pace


def goodput(launches: Sequence[Launch], metrics: Metrics | None) -> Goodput | None:
    """Return the goodput of a run by its launches, each with an end (``until_now``); None if it is not known."""
    allocated = allocated_seconds(launches)
    if metrics is None or metrics.trained_s is None or not allocated:
        return None
    lost = lost_seconds(launches)
    cost = None if None in lost else sum(filter(None, lost))
    useful = metrics.trained_s + _seconds_since(metrics, launches[-1])
    return Goodput(useful, allocated, len(launches) - 1, cost)


def allocated_seconds(launches: Sequence[Launch]) -> float | None:
    """Return the seconds of all starts of the job, each from its first launch to its last; None if one is not known."""
    total = 0.0
    for _, group in groupby(launches, key=lambda launch: launch.start):
        of_start = [*group]
        began, ended = of_start[0].began, of_start[-1].ended
        if began is None or ended is None:
            return None
        total += max(0.0, ended - began)
    return total


def _seconds_since(metrics: Metrics, newest: Launch) -> float:
    """Return the seconds of the steps since the newest row of metrics."""
    if newest.step is None or newest.step_s is None:
        return 0.0
    return max(0.0, (newest.step - metrics.step) * newest.step_s)


def log_source(run: RunRecord, job: JobId) -> Source:
    """Return the logs of a run's job or task; of my run the files must be mine or root's, else the run owner's."""
    from clusterrun.logs.files import Source  # `list` and `status` read no log

    owners = frozenset({os.getuid(), 0} if run.mine else {run.owner})
    return Source(*log_paths(run.logs, job), world_size=run.world_size, begin=log_begin(run, job), owners=owners)


def timed_log_source(run: RunRecord, job: JobId) -> Source:
    """Return ``log_source`` with the log clock, which says in which order the lines of both files were written."""
    from clusterrun.logs.files import read_ticks

    source = log_source(run, job)
    return replace(source, ticks=read_ticks(attempts_of(run, job), log_paths(run.logs, job), source.begin))


def log_begin(run: RunRecord, job: JobId) -> tuple[int, int]:
    """Return the offsets in both logs where the run's lines begin; a job with a reused id appends to older logs.

    The sizes seen at submit come first: a node may write a line before the script records the sizes.
    """
    from clusterrun.logs import files as log_files

    submission, folders = submission_of(run, job), attempts_of(run, job)
    recorded = next(map(log_files.log_start, folders), None) or (0, 0)
    seen = submission.log_start if job.task == submission.task else (-1, -1)
    return seen[0] if seen[0] >= 0 else recorded[0], seen[1] if seen[1] >= 0 else recorded[1]
