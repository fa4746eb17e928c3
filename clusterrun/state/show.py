"""Format the state of a job as a table row, as JSON and as lines. ``ui`` escapes untrusted text when it prints."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from pwd import getpwuid
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterrun.base.job import JobStatus, Outcome, log_paths, task_count
from clusterrun.base.units import format_age, format_duration, plural
from clusterrun.records import end_records, progress, run_record
from clusterrun.records.launches import failed_launches, load_launches
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.run_folder.safe_files import user_name
from clusterrun.scheduler.slurm.squeue import EXTRA_FIELDS
from clusterrun.state import launches, reconcile
from clusterrun.state.filters import submitted
from clusterrun.state.reconcile import RunState
from clusterrun.terminal.tables import Column

if TYPE_CHECKING:
    from clusterrun.scheduler.slurm.reasons import Reason

SLOW = 0.7  # of the median speed: a slow rank
FEWEST = 3  # ranks: of two, neither is the usual one
SHORTEST_S = 0.010  # per step: below, a rank is slowed by anything
SHOWN = 4  # ranks in a line
STATE_COLUMNS = ("JOBID", "NAME", "STATE", "TIME", "LIMIT", "NODES", "REASON")
#: The columns of `list`; ``leaves`` is the order in which they are left out on a narrow terminal.
LIST_COLUMNS = (
    Column("JOBID", least=17), Column("NAME", least=8), Column("STATE"), Column("TIME", leaves=9, right=True),
    Column("LIMIT", leaves=5, right=True), Column("NODES", least=8, leaves=8),
    Column("RESTARTS", leaves=4, right=True), Column("STEP", leaves=7, right=True),
    Column("LOSS", leaves=6, right=True), Column("TOKENS/S", leaves=3, right=True), Column("PARTITION", leaves=2),
    Column("SUBMITTED", leaves=1), *(Column(field.heading, leaves=1) for field in EXTRA_FIELDS if field.heading),
    Column("REASON", least=10),
)  # fmt: skip
_OF_JOB = ("state", "reason", "exit_status", "partition", "nodes", "node_count", "restarts", "submitted", "ended",
           "elapsed", "time_limit", "source")  # fmt: skip
#: What a job without a record has in their place; the values are those of a run of which nothing is known.
_NO_RUN: dict[str, Any] = {
    "run_id": None, "run_dir": None, "failed_launches": [], "metrics": None, "logs": [], "sources": {},
}  # fmt: skip
_OF_RANK = ("rank", "node", "phase", "step", "steps", "time", "step_s", "data_s", "compute_s")
#: A longer list of array tasks is shown as their number.
_LONGEST_LIST = 16


def state_json(state: RunState) -> dict[str, Any]:
    """Return a job's state for ``--json``; times in epoch seconds, durations in seconds."""
    job, run = state.status, state.record
    return {
        "job_id": None if state.is_unsubmitted else str(job.id),
        **{name: getattr(job, name) for name in _OF_JOB},
        "name": state.name,
        "outcome": job.outcome.value,
        "cluster": state.cluster,
        "scheduler": state.scheduler,
        "user": state.user,
        **{field.key: dict(job.extra).get(field.key) for field in EXTRA_FIELDS},
        "tasks": job.tasks or None,
        "task_count": task_count(job),
        "started": job.started if job.state != "PENDING" else None,
        "as_of": state.as_of,
        "note": state.note,
        **(_run_json(run, job) if run is not None else _NO_RUN),
    }


def _run_json(run: RunRecord, job: JobStatus) -> dict[str, Any]:
    """Return what only a run has; ``failed_launches`` is why each failed after which its ranks were started again."""
    figures = reconcile.figures(run)
    return {
        "run_id": run.run_id,
        "run_dir": str(run.run_dir),
        "failed_launches": failed_launches(load_launches(run, job.id.task)),
        "metrics": figures and figures._asdict(),
        "logs": list(map(str, _logs(run, job))),
        "sources": {name: {"value": value, "source": source} for name, (value, source) in run.sources.items()},
    }


def status_json(state: RunState) -> dict[str, Any]:
    """Return the same with the run's ranks and launches, its first failure, its process group and the reason's meaning.

    The times of a rank are medians over its last steps, in seconds; ``speed`` is a fraction of the median speed.
    """
    reason, ranks = _reason(state.status), _ranks(state)
    runs = launches.launches_of(state, ranks, time.time())
    goodput = launches.goodput_of(state, runs)
    return {
        **state_json(state),
        "reason_meaning": reason.meaning if reason else None,
        "reason_action": reason.what_to_do(str(state.status.id)) if reason else None,
        "ranks": [
            {name: getattr(rank, name) for name in _OF_RANK}
            | {"wait_s": wait_seconds(rank), "own_world": rank.own_world or None}
            for rank in ranks
        ],
        "slow_ranks": [{"rank": one.rank, "node": one.node, "speed": speed} for one, speed in find_stragglers(ranks)],
        "earlier_jobs": [str(job) for job in state.others],
        "launches": launches.launches_json(runs),
        "goodput": goodput and {"share": goodput.share, **goodput._asdict()},
        "first_failure": _first_failure(state),
        "joined_group": _joined_group(state),
    }


def state_row(state: RunState) -> list[str]:
    """Return a job's state as a row of ``STATE_COLUMNS``."""
    job = state.status
    return [
        handle(state),
        state.name,
        _word(job),
        format_duration(job.elapsed) if job.elapsed is not None else "",
        format_duration(job.time_limit) if job.time_limit else "",
        job.nodes or (f"({job.node_count})" if job.node_count else ""),
        _why(state),
    ]


def list_row(state: RunState) -> list[str]:
    """Return a job's state as a row of ``LIST_COLUMNS``."""
    *first, reason = state_row(state)
    at = submitted(state)
    return [
        *first,
        str(state.status.restarts or ""),
        *_figure_cells(state),
        state.status.partition,
        _local_time(at, "%m-%d %H:%M") if at else "",
        *(dict(state.status.extra).get(field.key, "") for field in EXTRA_FIELDS if field.heading),
        reason,
    ]


def _figure_cells(state: RunState) -> tuple[str, str, str]:
    """Return the last step, loss and speed of a run; empty for the tasks of an array, which share a row."""
    figures = _figures(state)
    if figures is None or state.status.tasks:
        return "", "", ""
    speed = figures.tokens_per_second
    return str(figures.step), _figure(figures.loss), "" if speed is None else f"{speed:,.0f}"


def handle(state: RunState) -> str:
    """Return what to type for a job: its id, or its run id while it has none; of array tasks also which."""
    run, job = state.record, state.status
    if run is not None and state.is_unsubmitted:
        return run.run_id
    if not job.tasks:
        return str(job.id)
    count = task_count(job)
    several = job.tasks if len(job.tasks) <= _LONGEST_LIST or count is None else f"{count} tasks"
    return f"{job.id}_[{several}]"


def state_lines(state: RunState, *, explain: bool = False, first: str = "") -> list[str]:
    """Return a job's state in full, a line per fact; with ``explain`` also each option and where it was set.

    ``first`` is the first cause of an end, if known.
    """
    from clusterrun.records.code_store import code_line  # `list` shows none

    job, run, now, ranks = state.status, state.record, time.time(), _ranks(state, progress.SUMMARY)
    found = launches.launches_of(state, ranks, now)
    row = dict(zip(STATE_COLUMNS, state_row(state), strict=True))
    facts = {
        "job": f"{row['JOBID']}  {row['NAME']}",
        "also": _also(state),
        "state": row["STATE"] + (f"  exit status {job.exit_status}" if job.exit_status else ""),
        "outcome": job.outcome.value if job.is_over else "",
        "reason": _explained_reason(state, row["REASON"]),
        "nodes": row["NODES"],
        **dict(job.extra),
        "held": launches.held_line(state),
        "attempt": _attempt(job),
        "launch": launches.launch_line(found),
        "time": row["TIME"] + (f" of {row['LIMIT']}" if row["LIMIT"] else ""),
        **_moments(state, now),
        "training": _training(_figures(state), now),
        "goodput": launches.goodput_line(launches.goodput_of(state, found)),
        "ranks": ranks_line(ranks, now),
        "slow": format_stragglers(find_stragglers(ranks)),
        "group": _separate_ranks(state, ranks),
        "source": f"{job.source}{_age(state, now)}",
        "code": code_line(run),
        "run": str(run.run_dir) if run else "",
        "logs": ", ".join(map(str, _logs(run, job))) if run else "",
        "first": first,
    }
    lines = [f"{name:>9}  {value}" for name, value in facts.items() if value.strip()]
    lines += _command_lines(state)
    return lines + _source_lines(run) if explain and run else lines


def _command_lines(state: RunState) -> list[str]:
    return [f"{'next' if not n else '':>9}  {command}" for n, command in enumerate(next_commands(state))]


def _source_lines(run: RunRecord) -> list[str]:
    return [f"{name:>16} = {value!r}  ({source})" for name, (value, source) in run.sources.items()]


def _also(state: RunState) -> str:
    return f"still in the queue: job {', job '.join(map(str, state.others))}" if state.others else ""


def _attempt(job: JobStatus) -> str:
    return f"{job.restarts + 1} ({plural(job.restarts, 'restart')})" if job.restarts else ""


def _explained_reason(state: RunState, shown: str) -> str:
    """Return a job's reason, as a row shows it, with its meaning; without its age, which stands beside the source."""
    reason = _reason(state.status)
    return (state.status.reason if state.as_of is not None else shown) + (f": {reason.meaning}" if reason else "")


def _age(state: RunState, now: float) -> str:
    return f", as of {format_age(now - state.as_of)} ago: {state.note}" if state.as_of is not None else ""


def _moments(state: RunState, now: float) -> dict[str, str]:
    """Return when a job was submitted, started and ended, or is expected to start."""
    job = state.status
    return {
        "submitted": _moment(submitted(state), now),
        "started": _moment(job.started, now) if job.state != "PENDING" else "",
        "start": _expected(job, now),
        "ended": _moment(job.ended, now) if job.is_over else "",
    }


def next_commands(state: RunState) -> list[str]:
    """Return the commands to type next, the most useful first."""
    if state.is_unsubmitted:
        return []  # the reason has the command
    job, name = state.status, str(state.status.id)
    logs = f"clusterrun logs {name}" if state.record is not None else ""
    if job.outcome is Outcome.DONE:
        commands = [logs]
    elif job.outcome is Outcome.RUNNING:
        may_cancel = state.user in ("", getpwuid(os.getuid()).pw_name)
        first = f"clusterrun why {name}" if job.state == "PENDING" else logs and f"{logs} -f"
        commands = [first, f"clusterrun cancel {name}" if may_cancel else ""]
    else:
        resume = f"clusterrun resume {name}" if _can_resume(state) else ""
        commands = [resume, f"clusterrun why {name}", logs and f"{logs} -n 50"]
    return list(filter(None, commands))


def _can_resume(state: RunState) -> bool:
    return state.record is not None and state.record.mine and state.status.outcome is Outcome.STOPPED


def ranks_line(ranks: list[RankProgress], now: float) -> str:
    """Return the phases of the ranks, their step and their last heartbeat; empty without ranks."""
    if not ranks:
        return ""
    phases = Counter({"script": "in user script", "": "unknown"}.get(one.phase, one.phase) for one in ranks)
    parts = [", ".join(f"{plural(count, 'rank')} {phase}" for phase, count in phases.most_common())]
    # each rank writes at a moment of its own, so their steps differ even while they are in step
    newest = max((one for one in ranks if one.step is not None), key=lambda one: one.step or 0, default=None)
    if newest is not None:
        parts.append(f"heartbeats at step {newest.step}" + (f"/{newest.steps}" if newest.steps is not None else ""))
    oldest = min(ranks, key=lambda one: one.time)
    age = format_age(now - oldest.time)
    is_silent = oldest.is_silent(now)
    parts.append(f"no heartbeat from rank {oldest.rank} for {age}" if is_silent else f"last heartbeat {age} ago")
    return ", ".join(parts)


@lru_cache(maxsize=1024)
def _local_time(at: int, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return str(at)


def _word(job: JobStatus) -> str:
    return job.state if job.outcome not in (Outcome.LOST, Outcome.STOPPED) else f"{job.state} ({job.outcome.value})"


def _why(state: RunState) -> str:
    if state.as_of is not None:
        return f"as of {format_age(time.time() - state.as_of)} ago" + (
            f": {state.status.reason}" if state.status.reason else ""
        )
    if state.note or state.record is None:
        return state.note or state.status.reason
    who = canceller(state.record, state.status)
    return f"cancelled by {who}" if who else state.status.reason


def canceller(run: RunRecord, status: JobStatus) -> str:
    """Return who or what cancelled a run's job; empty if it was not cancelled, or if that is not known."""
    if status.state != "CANCELLED":
        return ""
    if run.submission.cancel_asked:
        return "`clusterrun cancel`"
    if status.reason == "DependencyNeverSatisfied":
        return f"--kill-on-invalid-dep: {run.sources.get('dependency', ('its dependency', ''))[0]} was never satisfied"
    if status.id.is_local:
        return "a signal to the job's supervisor"
    return format_user(status.cancelled_by) if status.cancelled_by is not None else ""


def format_user(uid: int) -> str:
    """Return a user's name, and whether that is the current one."""
    name = user_name(uid)
    return f"{name} (you)" if uid == os.getuid() else name


def _reason(job: JobStatus) -> Reason | None:
    """Return the row of a pending job's reason; None if the reason is unknown."""
    if job.state != "PENDING" or not job.reason:
        return None
    from clusterrun.scheduler.slurm.reasons import find_reason

    return find_reason(job.reason)


def _expected(job: JobStatus, now: float) -> str:
    """Return Slurm's estimate of a pending job's start; empty if the job cannot start by itself, as a held one."""
    if job.state != "PENDING" or job.started is None or job.started <= now:
        return ""
    from clusterrun.scheduler.slurm.reasons import Starts

    text = f"Slurm expects the job to start at {_moment(job.started, now)}"
    return text if (reason := _reason(job)) is None or reason.starts is Starts.ALONE else ""


def _training(figures: Metrics | None, now: float) -> str:
    if figures is None:
        return ""
    parts = [f"last logged step {figures.step}"]
    if figures.loss is not None:
        parts.append(f"loss {_figure(figures.loss)}")
    if figures.val_loss is not None:
        parts.append(f"held-out loss {_figure(figures.val_loss)}")
    if figures.tokens_per_second is not None:
        parts.append(f"{figures.tokens_per_second:,.0f} tokens/s")
    if figures.time is not None:
        parts.append(f"{format_age(now - figures.time)} ago")
    return ", ".join(parts)


def _figures(state: RunState) -> Metrics | None:
    return reconcile.figures(state.record) if state.record is not None else None


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _moment(at: int | None, now: float) -> str:
    if not at:
        return ""
    written = _local_time(at, "%Y-%m-%d %H:%M:%S")
    return f"{written}, {format_age(now - at)} ago" if at <= now else f"{written}, in {format_age(at - now)}"


def _ranks(state: RunState, only: frozenset[str] | None = None) -> list[RankProgress]:
    """Return the progress of the ranks of a running job; before and after, the records are not current."""
    if state.record is None or state.status.outcome is not Outcome.RUNNING or state.status.state == "PENDING":
        return []
    return progress.ranks(state.record, only=only)


def _first_failure(state: RunState) -> dict[str, Any] | None:
    if state.record is None or state.status.outcome is Outcome.DONE:
        return None
    attempt = run_record.newest_attempt(state.record)
    return ends.load_first_failure(attempt) if attempt else None


def _joined_group(state: RunState) -> bool | None:
    """Return whether any rank of an ended run joined a process group; None if it is not known."""
    folder = _last_attempt(state)
    return ends.load_any_joined_group(folder) if folder is not None else None


def _separate_ranks(state: RunState, ranks: list[RankProgress]) -> str:
    """Return that the ranks did not work together; ``ranks`` are those of a running job."""
    run, folder = state.record, _last_attempt(state)
    if run is None:
        return ""
    if folder is None:
        return progress.separate_worlds(run, ranks)
    if end_records.were_separate(run, folder):
        return f"no rank used a process group: the {run.world_size} ranks ran as separate programs"
    if state.status.outcome is Outcome.DONE:
        return ""
    return progress.separate_worlds(run, progress.read_ranks(folder, progress.SUMMARY), ended=True)


def _last_attempt(state: RunState) -> Path | None:
    if state.record is None or state.status.outcome is Outcome.RUNNING:
        return None
    return run_record.newest_attempt(state.record, state.status.id.task)


def _logs(run: RunRecord, job: JobStatus) -> Sequence[Path]:
    return log_paths(run.logs, job.id) if run.job_id is not None else ()


class Straggler(NamedTuple):
    """A slow rank; ``speed`` is a fraction of the ranks' median."""

    rank: RankProgress
    speed: float


def find_stragglers(ranks: Sequence[RankProgress]) -> list[Straggler]:
    """Return the slow ranks, the slowest first; none if too few ranks have published their times."""
    busy = {one.rank: busy_s for one in ranks if (busy_s := _busy(one)) is not None}
    if len(busy) < FEWEST:
        return []
    from statistics import median  # it loads decimal and fractions, which `list` does without

    usual = median(busy.values())
    found = [
        Straggler(one, usual / busy[one.rank])
        for one in ranks
        if busy.get(one.rank, 0.0) >= SHORTEST_S and usual < SLOW * busy[one.rank]
    ]
    return sorted(found, key=lambda one: one.speed)


def wait_seconds(rank: RankProgress) -> float | None:
    """Return the rest of a rank's step, mostly waiting for the other ranks; None if it is not known."""
    busy = _busy(rank)
    return None if busy is None or rank.step_s is None else max(0.0, rank.step_s - busy)


def _busy(rank: RankProgress) -> float | None:
    if rank.data_s is None or rank.compute_s is None or rank.phase == "ending":
        return None
    return rank.data_s + rank.compute_s


def format_stragglers(found: Sequence[Straggler]) -> str:
    """Return slow ranks in a line; empty without any."""
    parts = [
        f"rank {one.rank} on {one.node}: {speed:.2f}x the median speed"
        f" (data {_ms(one.data_s)}, compute {_ms(one.compute_s)} per step)"
        for one, speed in found[:SHOWN]
    ]
    return "; ".join(parts) + (f"; {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _ms(seconds: float | None) -> str:
    return f"{1000 * (seconds or 0.0):.0f} ms"
