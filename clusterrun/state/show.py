"""Format the state of a job as a table row, as JSON and as lines. ``ui`` escapes untrusted text when it prints."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from pwd import getpwuid
from typing import TYPE_CHECKING, Any

from clusterrun.base.job import JobStatus, Outcome, log_paths, task_count
from clusterrun.base.units import format_age, format_duration, plural
from clusterrun.records import end_records, launches, progress, run_record
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.run_folder import ends
from clusterrun.scheduler.slurm.squeue import EXTRA_FIELDS
from clusterrun.state import reconcile
from clusterrun.state.canceller import canceller
from clusterrun.state.filters import submitted
from clusterrun.state.held import held_line
from clusterrun.state.launches import goodput_json, goodput_line, goodput_of, launch_line, launches_json, launches_of
from clusterrun.state.reconcile import RunState
from clusterrun.state.stragglers import find_stragglers, format_stragglers, wait_seconds
from clusterrun.terminal.tables import Column

if TYPE_CHECKING:
    from clusterrun.scheduler.slurm.reasons import Reason

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
#: A longer list of array tasks is shown as their number.
_LONGEST_LIST = 16


def state_json(state: RunState) -> dict[str, Any]:
    """Return a job's state for ``--json``; times in epoch seconds, durations in seconds."""
    job, run = state.status, state.record
    known = run is None or run.job_id is not None
    figures = reconcile.figures(run) if run is not None else None
    return {
        "job_id": str(job.id) if known else None,
        "run_id": run.run_id if run else None,
        "name": run.name if run else job.name,
        "state": job.state,
        "outcome": job.outcome.value,
        "reason": job.reason,
        "exit_status": job.exit_status,
        "cluster": run.cluster if run else job.id.cluster,
        "scheduler": run.scheduler if run else "slurm",
        "user": run.user if run else job.user,
        "partition": job.partition,
        **{field.key: dict(job.extra).get(field.key) for field in EXTRA_FIELDS},
        "nodes": job.nodes,
        "node_count": job.node_count,
        "restarts": job.restarts,
        "failed_launches": _failed_launches(state),
        "tasks": job.tasks or None,
        "task_count": task_count(job),
        "submitted": job.submitted,
        "started": job.started if job.state != "PENDING" else None,
        "ended": job.ended,
        "elapsed": job.elapsed,
        "time_limit": job.time_limit,
        "source": job.source,
        "as_of": state.as_of,
        "note": state.note,
        "metrics": figures and figures._asdict(),
        "run_dir": str(run.run_dir) if run else None,
        "logs": [str(path) for path in _logs(state)],
        "sources": {k: {"value": v, "source": s} for k, (v, s) in run.sources.items()} if run else {},
    }


def status_json(state: RunState) -> dict[str, Any]:
    """Return the same with the run's ranks and launches, its first failure, its process group and the reason's meaning.

    The times of a rank are medians over its last steps, in seconds; ``speed`` is a fraction of the median speed.
    """
    reason, ranks = _reason(state.status), _ranks(state)
    runs = launches_of(state, ranks, time.time())
    return {
        **state_json(state),
        "reason_meaning": reason.meaning if reason else None,
        "reason_action": reason.what_to_do(str(state.status.id)) if reason else None,
        "ranks": [
            {
                "rank": r.rank,
                "node": r.node,
                "phase": r.phase,
                "step": r.step,
                "steps": r.steps,
                "time": r.time,
                "step_s": r.step_s,
                "data_s": r.data_s,
                "compute_s": r.compute_s,
                "wait_s": wait_seconds(r),
                "own_world": r.own_world or None,
            }
            for r in ranks
        ],
        "slow_ranks": [{"rank": one.rank, "node": one.node, "speed": speed} for one, speed in find_stragglers(ranks)],
        "earlier_jobs": [str(job) for job in state.others],
        "launches": launches_json(runs),
        "goodput": goodput_json(goodput_of(state, runs)),
        "first_failure": _first_failure(state),
        "joined_group": _joined_group(state),
    }


def state_row(state: RunState) -> list[str]:
    """Return a job's state as a row of ``STATE_COLUMNS``."""
    job, run = state.status, state.record
    return [
        handle(state),
        run.name if run else job.name,
        _word(job),
        format_duration(job.elapsed) if job.elapsed is not None else "",
        format_duration(job.time_limit) if job.time_limit else "",
        job.nodes or (f"({job.node_count})" if job.node_count else ""),
        _why(state),
    ]


def list_row(state: RunState) -> list[str]:
    """Return a job's state as a row of ``LIST_COLUMNS``."""
    *first, reason = state_row(state)
    figures = reconcile.figures(state.record) if state.record is not None and not state.status.tasks else None
    at = submitted(state)
    return [
        *first,
        str(state.status.restarts or ""),
        str(figures.step) if figures else "",
        _figure(figures.loss) if figures else "",
        f"{figures.tokens_per_second:,.0f}" if figures and figures.tokens_per_second is not None else "",
        state.status.partition,
        _local_time(at, "%m-%d %H:%M") if at else "",
        *(dict(state.status.extra).get(field.key, "") for field in EXTRA_FIELDS if field.heading),
        reason,
    ]


def handle(state: RunState) -> str:
    """Return what to type for a job: its id, or its run id while it has none; of array tasks also which."""
    run, job = state.record, state.status
    if run is not None and run.job_id is None:
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
    runs = launches_of(state, ranks, now)
    row = dict(zip(STATE_COLUMNS, state_row(state), strict=True))
    reason, over = _reason(job), job.outcome is not Outcome.RUNNING
    seen = f", as of {format_age(now - state.as_of)} ago: {state.note}" if state.as_of is not None else ""
    facts = {
        "job": f"{row['JOBID']}  {row['NAME']}",
        "also": f"still in the queue: job {', job '.join(map(str, state.others))}" if state.others else "",
        "state": row["STATE"] + (f"  exit status {job.exit_status}" if job.exit_status else ""),
        "outcome": job.outcome.value if over else "",
        "reason": (job.reason if seen else row["REASON"]) + (f": {reason.meaning}" if reason else ""),
        "nodes": row["NODES"],
        **dict(job.extra),
        "held": held_line(state),
        "attempt": f"{job.restarts + 1} ({plural(job.restarts, 'restart')})" if job.restarts else "",
        "launch": launch_line(runs),
        "time": row["TIME"] + (f" of {row['LIMIT']}" if row["LIMIT"] else ""),
        "submitted": _moment(submitted(state), now),
        "started": _moment(job.started, now) if job.state != "PENDING" else "",
        "start": _expected(job, now),
        "ended": _moment(job.ended, now) if over else "",
        "training": _training(reconcile.figures(run), now) if run else "",
        "goodput": goodput_line(goodput_of(state, runs)),
        "ranks": ranks_line(ranks, now),
        "slow": format_stragglers(find_stragglers(ranks)),
        "group": _separate_ranks(state, ranks),
        "source": job.source + seen,
        "code": code_line(run),
        "run": str(run.run_dir) if run else "",
        "logs": ", ".join(str(path) for path in _logs(state)),
        "first": first,
    }
    lines = [f"{name:>9}  {value}" for name, value in facts.items() if value.strip()]
    lines += [f"{'next' if not n else '':>9}  {command}" for n, command in enumerate(next_commands(state))]
    if explain and run:
        lines += [f"{name:>16} = {value!r}  ({source})" for name, (value, source) in run.sources.items()]
    return lines


def next_commands(state: RunState) -> list[str]:
    """Return the commands to type next, the most useful first."""
    job, run = state.status, state.record
    if run is not None and run.job_id is None:
        return []  # the reason has the command
    name, ours = str(job.id), run is not None
    if job.outcome is Outcome.DONE:
        return [f"clusterrun logs {name}"] if ours else []
    if job.outcome is not Outcome.RUNNING:
        again = run is not None and run.mine and job.outcome is Outcome.STOPPED
        resume = [f"clusterrun resume {name}"] if again else []
        return [*resume, f"clusterrun why {name}", *([f"clusterrun logs {name} -n 50"] if ours else [])]
    first = f"clusterrun why {name}" if job.state == "PENDING" else f"clusterrun logs {name} -f" if ours else ""
    mine = (run.user if run else job.user) in ("", getpwuid(os.getuid()).pw_name)
    return [command for command in (first, f"clusterrun cancel {name}" if mine else "") if command]


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


def _failed_launches(state: RunState) -> list[str]:
    """Return why each launch failed after which the job started its ranks again."""
    run = state.record
    return launches.failed_launches(launches.load_launches(run, state.status.id.task)) if run is not None else []


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


def _logs(state: RunState) -> list[Path]:
    if state.record is None or state.record.job_id is None:
        return []
    return list(log_paths(state.record.logs, state.status.id))
