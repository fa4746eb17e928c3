"""``list --watch``: the table again and again, in place on a terminal, a block for each change in a pipe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from clusterrun.cli.jobs import nothing, rows
from clusterrun.cluster import Cluster
from clusterrun.errors import ClusterrunError
from clusterrun.listing import Wanted
from clusterrun.live.pace import Pace
from clusterrun.states import RunState
from clusterrun.states_shown import LIST_COLUMNS, ago, list_row
from clusterrun.tables import fit
from clusterrun.text import safe_line
from clusterrun.ui import Ui

#: Seconds between two drawings on a terminal: times and steps go on from our own files, Slurm is not asked for them.
REDRAW = 2.0


def watch_list(
    ui: Ui, wanted: Wanted, *, expand: bool, ask: Callable[[], Sequence[RunState]] | None = None,
    pace: Pace | None = None, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic,
) -> NoReturn:  # fmt: skip
    """Show the list until it is interrupted, asking the scheduler as rarely as ``pace`` says."""
    told: list[str] = []
    if ask is None:
        cluster = Cluster(tell=told.append, sparing=True)
        ask = partial(rows, cluster, wanted, expand=expand)
    pace = pace or Pace()
    found: Sequence[RunState] = ()
    answered, words, drawn, due = now(), None, 0, now()
    while True:
        if now() >= due:
            told.clear()
            began = now()
            try:
                found = ask()
            except ClusterrunError as error:
                told.append(f"{error.message} {error.said}".rstrip())
            answered = answered if told else began
            before, words = words, [*told, *map(_words, found)]
            due = now() + pace.after(changed=words != before, failed=bool(told), took=now() - began)
            if not ui.on_terminal and words != before:
                ui.say(*[""][: before is not None], *_table(found, 0, wanted, None), *told)
        if ui.on_terminal:
            passed = now() - answered
            trouble = [f"{told[-1]} (last answer {ago(passed)} ago)"] if told else []
            drawn = ui.screen([*_table(found, passed, wanted, shutil.get_terminal_size().columns), *trouble], drawn)
        sleep(min(REDRAW, max(0.05, due - now())))


def _table(found: Sequence[RunState], passed: float, wanted: Wanted, width: int | None) -> list[str]:
    if not found:
        return [nothing(wanted)]
    cells = [[safe_line(cell) for cell in list_row(_aged(state, passed))] for state in found]
    return fit(LIST_COLUMNS, cells, width)


def _aged(state: RunState, passed: float) -> RunState:
    """A state whose time has gone on since it was asked for."""
    job = state.status
    if job.state != "RUNNING" or job.elapsed is None or state.as_of is not None:
        return state
    return replace(state, status=replace(job, elapsed=job.elapsed + int(passed)))


def _words(state: RunState) -> tuple[str, ...]:
    """What makes a change: not the time, which always does."""
    job = state.status
    return str(job.id), job.tasks, job.state, job.reason, job.nodes, str(job.restarts)
