"""The words that name a job on the command line: an id, the job's name, or ``last``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from clusterrun.base.errors import NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import JobId, Outcome, is_job_id, is_run_id
from clusterrun.cluster import Cluster
from clusterrun.records.ended_index import RunSummary, summarize
from clusterrun.records.run_record import RunRecord
from clusterrun.terminal.safe_text import safe_line

if TYPE_CHECKING:
    from clusterrun.records.sweeps import Sweep
    from clusterrun.state.reconcile import RunState

LAST = "last"
_AGE = attrgetter("age_key")
_SHOWN = 3  # of the older jobs with the same name
_LISTED = 8  # of the jobs that a name may mean


def find_ids(
    cluster: Cluster, words: Sequence[str], *, several: bool = False, active: bool = False, newest: bool = False
) -> tuple[str, ...]:
    """Return a job id or run id for each word: a job's number may mean other jobs too, on other clusters or later.

    With ``several`` a sweep's name or array becomes the run ids of its tasks; else it raises RequestError.

    ``last`` is the job submitted last from the current project. A name means the newest run of that name, of this
    project if it has one, else the user's external job in the queue with that name. With ``active`` both mean an active
    job if there is one; with ``newest`` too, only a name does. Raises NoSuchJob, or RequestError for a mistyped id and
    for several jobs that may be meant.
    """
    found: list[str] = []
    for word in words:
        one = _find_id(cluster, word, active=active and not (newest and word == LAST))
        tasks = _tasks(cluster, word, one)
        if len(tasks) > 1 and not several:
            raise RequestError(f"{word} is a sweep of {len(tasks)} tasks", hint=f"give one task, such as {tasks[0][0]}")
        found += [run_id for _, run_id in tasks] or [one]
    return tuple(found)


def find_sweep(cluster: Cluster, word: str) -> tuple[Sweep, list[str]]:
    """Return the sweep that a name, a job id or a run id belongs to, and the newest run id of each task, empty if none.

    Raises NoSuchJob if there is none.
    """
    run = cluster.run(_find_id(cluster, word) if word == LAST or not is_job_id(word) else _first_task(cluster, word))
    from clusterrun.records.sweeps import sweep_of  # only a sweep needs it

    sweep = sweep_of(run) if run is not None else None
    if sweep is None:
        raise NoSuchJob(
            f"{word[:40]} is not a sweep", hint="give the name of a sweep, or the job id of one of its tasks"
        )
    return sweep, sweep.newest_runs()


def _first_task(cluster: Cluster, word: str) -> str:
    runs = cluster.store().array_of(JobId.parse(word))
    return runs[0].run_id if runs else word


def _tasks(cluster: Cluster, word: str, found: str) -> list[tuple[str, str]]:
    """Return the job id and run id of each task, if a word names a whole sweep or a whole array, else nothing."""
    if is_job_id(word):
        return [(_id_of(run), run.run_id) for run in cluster.store().array_of(JobId.parse(word))]
    if is_run_id(word) or not is_run_id(found):
        return []
    newest = cluster.store().by_run_id(found)
    if newest is None or not newest.sweep:
        return []
    from clusterrun.records.sweeps import sweep_of

    sweep = sweep_of(newest)
    if sweep is None:  # the command that made it was interrupted
        same = [run for run in cluster.store(newest.root).summaries(here=True) if run.sweep == newest.sweep]
        return [(run.handle, run.run_id) for run in sorted(same, key=_AGE)]
    run_ids = [run_id for run_id in sweep.newest_runs() if run_id] or [found]
    first = cluster.store(newest.root).by_run_id(run_ids[0])
    return [(_id_of(first) if first else run_id, run_id) for run_id in run_ids]


def _find_id(cluster: Cluster, word: str, *, active: bool = False) -> str:
    if word == LAST:
        return _last(cluster, active=active)
    if is_run_id(word) or is_job_id(word):
        return word
    store = cluster.store()
    runs = store.summaries()
    same = [run for run in runs if run.name == word]
    if not same and not word[:1].isalpha():
        JobId.parse(word)  # raises RequestError: it is more likely a mistyped id than a name
    same = [run for run in same if run.root in (store.root, store.base)] or same
    if active and (found := _find_active(cluster, word, max(same, key=_AGE, default=None))):
        return found
    if not same:
        return _external(cluster, word, {run.name for run in runs})
    *older, newest = sorted(same, key=_AGE)
    older = [run for run in older if not run.sweep or run.sweep != newest.sweep]
    if older:
        others = ", ".join(run.handle for run in reversed(older[-_SHOWN:])) + (", …" if len(older) > _SHOWN else "")
        count = len(older) + 1
        cluster.notify(f"{count} jobs are named {word}; using the newest, {newest.handle} (older: {others})")
    return newest.run_id


def _find_active(cluster: Cluster, name: str, newest: RunSummary | None) -> str:
    """Return the active job of a name, whose newest run is given; empty if there is none.

    The user chooses one of several; raises RequestError if there is no terminal for that.
    """
    named = [state for state in _listed(cluster, newest) if _name(state) == name]
    found = _handles(_of_here(cluster, named) or named)
    if len(found) < 2:
        return next(iter(found.values()), "")
    return _choose(f"{len(found)} jobs are named {safe_line(name)}", found)


def _listed(cluster: Cluster, newest: RunSummary | None) -> list[RunState]:
    """Return the active jobs of ``list``; none if Slurm does not respond, which a later query reports.

    The newest run that a word may mean counts as active unless it is known that it is not: while its submission is in
    progress or in doubt, no older job stands for it.
    """
    try:
        states = cluster.listing(all_clusters=True).states  # without a notice about runs out of reach
    except SchedulerError:
        return []
    return [state for state in states if state.status.outcome is Outcome.RUNNING or _is_in_doubt(state, newest)]


def _is_in_doubt(state: RunState, newest: RunSummary | None) -> bool:
    run = state.record
    is_newest = run is not None and newest is not None and run.run_id == newest.run_id
    return is_newest and state.status.outcome is Outcome.UNKNOWN


def _of_here(cluster: Cluster, states: Sequence[RunState]) -> list[RunState]:
    """Return the jobs that are runs of this project."""
    roots = cluster.store().root, cluster.store().base
    return [state for state in states if state.record is not None and state.record.root in roots]


def _newest_here(cluster: Cluster) -> RunSummary | None:
    """Return the run that was submitted last from the current project, checks aside."""
    runs = (run for run in cluster.store().summaries(here=True) if not run.is_check)
    return max(runs, key=_AGE, default=None)


def _active_here(cluster: Cluster, newest: RunSummary) -> list[RunSummary]:
    """Return the active runs of the current project, checks aside."""
    states = _of_here(cluster, _listed(cluster, newest))
    runs = [summarize(state.record) for state in states if state.record is not None]
    return [run for run in runs if not run.is_check]


def _handles(states: Sequence[RunState]) -> dict[str, str]:
    """Return what to show and what to type for each job; a run, a sweep and an array are each one job."""
    jobs: dict[tuple[str, str], list[RunState]] = {}
    for state in states:
        run, job = state.record, state.status.id
        key = (job.cluster, job.base) if run is None else ("", run.sweep or run.run_id)
        jobs.setdefault(key, []).append(state)
    found = {}
    for (where, base), rows in jobs.items():
        run, external = rows[0].record, base + (f";{where}" if where else "") if rows[1:] else _handle(rows[0])
        if run is None:
            found[external] = external
        else:  # a run without a job has none but its run id
            found[run.run_id if run.job_id is None else str(rows[0].status.id)] = run.run_id
    return found


def _choose(message: str, found: Mapping[str, str]) -> str:
    """Return what to type for the job that the user chooses; raises RequestError without a terminal."""
    if not sys.stdin.isatty():
        raise RequestError(f"{message}: {', '.join([*found][:_LISTED])}", hint="give one of these ids")
    return found[click.prompt(f"{message}. Which one", type=click.Choice([*found]), err=True)]


def _name(state: RunState) -> str:
    return state.record.name if state.record is not None else state.status.name


def _last(cluster: Cluster, *, active: bool) -> str:
    run = _newest_here(cluster)
    if run is None:
        raise NoSuchJob(
            f"no job was submitted from {cluster.store().root}", hint="give a job id; `clusterrun list` shows your jobs"
        )
    runs = _active_here(cluster, run) if active else []
    if runs and run.run_id not in [one.run_id for one in runs]:
        newest, run = run, max(runs, key=_AGE)
        cluster.notify(f"{LAST}: job {newest.handle} is not active; using job {run.handle} ({safe_line(run.name)})")
    else:
        what = "run" if run.handle == run.run_id else "job"
        cluster.notify(f"{LAST}: {what} {run.handle} ({safe_line(run.name)})")
    return run.run_id


def _external(cluster: Cluster, name: str, known: set[str]) -> str:
    """Return the id of the user's only active job of this name that clusterrun did not submit."""
    states = cluster.listing().states if cluster.facts() is not None else ()
    found = _handles([state for state in states if state.record is None and state.status.name == name])
    if len(found) > 1:
        ids = ", ".join([*found][:_LISTED])
        raise RequestError(f"{len(found)} jobs are named {name}: {ids}", hint="give one of these ids")
    if found:
        return next(iter(found.values()))
    import difflib  # its import takes longer than the rest of this module

    near = difflib.get_close_matches(name, sorted({*known, LAST}), n=1)
    hint = f"did you mean {near[0]}?" if near else "`clusterrun list --all` shows your jobs"
    raise NoSuchJob(f"no job is named {name[:40]}", hint=hint)


def _handle(state: RunState) -> str:
    """Return the id of an external job: a whole array if tasks share a row, with its cluster if known."""
    job = state.status.id
    return (job.base if state.status.tasks else str(job)) + (f";{job.cluster}" if job.cluster else "")


def _id_of(run: RunRecord) -> str:
    return str(run.job_id) if run.job_id is not None else run.run_id
