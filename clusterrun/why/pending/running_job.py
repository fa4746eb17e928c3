"""Describe a running job: its start, last step and loss, and the ranks without heartbeat or progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobStatus, log_paths
from clusterrun.base.units import clause, format_duration, format_time_and_offset, plural
from clusterrun.logs.ends import read_ends
from clusterrun.logs.files import Stream
from clusterrun.records import launches, progress, run_record
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import training_progress
from clusterrun.scheduler.slurm.hostlist import fold
from clusterrun.why.causes.last_lines import last_line_of_most
from clusterrun.why.causes.model import Line
from clusterrun.why.causes.nan_series import find_divergence, find_nan_start
from clusterrun.why.causes.table_launch import ONE_LAUNCHER

#: Slurm's states of a job that is active, but neither pending nor running (squeue(1) 22.05, 26.05, JOB STATE CODES).
STATES = {
    "CONFIGURING": "the job's nodes are allocated and are being prepared, for example powered up; no action is needed",
    "COMPLETING": "the job is ending: Slurm is waiting for the last processes and the epilog on the nodes",
    "SUSPENDED": "the job is suspended and keeps its nodes: another job has priority, or `scontrol suspend` was run",
    "STOPPED": "the job's processes were stopped with SIGSTOP; the job keeps its nodes",
    "RESIZING": "the job's number of nodes is being changed",
    "SIGNALING": "Slurm is sending a signal to the job",
    "STAGE_OUT": "the job's files are being copied out of the burst buffer",
    "REQUEUED": "the job is being requeued",
    "REQUEUE_HOLD": "the job is being requeued and held: `scontrol release {job}` lets it start",
    "EXPEDITING": "a node of the job failed, and Slurm is looking whether the job starts again before all others",
    "REQUEUE_FED": "the job is being requeued on another cluster of the federation",
    "SPECIAL_EXIT": "the job was requeued and held in a special state: `scontrol release {job}` lets it start",
    "RESV_DEL_HOLD": "the job is held because its reservation was deleted",
}
#: Seconds without a step after which a rank with a heartbeat counts as stuck; an evaluation takes minutes.
_STUCK = 300.0
#: Seconds without a step after which that is shown.
_STILL = 45.0
_SHOWN = 4
_READ = 64 * 1024, 512 * 1024  # bytes at both ends of each log


def describe_running(job: JobStatus, run: RunRecord | None, now: float) -> list[str]:
    """Describe a job that is neither pending nor ended, one sentence per line."""
    lines = [_since(job, now)]
    if job.state in STATES:
        lines.append(STATES[job.state].replace("{job}", str(job.id)))
    elif job.state != "RUNNING":
        lines.append(f"clusterrun does not recognize the state {job.state}")
    if run is None:
        return [*lines, "this job has no clusterrun record, so its training progress is unknown"]
    ranks = progress.ranks(run, job.id.task)
    lines += describe_training(progress.last_metrics(run), ranks, run.world_size, now, str(job.id))
    if apart := progress.separate_worlds(run, ranks):
        lines.append(f"{apart}; {ONE_LAUNCHER}")
    logs = list(_read_logs(run, job))
    words, repeated = last_line_of_most(logs)
    if repeated:
        lines.append(words)
    return [*lines, *_warn_of_loss(run, job, logs)]


def _warn_of_loss(run: RunRecord, job: JobStatus, logs: Sequence[tuple[Line, ...]]) -> list[str]:
    """Return a warning of a loss that is NaN, diverges or oscillates; nothing if it does not."""
    for log in logs:
        if loss := find_nan_start(log) or find_divergence(log):
            return [f"warning: {loss[1]} ({log[0].file})"]
    attempt = run_record.newest_attempt(run, job.id.task)
    warning = training_progress.load_warning(attempt) if attempt is not None else ""
    return [f"warning: {warning}"] if warning else []


def _read_logs(run: RunRecord, job: JobStatus) -> Iterator[tuple[Line, ...]]:
    """Yield the lines at both ends of each log of the job's last launch, as far as they can be read."""
    source, folders = launches.log_source(run, job.id), run_record.attempts_of(run, job.id)
    last_start = launches.log_start(folders[-1]) if len(folders) > 1 else None
    begins = last_start or source.begin
    for path, begin, stream in zip(log_paths(run.logs, job.id), begins, ("out", "err"), strict=True):
        try:
            ends = read_ends(
                path, cast("Stream", stream), world_size=run.world_size, begin=begin, owners=source.owners,
                sizes=_READ,
            )  # fmt: skip
        except (ClusterrunError, OSError):
            continue
        yield tuple(Line(path.name, number, line.rank, line.text) for number, line in ends.lines)


def _since(job: JobStatus, now: float) -> str:
    text = job.state
    if job.started:
        text += f" since {format_time_and_offset(job.started, now)}"
        if job.time_limit:
            left = format_duration(job.started + job.time_limit - now)
            text += f"; {left} left of its time limit of {format_duration(job.time_limit)}"
    return text + clause(job.nodes, "; on {}")


def describe_training(
    metrics: Metrics | None, ranks: Sequence[RankProgress], world: int, now: float, job: str
) -> list[str]:
    """Describe the last step and every rank that is missing, silent or stuck. Pure."""
    if metrics is None and not ranks:
        return ["the ranks have not recorded any step or progress yet"]
    lines = [_last_step(metrics, now)]
    if not ranks:
        return [*lines, "the ranks are not writing progress records, so silent ranks cannot be detected"]
    silent: list[RankProgress] = []
    moved: dict[int, float] = {}
    for one in ranks:
        last = one.advanced or one.stepped
        if one.is_silent(now):
            silent.append(one)
        elif last:
            moved[one.rank] = last
    wrong = [*_describe_missing(ranks, world), *_describe_silent(silent, now), *_describe_stuck(moved, now, job)]
    return [*lines, *(wrong or [f"{world} of {world} ranks responding{_since_progress(moved.values(), now, job)}"])]


def _describe_missing(ranks: Sequence[RankProgress], world: int) -> list[str]:
    missing = sorted(set(range(world)) - {one.rank for one in ranks})
    return [f"no heartbeat from {format_ranks(missing)} (of {plural(world, 'rank')})"] if missing else []


def _last_step(metrics: Metrics | None, now: float) -> str:
    if metrics is None:
        return "no step recorded yet"
    last = f"last recorded step: {metrics.step}"
    if metrics.loss is not None:
        last += f", loss {metrics.loss:.4g}"
    if metrics.time is not None:
        last += f", {format_duration(now - metrics.time)} ago"
    return last


def _describe_silent(silent: Sequence[RankProgress], now: float) -> list[str]:
    """Describe the ranks whose heartbeats are missing: the first ones each, the others together."""
    lines = []
    for one in silent[:_SHOWN]:
        last = f"last phase: {one.phase or 'unknown'}"
        if one.step is not None:
            last += f", step {one.step}"
        where = f"rank {one.rank} on {one.node or 'an unknown node'}"
        lines.append(f"{where}: no heartbeat for {format_duration(now - one.time)} ({last})")
    rest = silent[_SHOWN:]
    if rest:
        nodes = fold(dict.fromkeys(one.node for one in rest))
        lines.append(f"also no heartbeat from {format_ranks([one.rank for one in rest])} on {nodes}")
    return lines


def _describe_stuck(moved: Mapping[int, float], now: float, job: str) -> list[str]:
    """Describe ranks that have a heartbeat, but last ``moved`` too long ago."""
    stuck = [rank for rank, at in moved.items() if now - at > _STUCK]
    if not stuck:
        return []
    longest = format_duration(now - min(moved.values()))
    are, span = ("is", longest) if len(stuck) == 1 else ("are", f"up to {longest}")
    return [f"{format_ranks(stuck)} {are} alive but stuck: no new step or collective for {span}; {_stacks(job)}"]


def _since_progress(moved: Collection[float], now: float, job: str) -> str:
    """Return for how long no rank has advanced, if that is long enough to ask what the ranks do."""
    newest = max(moved, default=now)
    if now - newest < _STILL:
        return ""
    return f"; no new step or collective for {format_duration(now - newest)}: {_stacks(job)}"


def _stacks(job: str) -> str:
    return f"`clusterrun why {job} --stacks` shows where"


def format_ranks(numbers: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2,5``."""
    folded = fold(map(str, numbers))
    return f"ranks {folded.strip('[]')}" if folded.startswith("[") else f"rank {folded}"
