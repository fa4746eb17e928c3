"""``--watch``: refresh an answer, in place on a terminal, as a block for each change in a pipe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.base.job import JobStatus
from clusterrun.base.units import format_age
from clusterrun.cli.common.show import ending_of, list_jobs, no_jobs_message, status_lines
from clusterrun.cluster import Cluster
from clusterrun.state import filters
from clusterrun.state.filters import JobFilter
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import Listing, RunState, Target
from clusterrun.state.show import LIST_COLUMNS, list_row
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import UNLIMITED, filled, fit
from clusterrun.terminal.ui import Ui

#: Seconds between two drawings on a terminal: times and steps come from the runs' files, without a query to Slurm.
REDRAW = 2.0
#: A drawing that took t seconds is followed by a pause of at least t times this: the ranks' files may be slow to read.
_REST = 10


def refuse_json(ui: Ui, command: str) -> None:
    """Raise RequestError for ``--watch`` with ``--json``."""
    if ui.as_json:
        raise RequestError(
            "--watch and --json cannot be combined", hint=f"run `clusterrun {command} --json` repeatedly instead"
        )


def watch_jobs(
    ui: Ui, view: JobList | NamedJobs, *, pace: Pace | None = None, sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Sequence[RunState]:  # fmt: skip
    """Show jobs until all have ended or Ctrl-C is pressed, and query the scheduler as rarely as ``pace`` says.

    Return the last states. An error of the first query is raised; after later ones the query is repeated.
    """
    queries = _Queries(view, pace, now)
    drawn = 0
    while True:
        if now() >= queries.due:
            is_first = queries.shown is None
            has_changed = queries.query()
            if has_changed and not ui.on_terminal:
                _print_block(ui, view, queries.states, is_first=is_first)
        is_over, began = view.is_over(queries.states), now()
        if ui.on_terminal:
            drawn = _draw(ui, view, queries.states, began - queries.answered, drawn)
        if is_over:
            if ui.on_terminal:  # once more, uncut, to copy from
                ui.screen([], drawn)
                _print_block(ui, view, queries.states, is_first=True)
            return queries.states
        if view.has_news():
            queries.query_soon()
        pause = max(REDRAW, _REST * (now() - began))
        sleep(min(pause, max(0.05, queries.due - now())))


class _Queries:
    """The queries of a view: when the next is due, and what the last one returned. Times are those of ``now``."""

    def __init__(self, view: JobList | NamedJobs, pace: Pace | None, now: Callable[[], float]) -> None:
        self._view, self._pace, self._now = view, pace or Pace(), now
        self.states: Sequence[RunState] = ()
        self.shown: list[object] | None = None  # what a reader sees of the states: a change is worth a new block
        self.asked = self.answered = self.due = now()

    def query(self) -> bool:
        """Query the jobs, decide when to query again, and return whether a reader sees a change."""
        problems = self._view.problems
        problems.clear()
        self.asked = self._now()
        listing = self._answer()
        self.states = listing.states
        has_failed = bool(problems) or any(state.is_old for state in self.states)
        if not has_failed:
            self.answered = self.asked - listing.age
        before, self.shown = self.shown, [*problems, *(state.change_key for state in self.states)]
        has_changed = self.shown != before
        wait = self._pace.after(changed=has_changed, failed=has_failed, took=self._now() - self.asked)
        self.due = self._now() + wait - listing.age
        return has_changed

    def query_soon(self) -> None:
        """Query as soon as the pace allows."""
        self.due = min(self.due, self.asked + self._pace.floor)

    def _answer(self) -> Listing:
        """Return the jobs, their last states if there is no answer; an error of the first query is raised."""
        try:
            return self._view.query()
        except ClusterrunError as error:
            if self.shown is None:
                raise
            self._view.problems.append(f"{error.message} {error.detail}".rstrip())
            return Listing(self.states)


def _print_block(ui: Ui, view: JobList | NamedJobs, states: Sequence[RunState], *, is_first: bool) -> None:
    """Print the jobs uncut, below an empty line unless they are the first."""
    if not is_first:
        ui.say("")
    ui.say(*view.lines(states, UNLIMITED), *view.problems)


def _draw(ui: Ui, view: JobList | NamedJobs, states: Sequence[RunState], age: float, drawn: int) -> int:
    """Draw the jobs over the last ``drawn`` lines; ``age`` is that of the last answer. Return the number of lines."""
    lines = view.lines([state.aged(age) for state in states], shutil.get_terminal_size().columns)
    if view.problems:
        lines = [*lines, f"{view.problems[-1]} (last answer {format_age(age)} ago)"]
    return ui.screen(lines, drawn)


class JobList:
    """The view of ``list --watch``; it is never over.

    ``problems`` is where the cluster sends its notices: why the last query did not respond for all jobs.
    """

    def __init__(self, cluster: Cluster, problems: list[str], job_filter: JobFilter, *, expand: bool) -> None:
        self.problems = problems
        self._cluster, self._filter, self._expand = cluster, job_filter, expand

    def query(self) -> Listing:
        return list_jobs(self._cluster, self._filter, expand=self._expand)

    def has_news(self) -> bool:
        """Return whether a query is worthwhile as soon as the pace allows."""
        return False

    def is_over(self, states: Sequence[RunState]) -> bool:
        """Return whether nothing will change any more."""
        return False

    def lines(self, states: Sequence[RunState], width: int) -> list[str]:
        """Return the jobs as lines that fit this width."""
        if not states:
            return [no_jobs_message(self._filter)]
        rows = [[safe_line(cell) for cell in list_row(state)] for state in states]
        shown = filled(LIST_COLUMNS, rows)
        return fit([LIST_COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in rows], width)


class NamedJobs:
    """The view of ``status --watch``: jobs in full, over once each has a final state or no source knows it any more."""

    def __init__(self, cluster: Cluster, targets: Sequence[Target], *, explain: bool) -> None:
        self.problems: list[str] = []
        self._order = cluster.live_targets(targets)
        self._watch = cluster.watch(self._order)
        self._explain = explain
        self._states: Sequence[RunState] = ()
        self._cluster = cluster
        self._endings: dict[JobStatus, tuple[str, list[str]]] = {}

    def query(self) -> Listing:
        is_due = bool(self._states)  # external jobs were queried when the watch began: the first poll uses that answer
        listing = self._watch.poll(due=is_due)
        self._states = sorted(listing.states, key=self._position)
        return Listing(filters.collapse(self._states), listing.age)

    def has_news(self) -> bool:
        return self._watch.has_news()

    def is_over(self, states: Sequence[RunState]) -> bool:
        return all(map(self._watch.is_settled, self._states))

    def lines(self, states: Sequence[RunState], width: int) -> list[str]:
        return status_lines(states, explain=self._explain, ending=self._ending)

    def _ending(self, state: RunState) -> tuple[str, list[str]]:
        if state.status not in self._endings:  # it reads logs, and lines are made at each drawing
            self._endings[state.status] = ending_of(self._cluster, state)
        return self._endings[state.status]

    def _position(self, state: RunState) -> int:
        return next((number for number, target in enumerate(self._order) if target.covers(state)), 0)
