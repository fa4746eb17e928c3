"""Following a run to its end: what ``logs -f``, ``submit --follow``, ``submit --wait`` and ``wait`` share."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from typing import Literal

from clusterrun.cluster import Cluster
from clusterrun.job import Outcome
from clusterrun.logs import follow, log_paths
from clusterrun.states import RunState
from clusterrun.store import RunRecord
from clusterrun.ui import Ui, state_json


def exit_code(states: Sequence[RunState]) -> int:
    """0 when all are done, 75 where one is unknown or lost, else 1."""
    outcomes = {state.status.outcome for state in states}
    if outcomes & {Outcome.UNKNOWN, Outcome.LOST}:
        return 75
    return 0 if outcomes <= {Outcome.DONE} else 1


def follow_to_end(
    ui: Ui, cluster: Cluster, run: RunRecord, *, tail: int | None = None, ranks: Collection[int] | None = None,
    stream: Literal["out", "err", "both"] = "both", grep: re.Pattern[str] | None = None,
) -> int:  # fmt: skip
    """Print a run's lines until it is over; returns the exit code of its outcome."""
    watch = cluster.watch([run])
    said = ""

    def over() -> bool:
        nonlocal said
        state = watch.look()[0]
        line = state.note or f"{state.status.state} {state.status.reason}".rstrip()
        settled = watch.settled(state)
        if line != said and state.status.state != "RUNNING" and not settled:
            ui.note(f"job {state.status.id}: {line}")
        said = line
        return settled

    assert run.job_id is not None
    lines = follow(
        log_paths(run.logs, run.job_id),
        stop=over,
        stream=stream,
        ranks=ranks,
        tail=tail,
        grep=grep,
        world_size=run.world_size,
    )
    width = len(str(run.world_size - 1))
    try:
        for line in lines:
            ui.log_line(line, width)
    except KeyboardInterrupt:
        ui.note(f"job {run.job_id} goes on; `clusterrun cancel {run.job_id}` ends it")
        raise
    return report_end(ui, watch.look())


def wait_to_end(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord], *, one: bool = False) -> int:
    """Wait for runs and print how each ended; returns the exit code of their outcomes.

    With ``one`` the JSON data is the one run's state, else a list of them.
    """
    states = cluster.wait(runs, sleep=time.sleep)
    data = [state_json(state) for state in states]
    ui.data(data[0] if one else data)
    return report_end(ui, states)


def report_end(ui: Ui, states: Sequence[RunState]) -> int:
    """One line on how each run ended, with the first cause where its files show one."""
    from clusterrun import diagnose  # and not above: most commands end without it

    for state in states:
        job = state.status
        words = f"job {job.id}: {job.state}" + (f" ({job.outcome.value})" if job.outcome is not Outcome.DONE else "")
        ui.note(words + (f": {job.reason}" if job.reason else ""))
        first = diagnose.in_one_line(state)
        if first:
            ui.note(first)
    return exit_code(states)
