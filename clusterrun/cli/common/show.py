"""The text that ``status`` and ``list`` print, once or with ``--watch``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.job import Outcome
from clusterrun.cluster import Cluster
from clusterrun.state import filters
from clusterrun.state.filters import JobFilter
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.show import state_lines
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.records.run_record import RunRecord
    from clusterrun.report.card import Efficiency
    from clusterrun.state.ladder import Ladder

_PAST = {"cancel": "cancelled", "delete": "deleted", "upload": "uploaded"}


def status_lines(
    states: Sequence[RunState], *, explain: bool, ending: Callable[[RunState], tuple[str, list[str]]]
) -> list[str]:
    """Return jobs in full, separated by empty lines; ``ending`` returns the first cause and the card of an end."""
    lines: list[str] = []
    for state in states:
        first, used = ending(state)
        lines += ["", *state_lines(state, explain=explain, first=first, used=used)]
    return lines[1:]


def ending_of(cluster: Cluster, state: RunState) -> tuple[str, list[str]]:
    """Return the first cause of a job's end and its efficiency card; both empty of an active job."""
    return first_cause(state), card_lines(cluster, state)


def card_lines(cluster: Cluster, state: RunState) -> list[str]:
    """Return the efficiency card of an ended run; empty for any other job."""
    efficiency = efficiency_of(cluster, state)
    return efficiency.lines() if efficiency is not None else []


def efficiency_of(cluster: Cluster, state: RunState) -> Efficiency | None:
    """Return what an ended run used of what it asked for; None for any other job."""
    if state.record is None or not state.status.is_over:
        return None
    from clusterrun.report import usage  # most commands end without it

    return usage.efficiency_of(cluster.store(state.record.root), state)


def is_certain(states: Sequence[RunState]) -> bool:
    """Return whether the current state of all jobs is known."""
    return all(s.as_of is None and s.status.outcome not in (Outcome.UNKNOWN, Outcome.LOST) for s in states)


def confirm(ui: Ui, verb: str, what: str, columns: Sequence[Any], rows: Sequence[Sequence[str]]) -> bool:
    """Print rows, ask the user, and return the answer. Raises RequestError without a terminal."""
    if not sys.stdin.isatty():
        raise RequestError(
            f"refusing to {verb} {what} without confirmation", hint="add --yes, or check with --dry-run first"
        )
    ui.table(columns, rows)
    agreed = click.confirm(f"{verb.capitalize()} {what}?", err=True)
    if not agreed:
        ui.note(f"nothing was {_PAST[verb]}")
    return agreed


def exit_code(states: Sequence[RunState]) -> int:
    """Return 0 if all are done, 75 if one is unknown or lost, else 1."""
    outcomes = {state.status.outcome for state in states}
    if outcomes & {Outcome.UNKNOWN, Outcome.LOST}:
        return 75
    return 0 if outcomes <= {Outcome.DONE} else 1


def first_cause(state: RunState) -> str:
    """Return why a run failed, in one line; empty for a job that is active, done or has no record."""
    if state.record is None or state.status.outcome in (Outcome.DONE, Outcome.RUNNING):
        return ""
    from clusterrun.why import ended  # most commands end without it

    return ended.in_one_line(state)


def ladder_reports(cluster: Cluster, states: Sequence[RunState]) -> list[Ladder | None]:
    """Return for each job the report of its ladder up to this rung; None for a job that is none, or the first."""
    return [_ladder_report(cluster, state.record) for state in states]


def _ladder_report(cluster: Cluster, run: RunRecord | None) -> Ladder | None:
    if run is None or not run.rung_before:
        return None
    from clusterrun.state.ladder import Ladder  # most jobs are no rungs

    runs = cluster.ladder(run)
    return Ladder(cluster.states(runs), first_cause) if len(runs) > 1 else None


def list_jobs(cluster: Cluster, job_filter: JobFilter, *, expand: bool, merge_runs: bool = True) -> Listing:
    """Return the jobs that match a filter, in the order of ``list``; see :func:`filters.arrange`."""
    found = cluster.listing(
        everything=job_filter.history, all_clusters=job_filter.all_clusters, cluster=job_filter.cluster
    )
    chosen = filters.choose(found.states, job_filter)
    return found._replace(states=filters.arrange(chosen, expand=expand, merge_runs=merge_runs))


def no_jobs_message(job_filter: JobFilter) -> str:
    """Return the message for an empty list."""
    conditions = [f"on cluster {job_filter.cluster}"] if job_filter.cluster else []
    conditions += [f"in state {', '.join(sorted(job_filter.states))}"] if job_filter.states else []
    conditions += [f"named {job_filter.name}"] if job_filter.name else []
    conditions += ["newer than --since"] if job_filter.since is not None else []
    if conditions:
        return f"no jobs {', '.join(conditions)}"
    return "no jobs" if job_filter.history else "no active jobs; `clusterrun list --all` includes ended jobs"
