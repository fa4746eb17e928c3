"""A failed job whose nodes are held for debugging (``--on-failure hold``): Slurm still calls it RUNNING."""

from __future__ import annotations

import time
from dataclasses import replace

from clusterrun.records.end_records import end_of, load_hold
from clusterrun.state.reconcile import RunState

_LONGEST = 1e9  # seconds; a damaged record may hold any number


def held_line(state: RunState) -> str:
    """Return until when the job's nodes are held, and the command that opens a shell there; empty if they are not."""
    hold = load_hold(state.record) if state.record is not None and state.status.state == "RUNNING" else None
    if hold is None or not 0 < hold.until - time.time() < _LONGEST:
        return ""
    until = time.strftime("%H:%M", time.localtime(hold.until))
    return f"until {until}, after a failure; open a shell with: {hold.shell}"


def failed_state(state: RunState) -> RunState | None:
    """Return how a held job failed, None for any other job."""
    ended = end_of(state.record) if state.record is not None and held_line(state) else None
    return replace(state, status=ended) if ended is not None else None
