"""Suggest a longer time limit that the job's partition, or another one, allows."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from dataclasses import replace

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobStatus
from clusterrun.base.units import format_time_limit, parse_time_limit
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler.slurm.nodes import Partition, UserContext, closed
from clusterrun.why.causes import Cause
from clusterrun.why.ended.resubmit import submitted_option

_SAVE = (
    "save a checkpoint before the limit and resume from it later, as clusterrun's built-in tasks do with --total-time"
)


def with_longer_limit(
    cause: Cause, job: JobStatus, partitions: Sequence[Partition], run: RunRecord | None = None
) -> Cause:
    """Return the cause with a command for twice the time limit if a partition that the user may use allows that.

    Otherwise for the most that the job's partition allows; without a command if the job already had that.
    """
    own = _own_partition(job, partitions, run)
    if own is None:
        return cause
    most, had = own.time_limit, job.time_limit or _parse_limit(submitted_option(run, "time")) or own.given_time
    if not had:
        return cause
    wanted = 2 * had
    if most is None or wanted <= most:
        return replace(cause, command=_with_time(cause, wanted))
    bound = f"partition {own.name} allows at most {format_time_limit(most)}"
    other = _partition_that_allows(wanted, partitions)
    if other is not None:
        limit = other.time_limit
        allows = f"allows {format_time_limit(limit)}" if limit is not None else "has no time limit"
        advice = f"{bound}, but partition {other.name} {allows}: request more time in that partition, or {_SAVE}"
        return replace(cause, advice=advice, command=_with_time(cause, wanted, f" --partition {other.name}"))
    if most > had:
        return replace(cause, advice=f"{bound}; request that limit, or {_SAVE}", command=_with_time(cause, most))
    advice = f"{bound}, and no other partition that you may use allows {format_time_limit(wanted)}: {_SAVE}"
    return replace(cause, advice=advice, command="")


def _own_partition(job: JobStatus, partitions: Sequence[Partition], run: RunRecord | None) -> Partition | None:
    """Return the partition that the job ran in: the one that is named, else the default one."""
    name = job.partition or submitted_option(run, "partition")
    for partition in partitions:
        if partition.name == name or (not name and partition.default):
            return partition
    return None


def _partition_that_allows(seconds: int, partitions: Sequence[Partition]) -> Partition | None:
    """Return a partition that the user may use and that allows so long a job; the default one if it does."""
    user = UserContext(user=_user_name())
    long_enough = [one for one in partitions if one.time_limit is None or one.time_limit >= seconds]
    able = [one for one in long_enough if not (one.needs_reservation or closed(one, user))]
    return min(able, key=lambda one: not one.default, default=None)


def _with_time(cause: Cause, seconds: int, more: str = "") -> str:
    return cause.command.replace("--time LONGER", f"--time {format_time_limit(seconds)}{more}")


def _parse_limit(limit: str) -> int | None:
    try:
        return parse_time_limit(limit) if limit else None
    except ClusterrunError:
        return None


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
