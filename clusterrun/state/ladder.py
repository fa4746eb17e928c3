"""The report of a ladder: what its rungs have in common, and what differs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from clusterrun.job import Outcome
from clusterrun.records import progress
from clusterrun.records.run_record import RunRecord
from clusterrun.state.reconcile import RunState
from clusterrun.submit.ladder import global_batch
from clusterrun.system import safe_files
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import Column, fit
from clusterrun.terminal.units import format_duration

TOLERANCE = 0.02
"""The share by which the losses of two rungs of one global batch may differ: other sums, another schedule."""
_HEAD = 1 << 20  # bytes of metrics.jsonl: the first thousands of rows
_COLUMNS = ("RUNG", "JOBID", "RANKS", "NODES", "BATCH", "STEPS/EPOCH", "LOSS", "TOKENS/S", "SPEED-UP", "TIME", "STATE")


@dataclass(frozen=True, slots=True)
class RungResult:
    """One rung: its state, and from its metrics the loss by step, the speed in tokens/s and the steps per epoch."""

    state: RunState
    run: RunRecord
    batch: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)
    speed: float | None = None
    steps_per_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of a ladder, smallest first, and the conclusions from them.

    ``stopped`` is the first rung that failed, None if there is none; ``cause`` is why.
    """

    rungs: Sequence[RungResult]
    stopped: RungResult | None = None
    cause: str = ""

    @property
    def common_step(self) -> int | None:
        """The last step of which every rung with metrics has a loss."""
        known = [set(one.losses) for one in self.rungs if one.losses]
        return max(set.intersection(*known), default=None) if len(known) > 1 else None

    @property
    def verdicts(self) -> list[str]:
        """Whether losses, steps and speed are as they should be, in one line each."""
        measured = [one for one in self.rungs if one.losses]
        if len(measured) < 2:
            return []
        first, last, step = measured[0], measured[-1], self.common_step
        lines = []
        if any(one.batch != first.batch for one in measured):
            lines.append(_compare_steps(measured))
        elif step is not None:
            lines.append(_compare_losses(measured, step))
        if first.speed and last.speed:
            ranks, times = last.run.world_size / first.run.world_size, last.speed / first.speed
            lines.append(f"speed-up {times:.2f} on {ranks:.0f} times the ranks: efficiency {times / ranks:.0%}")
        return lines

    def lines(self) -> list[str]:
        """Return the report."""
        rows = [[safe_line(cell) for cell in self._row(one)] for one in self.rungs]
        kept = [i for i in range(len(_COLUMNS)) if any(row[i] for row in rows)]  # a script has no losses
        columns = [Column(_COLUMNS[i], right=_COLUMNS[i] not in ("JOBID", "STATE")) for i in kept]
        lines = fit(columns, [[row[i] for i in kept] for row in rows], None)
        if self.stopped is not None:
            number = self.rungs.index(self.stopped) + 1
            why = f": {self.cause}" if self.cause else ""
            job = self.stopped.state.status
            lines.append(f"stopped at rung {number} of {len(self.rungs)}: job {job.id} is {job.state}{why}")
        return [*lines, *self.verdicts]

    def json(self) -> dict[str, Any]:
        """Return the report for ``--json``; times in seconds."""
        step = self.common_step
        rungs = [
            {
                "job_id": str(one.state.status.id), "run_id": one.run.run_id, "state": one.state.status.state,
                "ranks": one.run.world_size, "nodes": one.run.nodes, "global_batch": one.batch or None,
                "steps_per_epoch": one.steps_per_epoch, "loss": None if step is None else one.losses.get(step),
                "tokens_per_second": one.speed, "elapsed": one.state.status.elapsed,
            }
            for one in self.rungs
        ]  # fmt: skip
        stopped = None if self.stopped is None else str(self.stopped.state.status.id)
        return {
            "rungs": rungs, "common_step": step, "stopped_at": stopped, "cause": self.cause or None,
            "verdicts": self.verdicts,
        }  # fmt: skip

    def _row(self, one: RungResult) -> list[str]:
        job, step, first = one.state.status, self.common_step, self.rungs[0].speed
        return [
            str(self.rungs.index(one) + 1),
            str(job.id),
            str(one.run.world_size),
            str(one.run.nodes),
            str(one.batch or ""),
            str(one.steps_per_epoch or ""),
            f"{one.losses[step]:.4f}" if step is not None and step in one.losses else "",
            f"{one.speed:,.0f}" if one.speed else "",
            f"{one.speed / first:.2f}" if one.speed and first else "",
            format_duration(job.elapsed) if job.elapsed is not None else "",
            job.state,
        ]


def load_ladder(states: Sequence[RunState], cause: Callable[[RunState], str]) -> Ladder:
    """Return the report of rungs, smallest first; ``cause`` returns the first cause of an end in one line."""
    rungs = [_load_rung(state, state.record) for state in states if state.record is not None]
    failed = next((one for one in rungs if one.state.status.outcome not in (Outcome.DONE, Outcome.RUNNING)), None)
    return Ladder(rungs, failed, cause(failed.state) if failed is not None else "")


def _load_rung(state: RunState, run: RunRecord) -> RungResult:
    settings = run.sources.get("set", ({}, ""))[0]
    rows = _rows(run)
    losses = {int(row["step"]): float(row["loss"]) for row in rows if "loss" in row}
    # the first step is slower than all others
    speeds = [float(row["tokens_per_second"]) for row in rows if row["step"] > 1 and "tokens_per_second" in row]
    epochs = [(row["step"], row["epoch"]) for row in rows if row.get("epoch", 0) > 1e-9]
    return RungResult(
        state, run,
        batch=global_batch(settings, run.world_size) if isinstance(settings, Mapping) else 0,
        losses=losses,
        speed=median(speeds) if speeds else None,
        steps_per_epoch=round(epochs[-1][0] / epochs[-1][1]) if epochs else None,
    )  # fmt: skip


def _rows(run: RunRecord) -> list[dict[str, Any]]:
    """Return the rows at the beginning of a run's metrics whose values are finite numbers."""
    try:
        with safe_files.open_file(run.run_dir / "metrics.jsonl") as file:
            data = os.pread(file, _HEAD, 0)
    except OSError:
        return []
    rows = progress.parse_rows(data.split(b"\n")[:-1])  # the last line may be incomplete
    return [
        {name: value for name, value in row.items() if _is_finite(value)} for row in rows if _is_finite(row.get("step"))
    ]


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _compare_losses(rungs: Sequence[RungResult], step: int) -> str:
    first = rungs[0].losses[step]
    worst = max(rungs, key=lambda one: abs(one.losses[step] - first))
    share = abs(worst.losses[step] - first) / max(abs(first), 1e-9)
    if share <= TOLERANCE:
        return f"same loss at step {step}, within {TOLERANCE:.0%} (largest difference {share:.2%})"
    return (
        f"DIFFERENT loss at step {step}: {worst.losses[step]:.4f} on {worst.run.world_size} ranks, {first:.4f} on"
        f" {rungs[0].run.world_size}, with the same global batch"
    )


def _compare_steps(rungs: Sequence[RungResult]) -> str:
    """Compare the steps per epoch with 1/N, as the global batch grows; each is rounded, so it may be off by one."""
    first = rungs[0]
    shown = ", ".join(str(one.steps_per_epoch or "?") for one in rungs)
    wrong = [
        one for one in rungs
        if one.steps_per_epoch and first.steps_per_epoch and one.batch
        and abs(one.steps_per_epoch - first.steps_per_epoch * first.batch / one.batch) > 1
    ]  # fmt: skip
    if wrong:
        expected = (first.steps_per_epoch or 0) * first.batch / wrong[0].batch
        return f"WRONG steps per epoch: {shown}; {expected:.0f} expected on {wrong[0].run.world_size} ranks"
    return f"steps per epoch fall as 1/N, as the global batch grows: {shown}"
