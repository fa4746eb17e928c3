"""``--watch``: refresh an answer, in place on a terminal, as a block for each change in a pipe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobId, JobStatus
from clusterrun.base.units import format_age
from clusterrun.cli.common.show import first_cause, list_jobs, no_jobs_message, status_lines
from clusterrun.cluster import Cluster
from clusterrun.state import filters
from clusterrun.state.filters import JobFilter
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.show import LIST_COLUMNS, list_row
from clusterrun.state.watch import Watch
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import fit
from clusterrun.terminal.ui import Ui

#: Seconds between two drawings on a terminal: times and steps come from the runs' files, without a query to Slurm.
REDRAW = 2.0
#: A drawing that took t seconds is followed by a pause of at least t times this: the ranks' files may be slow to read.
_REST = 10


class View(Protocol):
    """Jobs that are queried again and again, and the lines that show them."""

    #: Why the last query did not respond for all jobs.
    problems: list[str]

    def query(self) -> Listing:
        """Return the current state of the jobs; what did not respond goes to ``problems``."""

    def has_news(self) -> bool:
        """Return whether a query is worthwhile as soon as the pace allows."""

    def is_over(self, states: Sequence[RunState]) -> bool:
        """Return whether nothing will change any more."""

    def lines(self, states: Sequence[RunState], width: int | None) -> list[str]:
        """Return the jobs as lines that fit a terminal of this width (None: a pipe)."""


def watch_jobs(
    ui: Ui, view: View, *, pace: Pace | None = None, sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Sequence[RunState]:  # fmt: skip
    """Show jobs until all have ended or Ctrl-C is pressed, and query the scheduler as rarely as ``pace`` says.

    Return the last states. An error of the first query is raised; after later ones the query is repeated.
    """
    pace = pace or Pace()
    listing = Listing()
    asked = answered = due = now()
    shown, drawn = None, 0
    while True:
        if now() >= due:
            view.problems.clear()
            asked = now()
            try:
                listing = view.query()
            except ClusterrunError as error:
                if shown is None:
                    raise
                view.problems.append(f"{error.message} {error.detail}".rstrip())
                listing = Listing(listing.states)
            states = listing.states
            failed = bool(view.problems) or any(state.is_old for state in states)
            answered = answered if failed else asked - listing.age
            before, shown = shown, [*view.problems, *(state.change_key for state in states)]
            wait = pace.after(changed=shown != before, failed=failed, took=now() - asked)
            due = now() + wait - listing.age
            if not ui.on_terminal and shown != before:
                ui.say(*[""][: before is not None], *view.lines(states, None), *view.problems)
        over, began, age = view.is_over(states), now(), now() - answered
        if ui.on_terminal:
            problem = [f"{view.problems[-1]} (last answer {format_age(age)} ago)"] if view.problems else []
            width = shutil.get_terminal_size().columns
            drawn = ui.screen([*view.lines([s.aged(age) for s in states], width), *problem], drawn)
        if over:
            if ui.on_terminal:  # once more, uncut, to copy from
                ui.screen([], drawn)
                ui.say(*view.lines(states, None), *view.problems)
            return states
        if view.has_news():
            due = min(due, asked + pace.floor)
        sleep(min(max(REDRAW, _REST * (now() - began)), max(0.05, due - now())))


class JobList:
    """The view of ``list --watch``; it is never over. ``problems`` is where the cluster sends its notices."""

    def __init__(self, cluster: Cluster, problems: list[str], job_filter: JobFilter, *, expand: bool) -> None:
        self.problems = problems
        self._cluster, self._filter, self._expand = cluster, job_filter, expand

    def query(self) -> Listing:
        return list_jobs(self._cluster, self._filter, expand=self._expand)

    def has_news(self) -> bool:
        return False

    def is_over(self, states: Sequence[RunState]) -> bool:
        return False

    def lines(self, states: Sequence[RunState], width: int | None) -> list[str]:
        if not states:
            return [no_jobs_message(self._filter)]
        return fit(LIST_COLUMNS, [[safe_line(cell) for cell in list_row(state)] for state in states], width)


class NamedJobs:
    """The view of ``status --watch``: jobs in full, over once each has a final state or no source knows it any more."""

    def __init__(self, cluster: Cluster, names: Sequence[str], *, explain: bool) -> None:
        self.problems: list[str] = []
        self._order = cluster.find_jobs(names)
        self._watches = cluster.watches(self._order)
        self._explain = explain
        self._found: list[tuple[Watch, RunState]] = []
        self._causes: dict[JobStatus, str] = {}

    def query(self) -> Listing:
        # the watches have just queried when they were created: the first poll uses that answer
        polled = [(one, one.poll(due=bool(self._found))) for one in self._watches]
        self._found = [(one, state) for one, listing in polled for state in listing.states]
        states = filters.collapse(sorted((state for _, state in self._found), key=self._position))
        return Listing(states, max((listing.age for _, listing in polled), default=0.0))

    def has_news(self) -> bool:
        return any(one.has_news() for one in self._watches)

    def is_over(self, states: Sequence[RunState]) -> bool:
        return all(one.is_settled(state) for one, state in self._found)

    def lines(self, states: Sequence[RunState], width: int | None) -> list[str]:
        return status_lines(states, explain=self._explain, cause=self._first_cause)

    def _first_cause(self, state: RunState) -> str:
        if state.status not in self._causes:  # it reads logs, and lines are made at each drawing
            self._causes[state.status] = first_cause(state)
        return self._causes[state.status]

    def _position(self, state: RunState) -> int:
        job = state.status.id
        names = (
            one.raw == job.raw and one.task in (None, job.task)
            if isinstance(one, JobId)
            else state.record is not None and state.record.submission.key == one.submission.key
            for one in self._order
        )
        return next((number for number, found in enumerate(names) if found), 0)
