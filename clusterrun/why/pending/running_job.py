"""How a job stands that runs: since when, its last step and how long ago, and the ranks that have fallen silent."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.job import JobStatus
from clusterrun.records import progress
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler.slurm.hostlist import fold
from clusterrun.terminal.units import format_duration, format_time_and_offset, plural

#: Slurm's words for a job that is neither waiting nor simply running (squeue(1) 22.05 and 26.05, JOB STATE CODES).
STATES = {
    "CONFIGURING": "its nodes are chosen and are being made ready (powered up, say); it starts by itself",
    "COMPLETING": "it is ending: the last processes and the epilog are being waited for on its nodes",
    "SUSPENDED": "it is paused and keeps its nodes: another job goes first, or `scontrol suspend` was typed",
    "STOPPED": "its processes were stopped with SIGSTOP and keep their nodes",
    "RESIZING": "its number of nodes is being changed",
    "SIGNALING": "a signal is on its way to it",
    "STAGE_OUT": "its files are being copied out of the burst buffer",
    "REQUEUED": "it is going back into the queue",
    "REQUEUE_HOLD": "it is going back into the queue, on hold: `scontrol release {job}` lets it start",
    "REQUEUE_FED": "it is going back into the queue of another cluster of the federation",
    "SPECIAL_EXIT": "it went back into the queue, on hold, in a special state: `scontrol release {job}` lets it start",
    "RESV_DEL_HOLD": "it is on hold, as its reservation was deleted",
}
#: Seconds without a step after which a rank that still writes is said to stand still; an evaluation takes minutes.
_STILL = 300.0


def describe_running(job: JobStatus, run: RunRecord | None, now: float) -> list[str]:
    """What is known of a job that is neither waiting nor over, a sentence each."""
    said = [_since(job, now)]
    if job.state in STATES:
        said.append(STATES[job.state].replace("{job}", str(job.id)))
    elif job.state != "RUNNING":
        said.append(f"{job.state} is Slurm's own word; clusterrun does not know it")
    if run is None:
        return [*said, "there is no record of it here, so its steps are not known"]
    ranks = progress.ranks(run, job.id.task)
    return said + describe_training(progress.last_metrics(run), ranks, run.world_size, now)


def _since(job: JobStatus, now: float) -> str:
    text = f"{job.state} since {format_time_and_offset(job.started, now)}" if job.started else job.state
    if job.time_limit and job.started:
        left = format_duration(job.started + job.time_limit - now)
        text += f"; its time limit of {format_duration(job.time_limit)} ends it in {left}"
    return text + (f"; on {job.nodes}" if job.nodes else "")


def describe_training(metrics: Metrics | None, ranks: Sequence[RankProgress], world: int, now: float) -> list[str]:
    """The last step, and every rank that is missing, silent or standing still. Pure."""
    said = []
    if metrics is not None:
        loss = f", loss {metrics.loss:.4g}" if metrics.loss is not None else ""
        at = f", {format_duration(now - metrics.time)} ago" if metrics.time is not None else ""
        said.append(f"the last step written down is {metrics.step}{loss}{at}")
    elif not ranks:
        return ["its ranks have written nothing yet: no step, no progress record"]
    elif all(one.phase == "script" for one in ranks):
        said.append("it runs a script of the user's own, whose steps are not known")
    else:
        said.append("no step has been written down yet")
    if not ranks:
        return [*said, "its ranks keep no progress records, so whether one is silent could not be seen"]
    missing = sorted(set(range(world)) - {one.rank for one in ranks})
    if missing:
        said.append(f"{_ranks(missing)} not heard of, of {plural(world, 'rank')}")
    silent = [one for one in ranks if one.is_silent(now)]
    said += [
        f"rank {one.rank} on {one.node or 'an unknown node'} has been silent for {format_duration(now - one.time)}"
        f" (last: {one.phase or 'no phase'}{f', step {one.step}' if one.step is not None else ''})"
        for one in silent[:_SHOWN]
    ]
    if len(silent) > _SHOWN:
        rest = silent[_SHOWN:]
        said.append(f"and so {_ranks([o.rank for o in rest])}, on {fold(dict.fromkeys(o.node for o in rest))}")
    still = [one for one in ranks if one not in silent and one.stepped and now - one.stepped > _STILL]
    if still:
        longest = min(one.stepped for one in still if one.stepped)
        still_ranks = _ranks([one.rank for one in still])
        said.append(f"{still_ranks} alive but not moving: at one step for up to {format_duration(now - longest)}")
    if not (missing or silent or still):
        said.append(f"all {plural(world, 'rank')} {'has' if world == 1 else 'have'} been heard of lately")
    return said


_SHOWN = 4


def _ranks(numbers: Sequence[int]) -> str:
    many = len(numbers) > 1
    return f"rank{'s' if many else ''} {fold(str(n) for n in numbers).strip('[]')} {'are' if many else 'is'}"
