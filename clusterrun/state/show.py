"""Format the state of a job as a table row, as JSON and as lines. ``ui`` escapes untrusted text when it prints."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterrun.base.decode import as_int, as_number, as_text
from clusterrun.base.job import JobStatus, Outcome, log_paths, task_count
from clusterrun.base.series import sparkline
from clusterrun.base.units import clause, format_age, format_duration, format_left, plural
from clusterrun.records import end_records, progress, run_record
from clusterrun.records.launches import failed_launches, load_launches
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends, rank_records, run_link, training_progress
from clusterrun.run_folder.safe_files import user_name
from clusterrun.scheduler.slurm.squeue import EXTRA_FIELDS
from clusterrun.state import headline, launches, samples, time_left
from clusterrun.state.reconcile import RunState, recorded_end
from clusterrun.terminal.tables import Column

if TYPE_CHECKING:
    from clusterrun.scheduler.slurm.reasons import Reason

SHOWN = 4  # ranks in a line
CURVE = 40  # columns of a loss curve
FEW = 1024  # ranks of which everything is read
STATE_COLUMNS = ("JOBID", "NAME", "STATE", "TIME", "LIMIT", "NODES", "REASON")
#: The columns of `list`; ``leaves`` is the order in which they are left out on a narrow terminal.
LIST_COLUMNS = (
    Column("JOBID", least=17), Column("NAME", least=8), Column("STATE"), Column("TIME", leaves=10, right=True),
    Column("LIMIT", leaves=5, right=True), Column("NODES", least=8, leaves=8),
    Column("RESTARTS", leaves=4, right=True), Column("STEP", leaves=6, right=True),
    Column("LOSS", leaves=7, right=True), Column("TOKENS/S", leaves=3, right=True),
    Column("PROGRESS", leaves=9), Column("PARTITION", leaves=2),
    Column("SUBMITTED", leaves=1), *(Column(heading, leaves=1) for _, _, heading in EXTRA_FIELDS if heading),
    Column("REASON", least=10),
)  # fmt: skip
_OF_JOB = ("state", "reason", "exit_status", "partition", "nodes", "node_count", "restarts", "ended",
           "elapsed", "time_limit", "source")  # fmt: skip
#: What a job without a record has in their place; the values are those of a run of which nothing is known.
_NO_RUN: dict[str, Any] = {
    "run_id": None, "run_dir": None, "failed_launches": [], "metrics": None, "seconds_left": None, "logs": [],
    "sources": {},
}  # fmt: skip
_NO_RUN_IN_FULL: dict[str, Any] = {
    "ranks": [], "slow_ranks": [], "warning": None, "model": None, "earlier_jobs": [], "launches": [], "goodput": None,
    "first_failure": None, "page": None, "joined_group": None,
}  # fmt: skip
_PHASES = {"script": "in user script", "": "unknown"}  # others are shown as they are
#: The fields of a rank in ``--json``, beside what is computed of them.
OF_RANK = ("rank", "node", "phase", "step", "steps", "time", "step_s", "data_s", "compute_s")
#: The facts of `status`, in the order of their lines.
_FACTS = (
    "job", "also", "state", "outcome", "reason", "nodes", *(key for key, _, _ in EXTRA_FIELDS), "held", "attempt",
    "launch", "time", "submitted", "started", "start", "ended", "training", "loss", "scores", "warning", "early",
    "model", "limit", "goodput", "ranks", "slow", "group", "source", "code", "run", "logs", "page",
)  # fmt: skip
#: A longer list of array tasks is shown as their number.
_LONGEST_LIST = 16


def state_json(state: RunState) -> dict[str, Any]:
    """Return a job's state for ``--json``; times in epoch seconds, durations in seconds."""
    job, extra = state.status, dict(state.status.extra)
    return {
        "job_id": None if state.is_unsubmitted else str(job.id),
        **{name: getattr(job, name) for name in _OF_JOB},
        "name": state.name,
        "outcome": job.outcome.value,
        "cluster": state.cluster,
        "scheduler": state.scheduler,
        "user": state.user,
        **{key: extra.get(key) for key, _, _ in EXTRA_FIELDS},
        "tasks": job.tasks or None,
        "task_count": task_count(job),
        "submitted": state.submitted,
        "started": _began(job),
        "as_of": state.as_of,
        "note": state.note,
        **(_run_json(state, state.record) if state.record is not None else _NO_RUN),
    }


def _run_json(state: RunState, run: RunRecord) -> dict[str, Any]:
    """Return what only a run has; ``failed_launches`` is why each failed after which its ranks were started again."""
    job, figures = state.status, state.figures
    return {
        "run_id": run.run_id,
        "run_dir": str(run.run_dir),
        "failed_launches": failed_launches(load_launches(run, job.id.task)),
        "metrics": figures and figures._asdict(),
        "seconds_left": time_left.seconds_left(figures, time.time()) if figures and job.has_started else None,
        "logs": list(map(str, _logs(run, job))),
        "sources": {name: {"value": value, "source": source} for name, (value, source) in run.options.items()},
    }


def status_json(state: RunState) -> dict[str, Any]:
    """Return the same with the run's ranks and launches, its first failure, its process group and the reason's meaning.

    The times of a rank are medians over its last steps, in seconds; ``speed`` is a fraction of the median speed.
    """
    reason, run = _reason(state.status), state.record
    return {
        **state_json(state),
        "reason_meaning": reason.meaning if reason else None,
        "reason_action": reason.what_to_do(str(state.status.id)) if reason else None,
        **(_run_json_in_full(state, run) if run is not None else _NO_RUN_IN_FULL),
    }


def _run_json_in_full(state: RunState, run: RunRecord) -> dict[str, Any]:
    job, ranks = state.status, _ranks(run, state.status)
    of_run = launches.launches_of(run, job, ranks, time.time())
    goodput, folder = launches.goodput_of(state, of_run), _last_attempt(run, job)
    return {
        "ranks": [_rank_json(rank) for rank in ranks],
        "slow_ranks": slow_json(ranks),
        "warning": _warning(run, job) or None,
        "model": _final_model(run, job),
        "earlier_jobs": list(map(str, state.others)),
        "launches": launches.launches_json(run, of_run),
        "goodput": goodput and {"share": goodput.share, **goodput._asdict()},
        "first_failure": _first_failure(run, job),
        "page": _page(run, job) or None,
        "joined_group": ends.load_any_joined_group(folder) if folder is not None else None,
    }


def _rank_json(rank: RankProgress) -> dict[str, Any]:
    times = {name: getattr(rank, name) for name in OF_RANK}
    return {**times, "wait_s": wait_seconds(rank), "own_world": rank.own_world or None}


def state_row(state: RunState) -> list[str]:
    """Return a job's state as a row of ``STATE_COLUMNS``."""
    job = state.status
    return [
        handle(state),
        state.name,
        _word(job),
        _duration(job.elapsed),
        _duration(job.time_limit),
        _nodes(job),
        _why(state),
    ]


def _duration(seconds: int | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def _nodes(job: JobStatus) -> str:
    if job.nodes or not job.node_count:
        return job.nodes
    return f"({job.node_count})"


def list_row(state: RunState) -> list[str]:
    """Return a job's state as a row of ``LIST_COLUMNS``."""
    *first, reason = state_row(state)
    extra = dict(state.status.extra)
    return [
        *first,
        str(state.status.restarts or ""),
        *figure_cells(state),
        state.status.partition,
        _local_time(state.submitted, "%m-%d %H:%M") if state.submitted else "",
        *(extra.get(key, "") for key, _, heading in EXTRA_FIELDS if heading),
        "; ".join(filter(None, (reason, _earlier_jobs(state)))),
    ]


def _earlier_jobs(state: RunState) -> str:
    """Return the jobs that a resumed run had before this one; empty without any."""
    if state.record is None:
        return ""
    newest = state.record.submission
    before = [one.job_id.partition(";")[0] for one in state.record.submissions if one.at < newest.at and one.job_id]
    return f"continues job {', job '.join(before)}" if before else ""


def figure_cells(state: RunState) -> tuple[str, str, str, str]:
    """Return the last step, loss, speed and progress of a run; empty for tasks of an array, which share a row."""
    figures = state.figures if not state.status.tasks else None
    if figures is None:
        return "", "", "", ""
    speed = if_known("{:,.0f}", figures.tokens_per_second)
    return str(figures.step), format_loss(figures), speed, _progress_cell(figures, state.status)


def _progress_cell(figures: Metrics, job: JobStatus) -> str:
    """Return ``45 %, 2h 15m left`` for a running job, ``100 %`` for one that has ended; empty if unknown."""
    return time_left.describe(figures, time.time()) if job.has_started else time_left.percent(figures)


def if_known(form: str, value: float | None) -> str:
    """Return a value in this form; empty if it is not known."""
    return "" if value is None else form.format(value)


def handle(state: RunState) -> str:
    """Return what to type for a job: its id, or its run id while it has none; of array tasks also which."""
    job = state.status
    if state.is_unsubmitted:
        return state.run.run_id
    if not job.tasks:
        return str(job.id)
    count = task_count(job)
    is_long = len(job.tasks) > _LONGEST_LIST and count is not None
    return f"{job.id}_[{f'{count} tasks' if is_long else job.tasks}]"


def state_lines(state: RunState, *, explain: bool = False, first: str = "", used: Sequence[str] = ()) -> list[str]:
    """Return a job's state in full: what matters, and a line per fact; with ``explain`` each option and its source.

    ``first`` is the first cause of an end, if known, and ``used`` the efficiency card of an ended run.
    """
    now, run = time.time(), state.record
    facts, sources, figures = _job_facts(state, now), list[str](), state.figures
    ranks: Sequence[RankProgress] = ()
    if run is not None:
        ranks = _ranks(run, state.status, progress.SCREEN if run.world_size <= FEW else progress.SUMMARY)
        facts |= progress_facts(state, figures) | _run_facts(state, run, ranks, now)
        sources = _source_lines(run) if explain else []
    shown = [(name, facts[name]) for name in _FACTS if facts.get(name, "").strip()]
    shown += zip(("used", "", ""), used, strict=False)
    shown += zip(("samples", *[""] * samples.SHOWN), _sample_lines(run), strict=False)
    shown += zip(("next", "", ""), next_commands(state), strict=False)
    line = headline.of_job(state.status, figures, ranks, now=now, first=first)
    return [line, *(f"{name:>9}  {value}" for name, value in shown), *sources]


def _job_facts(state: RunState, now: float) -> dict[str, str]:
    """Return the facts of any job by their names, some empty."""
    job, row = state.status, dict(zip(STATE_COLUMNS, state_row(state), strict=True))
    return {
        "job": f"{row['JOBID']}  {row['NAME']}",
        "state": row["STATE"] + (f"  exit status {job.exit_status}" if job.exit_status else ""),
        "outcome": job.outcome.value if job.is_over else "",
        "reason": _explained_reason(state, row["REASON"]),
        "nodes": row["NODES"] + (f" of job {job.number}" if job.id.is_local and job.number and job.nodes else ""),
        **dict(job.extra),
        "attempt": f"{job.restarts + 1} ({plural(job.restarts, 'restart')})" if job.restarts else "",
        "time": row["TIME"] + (f" of {row['LIMIT']}" if row["LIMIT"] else ""),
        **_moments(state, now),
        "source": f"{job.source}{_age(state, now)}",
    }


def _run_facts(state: RunState, run: RunRecord, ranks: Sequence[RankProgress], now: float) -> dict[str, str]:
    """Return the facts that only a run has, by their names, some empty."""
    from clusterrun.records.code_store import code_line  # `list` shows none

    job = state.status
    of_run = launches.launches_of(run, job, ranks, now)
    return {
        "also": other_jobs(state),
        "held": launches.held_line(state),
        "launch": launches.launch_line(of_run),
        "loss": _loss_curve(run),
        "warning": _warning(run, job),
        **_model_facts(_final_model(run, job)),
        "goodput": launches.goodput_line(launches.goodput_of(state, of_run)),
        "ranks": ranks_line(ranks, now),
        "slow": format_stragglers(find_stragglers(ranks)),
        "group": _separate_ranks(run, job, ranks),
        "code": code_line(run),
        "run": str(run.run_dir),
        "logs": ", ".join(map(str, _logs(run, job))),
        "page": _page(run, job),
    }


def _sample_lines(run: RunRecord | None) -> list[str]:
    return samples.side_by_side(samples.load_samples(run)) if run is not None else []


def other_jobs(state: RunState) -> str:
    """Return what the newest job of an earlier job's run does, and which others are still in the queue."""
    if state.record is None:
        return ""
    newest = state.record.newest
    done = newest.job_id if _has_completed_since(state.record) else None  # while Slurm cleans up, the queue has it
    lines = [f"job {done} of this run has completed"] if done is not None else []
    if newest.job_id in state.others and newest.job_id != done:
        lines.append(f"job {newest.job_id} continues this run")
    waiting = [str(job) for job in state.others if job not in (done, newest.job_id)]
    if waiting:
        lines.append(f"still in the queue: job {', job '.join(waiting)}")
    return "; ".join(lines)


def _has_completed_since(run: RunRecord) -> bool:
    """Return whether a newer submission of a run completed, by its records."""
    newest = run.newest
    if newest.submission is run.submission:
        return False
    end = recorded_end(newest) or end_records.end_of(newest)
    return end is not None and end.outcome is Outcome.DONE


def _page(run: RunRecord, job: JobStatus) -> str:
    """Return the run's page at Weights & Biases, empty without one; another user's record could name any page."""
    folder = run_record.newest_attempt(run, job.id.task) if run.mine else None
    return run_link.load(folder) if folder is not None else ""


def _source_lines(run: RunRecord) -> list[str]:
    return [f"{name:>16} = {value!r}  ({source})" for name, (value, source) in run.options.items()]


def _explained_reason(state: RunState, shown: str) -> str:
    """Return a job's reason, as a row shows it, with its meaning; without its age, which stands beside the source."""
    reason = _reason(state.status)
    word = shown if state.as_of is None else state.status.reason
    return word if reason is None else f"{word}: {reason.meaning}"


def _age(state: RunState, now: float) -> str:
    return f", as of {format_age(now - state.as_of)} ago: {state.note}" if state.as_of is not None else ""


def _moments(state: RunState, now: float) -> dict[str, str]:
    """Return when a job was submitted, started and ended, or is expected to start."""
    job = state.status
    return {
        "submitted": _moment(state.submitted, now),
        "started": _moment(_began(job), now),
        "start": _expected(job, now),
        "ended": _moment(job.ended, now) if job.is_over else "",
    }


def next_commands(state: RunState) -> list[str]:
    """Return the commands to type next, the most useful first."""
    if state.is_unsubmitted:
        return []  # the reason has the command
    commands = _commands_after_end(state) if state.status.is_over else _commands_while_active(state)
    if state.record is None:  # `logs` finds no files of such a job
        return [command for command in commands if not command.startswith("clusterrun logs")]
    return commands


def _commands_while_active(state: RunState) -> list[str]:
    name = state.status.id
    first = f"clusterrun why {name}" if state.status.state == "PENDING" else f"clusterrun logs {name} -f"
    return [first, f"clusterrun cancel {name}"] if state.belongs_to(user_name(os.getuid())) else [first]


def _commands_after_end(state: RunState) -> list[str]:
    name, outcome = state.status.id, state.status.outcome
    if outcome is Outcome.DONE:
        return [f"clusterrun logs {name}"]
    look = [f"clusterrun why {name}", f"clusterrun logs {name} -n 50"]
    if outcome is Outcome.STOPPED and state.record is not None and state.record.mine:
        return [f"clusterrun resume {name}", *look]
    return look


def ranks_line(ranks: Sequence[RankProgress], now: float) -> str:
    """Return the phases of the ranks and their last heartbeat; empty without ranks."""
    if not ranks:
        return ""
    phases = Counter(_PHASES.get(rank.phase, rank.phase) for rank in ranks)
    parts = [", ".join(f"{plural(count, 'rank')} {phase}" for phase, count in phases.most_common())]
    oldest = min(ranks, key=lambda rank: rank.time)
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
    reason = state.status.reason
    if state.as_of is not None:
        age = f"as of {format_age(time.time() - state.as_of)} ago"
        return f"{age}: {reason}" if reason else age
    if state.note:
        return state.note
    who = canceller(state.record, state.status)
    return f"cancelled by {who}" if who else reason


def canceller(run: RunRecord | None, status: JobStatus) -> str:
    """Return who or what cancelled a run's job; empty if it was not cancelled, or if that is not known."""
    if run is None or status.state != "CANCELLED":
        return ""
    if run.submission.cancel_asked:
        return "`clusterrun cancel`"
    if status.reason == "DependencyNeverSatisfied":
        return f"--kill-on-invalid-dep: {run.sources.get('dependency', ('its dependency', ''))[0]} was never satisfied"
    if status.id.is_local:
        return status.reason or "a signal to the job's supervisor"
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


def _began(job: JobStatus) -> int | None:
    """Return when a job started; of a pending one Slurm shows when it expects that."""
    return job.started if job.state != "PENDING" else None


def _expected(job: JobStatus, now: float) -> str:
    """Return Slurm's estimate of a pending job's start; empty if the job cannot start by itself, as a held one."""
    if job.state != "PENDING" or job.started is None or job.started <= now:
        return ""
    from clusterrun.scheduler.slurm.reasons import Starts

    reason = _reason(job)
    if reason is not None and reason.starts is not Starts.ALONE:
        return ""
    return f"Slurm expects the job to start at {_moment(job.started, now)}"


def progress_facts(state: RunState, figures: Metrics | None) -> dict[str, str]:
    """Return how far a job's training is, and that it will miss its time limit; empty if that is not known."""
    if figures is None:
        return {"training": "", "scores": "", "limit": ""}
    now = time.time()
    scores = _scores_line(figures.scores)
    return {"training": _training(state, figures, now), "scores": scores, "limit": _limit(state, figures, now)}


def _training(state: RunState, figures: Metrics, now: float) -> str:
    parts = [
        f"step {figures.step}{if_known('/{}', figures.steps)}",
        _progress_cell(figures, state.status),
        clause(format_loss(figures), "loss {}"),
        if_known("held-out loss {:.4g}", figures.val_loss),
        if_known("{:,.0f} tokens/s", figures.tokens_per_second),
        f"{format_age(now - figures.time)} ago" if figures.time is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _loss_curve(run: RunRecord) -> str:
    """Return the losses as a line of bars, with the first and the last one; empty without any."""
    losses = progress.losses(run)
    curve = sparkline(losses, CURVE)
    return f"{format_figure(losses[0])} {curve} {format_figure(losses[-1])}" if curve else ""


def _final_model(run: RunRecord, job: JobStatus) -> dict[str, Any] | None:
    """Return which step's weights the finished model of a built-in task has; None if that is not known."""
    folder = _last_attempt(run, job) if job.outcome is Outcome.DONE else None
    facts = ends.load_training(folder) if folder is not None else {}
    step = as_int(facts.get("model_step"))
    if step is None:
        return None
    val_loss, ended_early = as_number(facts.get("model_val_loss")), as_text(facts.get("ended_early"))
    scores = progress.as_scores(facts.get("model_scores"))
    return {"step": step, "val_loss": val_loss, "scores": scores, "ended_early": ended_early or None}


def _warning(run: RunRecord, job: JobStatus) -> str:
    folder = run_record.newest_attempt(run, job.id.task)
    return training_progress.load_warning(folder) if folder is not None else ""


def _model_facts(model: Mapping[str, Any] | None) -> dict[str, str]:
    if model is None:
        return {}
    lowest = if_known(", the lowest held-out loss: {:.4g}", model["val_loss"])
    scores = {"scores": _scores_line(model["scores"])} if model["scores"] else {}  # not those of the last step
    return {"model": f"step {model['step']}{lowest}", "early": clause(model["ended_early"], "ended by {}"), **scores}


def _scores_line(scores: Mapping[str, float] | None) -> str:
    return ", ".join(f"{name} {format_score(value)}" for name, value in (scores or {}).items())


def _limit(state: RunState, figures: Metrics, now: float) -> str:
    """Return that a training will not end before its job's time limit; empty if it will, or that is not clear."""
    job = state.status
    missed = time_left.missed_by(figures, job, now) if job.has_started else None
    if missed is None or state.record is None:
        return ""
    how = (
        "a next job continues it" if "total-time" in state.record.sources else "--total-time continues it in a next job"
    )
    return f"the training will not finish before the time limit: {format_left(missed)} short; {how}"


def format_figure(value: float | None) -> str:
    """Return a loss or another metric as a cell; empty if it is not known."""
    return if_known("{:.4g}", value)


def format_loss(figures: Metrics) -> str:
    """Return the last loss as a cell, ``nan`` where it was no number; empty if it is not known."""
    return progress.NAN if figures.is_nan else format_figure(figures.loss)


def format_score(value: float) -> str:
    """Return a score of a task: a share, or an error in a unit of its own."""
    return f"{value:,.0f}" if abs(value) >= 1000 else format_figure(value)


def _moment(at: int | None, now: float) -> str:
    if not at:
        return ""
    written = _local_time(at, "%Y-%m-%d %H:%M:%S")
    return f"{written}, {format_age(now - at)} ago" if at <= now else f"{written}, in {format_age(at - now)}"


def _ranks(run: RunRecord, job: JobStatus, only: frozenset[str] | None = None) -> list[RankProgress]:
    """Return the progress of the ranks of a running job; before and after, the records are not current."""
    return progress.ranks(run, only=only) if job.has_started else []


def _first_failure(run: RunRecord, job: JobStatus) -> dict[str, Any] | None:
    attempt = run_record.newest_attempt(run)
    if attempt is None or job.outcome is Outcome.DONE:
        return None
    return ends.load_first_failure(attempt)


def _separate_ranks(run: RunRecord, job: JobStatus, ranks: Sequence[RankProgress]) -> str:
    """Return that the ranks did not work together; ``ranks`` are those of a running job."""
    folder = _last_attempt(run, job)
    if folder is None:
        return progress.separate_worlds(run, ranks)
    if end_records.were_separate(run, folder):
        return f"no rank used a process group: the {run.world_size} ranks ran as separate programs"
    if job.outcome is Outcome.DONE:
        return ""
    return progress.separate_worlds(run, progress.read_ranks(folder, progress.SUMMARY), ended=True)


def _last_attempt(run: RunRecord, job: JobStatus) -> Path | None:
    """Return the newest attempt of a job that is over."""
    return run_record.newest_attempt(run, job.id.task) if job.is_over else None


def _logs(run: RunRecord, job: JobStatus) -> Sequence[Path]:
    return log_paths(run.logs, job.id) if run.job_id is not None else ()


def find_stragglers(ranks: Sequence[RankProgress]) -> list[tuple[RankProgress, float]]:
    """Return the slow ranks, the slowest first, each with its speed as a fraction of the ranks' median.

    There are none if too few ranks have published their times.
    """
    busy = {one.rank: busy_s for one in ranks if (busy_s := _busy(one)) is not None}
    speeds = rank_records.find_slow(busy)
    slow = [(one, speeds[one.rank]) for one in ranks if one.rank in speeds]
    return sorted(slow, key=itemgetter(1))


def slow_json(ranks: Sequence[RankProgress]) -> list[dict[str, Any]]:
    """Return the slow ranks for ``--json``, the slowest first."""
    return [{"rank": rank.rank, "node": rank.node, "speed": speed} for rank, speed in find_stragglers(ranks)]


def wait_seconds(rank: RankProgress) -> float | None:
    """Return the rest of a rank's step, mostly waiting for the other ranks; None if it is not known."""
    busy = _busy(rank)
    return None if busy is None or rank.step_s is None else max(0.0, rank.step_s - busy)


def _busy(rank: RankProgress) -> float | None:
    if rank.data_s is None or rank.compute_s is None or rank.phase == "ending":
        return None
    return rank.data_s + rank.compute_s


def format_stragglers(found: Sequence[tuple[RankProgress, float]]) -> str:
    """Return slow ranks in a line; empty without any."""
    parts = [
        f"rank {one.rank} on {one.node}: {speed:.2f}x the median speed"
        f" (data {_ms(one.data_s)}, compute {_ms(one.compute_s)} per step)"
        for one, speed in found[:SHOWN]
    ]
    return "; ".join(parts) + (f"; {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _ms(seconds: float | None) -> str:
    return f"{1000 * (seconds or 0.0):.0f} ms"
