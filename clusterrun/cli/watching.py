"""``--watch``: an answer again and again, in place on a terminal, a block for each change in a pipe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from clusterrun.cli.jobs import first_cause, is_certain, nothing, rows, status_lines
from clusterrun.cluster import Cluster
from clusterrun.errors import ClusterrunError
from clusterrun.job import JobId, JobStatus
from clusterrun.state import filters
from clusterrun.state.filters import JobFilter
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.show import LIST_COLUMNS, list_row
from clusterrun.state.watch import Watch
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import fit
from clusterrun.terminal.ui import Ui
from clusterrun.terminal.units import format_age

#: Seconds between two drawings on a terminal: times and steps go on from our own files, Slurm is not asked for them.
REDRAW = 2.0
#: Ranks write a file each: where these are slow to read, they are read for a tenth of the time at most.
_REST = 10


class Shown(Protocol):
    """What is shown: jobs that are asked for, and lines made of them."""

    told: list[str]

    def ask(self) -> Listing:
        """The jobs as they are now, and in ``told`` why nobody could say."""

    def has_news(self) -> bool:
        """Whether it is worth asking as soon as the pace allows."""

    def is_over(self, found: Sequence[RunState]) -> bool:
        """Whether there is nothing more to come."""

    def lines(self, found: Sequence[RunState], width: int | None) -> list[str]:
        """The jobs in lines, in columns as wide as a terminal where there is one."""


def watch(
    ui: Ui, shown: Shown, *, pace: Pace | None = None, sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Sequence[RunState]:  # fmt: skip
    """Show jobs until all is over or it is interrupted, asking the scheduler as rarely as ``pace`` says.

    Returns the last states. What the first question raises is raised; later ones are asked again.
    """
    pace = pace or Pace()
    listing = Listing()
    asked = answered = due = now()
    words, drawn = None, 0
    while True:
        if now() >= due:
            shown.told.clear()
            asked = now()
            try:
                listing = shown.ask()
            except ClusterrunError as error:
                if words is None:
                    raise
                shown.told.append(f"{error.message} {error.said}".rstrip())
                listing = Listing(listing.states)
            found = listing.states
            failed = bool(shown.told) or any(state.is_old for state in found)
            answered = answered if failed else asked - listing.age
            before, words = words, [*shown.told, *(state.change_key for state in found)]
            wait = pace.after(changed=words != before, failed=failed, took=now() - asked)
            due = now() + wait - listing.age
            if not ui.on_terminal and words != before:
                ui.say(*[""][: before is not None], *shown.lines(found, None), *shown.told)
        over, began, passed = shown.is_over(found), now(), now() - answered
        if ui.on_terminal:
            trouble = [f"{shown.told[-1]} (last answer {format_age(passed)} ago)"] if shown.told else []
            width = shutil.get_terminal_size().columns
            drawn = ui.screen([*shown.lines([s.aged(passed) for s in found], width), *trouble], drawn)
        if over:
            if ui.on_terminal:  # once more in full, to be copied from
                ui.screen([], drawn)
                ui.say(*shown.lines(found, None), *shown.told)
            return found
        if shown.has_news():
            due = min(due, asked + pace.floor)
        sleep(min(max(REDRAW, _REST * (now() - began)), max(0.05, due - now())))


class Listed:
    """The list; it is never over."""

    def __init__(self, wanted: JobFilter, *, expand: bool) -> None:
        self.told: list[str] = []
        self._cluster = Cluster(notify=self.told.append, polling=True)
        self._wanted, self._expand = wanted, expand

    def ask(self) -> Listing:
        return rows(self._cluster, self._wanted, expand=self._expand)

    def has_news(self) -> bool:
        return False

    def is_over(self, found: Sequence[RunState]) -> bool:
        return False

    def lines(self, found: Sequence[RunState], width: int | None) -> list[str]:
        if not found:
            return [nothing(self._wanted)]
        return fit(LIST_COLUMNS, [[safe_line(cell) for cell in list_row(state)] for state in found], width)


class Named:
    """Jobs that were named, in full; over once each is over for good, or nobody will tell of it any more."""

    def __init__(self, names: Sequence[str], tell: Callable[[str], None], *, explain: bool) -> None:
        self.told: list[str] = []
        cluster = Cluster(notify=tell, polling=True)
        known = {name: cluster.run(name) for name in dict.fromkeys(names)}
        runs = {run.run_id: run for run in known.values() if run is not None}
        self._others = [JobId.parse(name) for name, run in known.items() if run is None]
        self._order = [run.run_id if run is not None else JobId.parse(name) for name, run in known.items()]
        self._watches = cluster.watches([*runs.values()], self._others)
        self._explain = explain
        self._found: list[tuple[Watch, RunState]] = []
        self._causes: dict[JobStatus, str] = {}

    def ask(self) -> Listing:
        # the watches have just queried when they were created: the first poll uses that answer
        polled = [(one, one.poll(due=bool(self._found))) for one in self._watches]
        self._found = [(one, state) for one, listing in polled for state in listing.states]
        states = filters.collapse(sorted((state for _, state in self._found), key=self._place))
        return Listing(states, max((listing.age for _, listing in polled), default=0.0))

    def has_news(self) -> bool:
        return any(one.has_news() for one in self._watches)

    def is_over(self, found: Sequence[RunState]) -> bool:
        return all(one.is_settled(state) for one, state in self._found)

    def lines(self, found: Sequence[RunState], width: int | None) -> list[str]:
        return status_lines(found, explain=self._explain, first=self._first_cause)

    def _first_cause(self, state: RunState) -> str:
        if state.status not in self._causes:  # logs are read for it, and the lines are made again and again
            self._causes[state.status] = first_cause(state)
        return self._causes[state.status]

    def _place(self, state: RunState) -> int:
        job = state.status.id
        names = (
            state.record is not None and state.record.run_id == one
            if isinstance(one, str)
            else one.raw == job.raw and one.task in (None, job.task)
            for one in self._order
        )
        return next((number for number, found in enumerate(names) if found), 0)


def watch_status(ui: Ui, names: Sequence[str], *, explain: bool) -> int:
    """Show named jobs until all are over; returns the exit code that ``status`` has for how they stand then."""
    return 0 if is_certain(watch(ui, Named(names, ui.note, explain=explain))) else 75
