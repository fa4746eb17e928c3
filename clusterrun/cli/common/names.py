"""The words that name a job on the command line: an id, the job's name, or ``last``."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from clusterrun.base.errors import NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import JobId, Outcome, is_job_id, is_run_id
from clusterrun.cluster import Cluster
from clusterrun.records.ended_index import RunSummary
from clusterrun.records.run_record import RunRecord
from clusterrun.terminal.safe_text import safe_line

if TYPE_CHECKING:
    from clusterrun.records.sweeps import Sweep
    from clusterrun.state.reconcile import RunState, Target

LAST = "last"
_AGE = attrgetter("age_key")
_SHOWN = 3  # of the older jobs with the same name
_LISTED = 8  # of the jobs that a name may mean


def find_targets(
    cluster: Cluster, words: Sequence[str], *, several: bool = False, active: bool = False, newest: bool = False
) -> list[Target]:
    """Return the job that each word names: a job's number may mean other jobs too, on other clusters or later.

    With ``several`` a sweep's name or array becomes its tasks; else it raises RequestError.

    ``last`` is the job submitted last from the current project. A name means the newest run of that name, of this
    project if it has one, else the user's external job in the queue with that name. With ``active`` both mean an active
    job if there is one; with ``newest`` too, only a name does. Raises NoSuchJob, or RequestError for a mistyped id and
    for several jobs that may be meant.
    """
    targets: list[Target] = []
    for word in words:
        named = _find(cluster, word, active=active, newest=newest)
        first = named[0]
        if len(named) > 1 and not several:
            example = first if active else _first_failed(named)
            raise RequestError(
                f"{word} is a sweep of {len(named)} tasks",
                hint=f"give one task, such as {example.job_id or example.text}",
            )
        targets += named
    return targets


def _first_failed(tasks: Sequence[Target]) -> Target:
    """Return the first task that failed by its records, else the first one."""
    from clusterrun.records.end_records import end_of
    from clusterrun.state.reconcile import recorded_end

    for task in tasks:
        end = (recorded_end(task.run) or end_of(task.run)) if task.run is not None else None
        if end is not None and end.outcome is Outcome.FAILED:
            return task
    return tasks[0]


def find_target(cluster: Cluster, word: str, *, active: bool = False, newest: bool = False) -> Target:
    """Return the only job that a word names, as ``find_targets`` does."""
    return find_targets(cluster, [word], active=active, newest=newest)[0]


def require_run(cluster: Cluster, target: Target, hint: str) -> RunRecord:
    """Return the run of a job. Raises NoSuchJob, also for another tool's job."""
    if target.run is not None:
        return target.run
    cluster.status([target])  # raises NoSuchJob for a job that nobody knows
    raise NoSuchJob(f"job {target.text} was not submitted by clusterrun", hint=hint)


def find_sweep(cluster: Cluster, word: str) -> tuple[Sweep, list[str]]:
    """Return the sweep that a name, a job id or a run id belongs to, and the newest run id of each task, empty if none.

    Raises NoSuchJob if there is none.
    """
    from clusterrun.records.sweeps import sweep_of  # only a sweep needs it

    run = _find(cluster, word)[0].run
    sweep = sweep_of(run) if run is not None else None
    if sweep is None:
        raise NoSuchJob(
            f"{word[:40]} is not a sweep", hint="give the name of a sweep, or the job id of one of its tasks"
        )
    return sweep, sweep.newest_runs()


def _find(cluster: Cluster, word: str, *, active: bool = False, newest: bool = False) -> list[Target]:
    """Return the job that a word names; if it names a whole sweep or a whole array, each task."""
    if is_run_id(word):
        return [cluster.find(word)]
    if is_job_id(word):
        from clusterrun.state.reconcile import Target  # a submission loads none of it

        tasks = cluster.store().array_of(JobId.parse(word))
        return [Target(run.run_id, run) for run in tasks] or [cluster.find(word)]
    if word == LAST:
        return _tasks(cluster, cluster.find(_last(cluster, active=active and not newest)))
    return _tasks(cluster, cluster.find(_find_named(cluster, word, active=active)))


def _tasks(cluster: Cluster, target: Target) -> list[Target]:
    """Return the newest run of each task of the sweep that a job belongs to, of any other job itself."""
    from clusterrun.records.sweeps import sweep_of

    run = target.run
    if run is None or not run.sweep:
        return [target]
    sweep = sweep_of(run)
    if sweep is not None:
        run_ids = sweep.newest_runs()
    else:  # the command that made it was interrupted
        summaries = sorted(cluster.store(run.root).summaries(here=True), key=_AGE)
        run_ids = [one.run_id for one in summaries if one.sweep == run.sweep]
    return [cluster.find(run_id) for run_id in run_ids if run_id] or [target]


def _find_named(cluster: Cluster, name: str, *, active: bool) -> str:
    """Return the run id, or the external job's id, of the newest job of a name."""
    runs = _runs_named(cluster, name)
    if not runs and not name[:1].isalpha():
        JobId.parse(name)  # raises RequestError: it is more likely a mistyped id than a name
    if (active or not runs) and (active_job := _find_active(cluster, name, runs)):
        return active_job
    if not runs:
        raise NoSuchJob(f"no job is named {name[:40]}", hint=_near(cluster, name))
    _note_older(cluster, *runs)
    return runs[-1].run_id


def _near(cluster: Cluster, name: str) -> str:
    """Return the hint for a name that no job has."""
    import difflib  # its import takes longer than the rest of this module

    names = {LAST, *(run.name for run in cluster.store().summaries())}
    near = difflib.get_close_matches(name, sorted(names), n=1)
    return f"did you mean {near[0]}?" if near else "`clusterrun list --all` shows your jobs"


def _note_older(cluster: Cluster, *runs: RunSummary) -> None:
    """Print that a name means its newest run, which comes last, if there are others beside the tasks of its sweep."""
    newest = runs[-1]
    older = [run.handle for run in reversed(runs[:-1]) if not run.sweep or run.sweep != newest.sweep]
    if older:
        others = ", ".join(older[:_SHOWN]) + (", …" if len(older) > _SHOWN else "")
        what = f"{len(older) + 1} jobs are named {newest.name}"
        cluster.notify(f"{what}; using the newest, {newest.handle} (older: {others})")


def _runs_named(cluster: Cluster, name: str) -> list[RunSummary]:
    """Return the runs of a name, oldest first: those of this project if it has any."""
    store = cluster.store()
    runs = sorted((run for run in store.summaries() if run.name == name), key=_AGE)
    return [run for run in runs if run.root in (store.root, store.base)] or runs


def _find_active(cluster: Cluster, name: str, runs: Sequence[RunSummary]) -> str:
    """Return the active job of a name, also another tool's, by what to type for it; empty if there is none.

    ``runs`` are those of the name. The user chooses one of several; raises RequestError if there is no terminal for
    that, and SchedulerError if only Slurm may know the name and does not respond.
    """
    store = cluster.store()
    listed = _listed(cluster, runs[-1].run_id if runs else "")
    named = [state for state in listed if state.name == name]
    here = [state for state in named if state.record is not None and store.is_here(state.record)]
    jobs = _handles(here or named)
    if len(jobs) < 2:
        return "".join(jobs.values())
    message = f"{len(jobs)} jobs are named {safe_line(name)}"
    if not sys.stdin.isatty():
        raise RequestError(f"{message}: {', '.join([*jobs][:_LISTED])}", hint="give one of these ids")
    return jobs[click.prompt(f"{message}. Which one", type=click.Choice([*jobs]), err=True)]


def _listed(cluster: Cluster, newest: str) -> list[RunState]:
    """Return the active jobs of ``list``; none if Slurm does not respond, which a later query reports.

    The newest run that a word may mean counts as active unless it is known that it is not: while its submission is in
    progress or in doubt, no older job stands for it. Without such a run it raises SchedulerError.
    """
    try:
        states = cluster.listing(all_clusters=True).states  # without a notice about runs out of reach
    except SchedulerError:
        if not newest:
            raise
        return []
    return [state for state in states if _may_be_active(state, newest)]


def _may_be_active(state: RunState, newest: str) -> bool:
    is_in_doubt = state.status.outcome is Outcome.UNKNOWN and state.run_id == newest
    return is_in_doubt or not state.status.is_over


def _handles(states: Sequence[RunState]) -> dict[str, str]:
    """Return what to show and what to type for each job; a run, a sweep and an array are each one job."""
    from clusterrun.state.show import handle

    jobs: dict[tuple[str, str], list[RunState]] = defaultdict(list)
    for state in states:
        run, job = state.record, state.status.id
        jobs[("", run.sweep or run.run_id) if run is not None else (job.cluster, job.base)].append(state)
    words: dict[str, str] = {}
    for (cluster, base), (first, *others) in jobs.items():
        if first.record is not None:
            words[handle(first)] = first.record.run_id
        else:
            number = base if others else str(first.status.id)
            external = f"{number};{cluster}" if cluster else number
            words[external] = external
    return words


def _last(cluster: Cluster, *, active: bool) -> str:
    """Return the run that was submitted last from the current project, with ``active`` if it is; checks aside."""
    runs = [run for run in cluster.store().summaries(here=True) if not run.is_check]
    if not runs:
        raise NoSuchJob(
            f"no job was submitted from {cluster.store().root}", hint="give a job id; `clusterrun list` shows your jobs"
        )
    newest = max(runs, key=_AGE)
    run = _newest_active(cluster, runs, newest) if active else newest
    changed = "" if run is newest else f"job {newest.handle} is not active; using "
    cluster.notify(f"{LAST}: {changed}{_shown(run)}")
    return run.run_id


def _shown(run: RunSummary) -> str:
    if run.sweep:
        return f"the sweep {safe_line(run.name)}"
    return f"{'run' if run.handle == run.run_id else 'job'} {run.handle} ({safe_line(run.name)})"


def _newest_active(cluster: Cluster, runs: Sequence[RunSummary], newest: RunSummary) -> RunSummary:
    """Return the newest active run; the newest of all if none is active."""
    active = {state.run_id for state in _listed(cluster, newest.run_id)}
    return max((run for run in runs if run.run_id in active), key=_AGE, default=newest)
