"""What a run used, from its own records: the ranks' peaks of memory and use of GPUs, its launches and its end."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from clusterrun.base.job import JobStatus, Outcome
from clusterrun.jobspec.fields import gres_gpus
from clusterrun.records import launches, progress, run_record
from clusterrun.records.progress import Gpu, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.report.card import Efficiency, Usage, learn
from clusterrun.run_folder.launches import load
from clusterrun.state.reconcile import RunState, recorded_end

LEARNED = 5  # runs of the same job
_LOOKED_AT = 20  # runs of the same name; some may not have ended
_LAUNCHES = 8  # of a run, the last ones
_GIB = {"K": 2**20, "M": 2**10, "": 2**10, "G": 1, "T": 1 / 2**10}  # units of --mem in a GiB


def efficiency_of(store: Store, state: RunState) -> Efficiency | None:
    """Return the card of a job that has run and ended, None for any other and for the tasks of an array in one row."""
    run, job = state.record, state.status
    if run is None or not job.is_over or job.tasks or run_record.newest_attempt(run, job.id.task) is None:
        return None
    usage = usage_of(run, job)
    return Efficiency(usage, learn(usage, earlier_usages(store, run) if usage.is_whole else ()))


def usage_of(run: RunRecord, job: JobStatus) -> Usage:
    """Return what a run's job used of what it asked for."""
    task = job.id.task
    folders = run_record.attempts(run, task)
    ranks = [progress.read_ranks(folder, progress.USED) for folder in folders[-_LAUNCHES:]]
    gpus = [rank.gpu for of_launch in ranks for rank in of_launch if rank.gpu is not None]
    return Usage(
        gpu_hours=_gpu_hours(run, job, folders),
        gpu_busy=_busy(gpus),
        gpu_memory_gib=max((gpu.peak_gib for gpu in gpus if gpu.peak_gib is not None), default=None),
        memory_gib=max(filter(None, map(_node_memory, ranks)), default=None),
        asked_memory_gib=_asked_memory(run),
        seconds=job.elapsed,
        asked_s=job.time_limit if run.option("time") else None,  # else it is the partition's
        is_whole=_is_whole(run, job, len(folders)),
        was_too_little=job.state == "OUT_OF_MEMORY",
    )


def earlier_usages(store: Store, run: RunRecord) -> list[Usage]:
    """Return what the last runs of the same job used: those of its name in its project that have ended."""
    usages: list[Usage] = []
    for other in _same_jobs(store, run):
        end = recorded_end(other)
        if end is not None and len(usages) < LEARNED - 1:
            usages.append(usage_of(other, end))
    return usages


def _same_jobs(store: Store, run: RunRecord) -> Iterator[RunRecord]:
    """Yield the other runs of this user with a run's name in its project, the newest first."""
    namesakes = [other for other in store.summaries(here=True) if other.name == run.name]
    namesakes.sort(key=attrgetter("age_key"), reverse=True)
    for summary in namesakes[:_LOOKED_AT]:
        other = run_record.load(summary.run_dir)
        if other is not None and other.mine and other.run_id != run.run_id:
            yield other


def _gpu_hours(run: RunRecord, job: JobStatus, folders: Sequence[Path]) -> float | None:
    """Return the GPU-hours of all starts of a job, by its attempts' folders.

    None if the number of GPUs or the time is not known, or without GPUs.
    """
    each = run.option("gpus-per-node")
    if gres := run.option("gres"):
        each = gres_gpus(str(gres))
    of_job = launches.until_now([*map(load, folders)], (), None)
    seconds = max(launches.allocated_seconds(of_job) or 0, job.elapsed or 0)  # the launches' time is without the setup
    if type(each) is not int or not each or not seconds:
        return None
    spare = run.option("spare-nodes")
    nodes = run.nodes + (spare if type(spare) is int else 0)
    return nodes * each * seconds / 3600


def _asked_memory(run: RunRecord) -> float | None:
    """Return the ``--mem`` of a run in GiB; None if it has none, or all of a node's."""
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", str(run.option("mem") or "").upper(), re.ASCII)
    return int(match[1]) / _GIB[match[2]] or None if match else None


def _busy(gpus: Iterable[Gpu]) -> float | None:
    """Return the part of the time in which the GPUs worked: the mean of all samples of all ranks."""
    busy, samples = 0.0, 0.0
    for gpu in gpus:
        if gpu.mean_use is not None and gpu.samples is not None:
            busy, samples = busy + gpu.samples * gpu.mean_use, samples + gpu.samples
    return busy / samples / 100 if samples > 0 else None


def _node_memory(ranks: Sequence[RankProgress]) -> float | None:
    """Return the most memory that a node of a launch held, of the whole job if that is known, else of its ranks."""
    of_job = [rank.node_memory_peak_gib for rank in ranks if rank.node_memory_peak_gib is not None]
    if of_job:
        return max(of_job)
    by_node = defaultdict[str, float](float)
    for rank in ranks:
        by_node[rank.node] += rank.memory_peak_gib or 0
    return max(by_node.values(), default=None)


def _is_whole(run: RunRecord, job: JobStatus, attempts: int) -> bool:
    """Return whether a run completed in one start, which then took as long as the next one will.

    A task of an array says nothing of the next array: others of its tasks may need more.
    """
    if job.id.task is not None or run.option("total-time"):
        return False
    return job.outcome is Outcome.DONE and attempts == 1 and len(run.submissions) == 1
