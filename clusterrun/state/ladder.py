"""The report of a ladder: what its rungs have in common, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from clusterrun.base.decode import as_int
from clusterrun.base.job import Outcome
from clusterrun.base.units import format_duration
from clusterrun.records import run_record
from clusterrun.records.progress import as_metrics, read_metrics
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.state.reconcile import RunState
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import Column, fit

TOLERANCE = 0.02
"""The share by which the losses of two rungs of one global batch may differ: other sums, another schedule."""
_COLUMNS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "rung": ("RUNG", str), "job_id": ("JOBID", str), "ranks": ("RANKS", str), "nodes": ("NODES", str),
    "global_batch": ("BATCH", str), "steps_per_epoch": ("STEPS/EPOCH", str), "loss": ("LOSS", "{:.4f}".format),
    "tokens_per_second": ("TOKENS/S", "{:,.0f}".format), "speedup": ("SPEED-UP", "{:.2f}".format),
    "elapsed": ("TIME", format_duration), "state": ("STATE", str),
}  # fmt: skip


class Rung:
    """One rung: its state, what its ranks recorded (0: nothing), the loss by step, and the median speed in tokens/s."""

    def __init__(self, state: RunState) -> None:
        self.state, self.run = state, state.run
        facts = _training_facts(self.run)
        micro, accum, self.steps_per_epoch = (as_int(facts.get(name)) or 0 for name in _TRAINING)
        self.batch = micro * accum * self.run.world_size
        rows = list(filter(None, map(as_metrics, read_metrics(self.run, first=True))))
        self.losses = {row.step: row.loss for row in rows if row.loss is not None}
        # the first step is slower than all others
        later = (row.tokens_per_second for row in rows if row.step > 1)
        speeds = [speed for speed in later if speed is not None]
        self.speed = median(speeds) if speeds else None

    @property
    def has_failed(self) -> bool:
        return self.state.status.outcome not in (Outcome.DONE, Outcome.RUNNING)


class Ladder:
    """The rungs of a ladder, smallest first.

    ``stopped`` is the first rung that failed, None if there is none; ``cause`` is why, which ``explain`` returns in one
    line.
    """

    def __init__(self, states: Sequence[RunState], explain: Callable[[RunState], str]) -> None:
        self.rungs = list(map(Rung, states))
        self.stopped = next((rung for rung in self.rungs if rung.has_failed), None)
        self.cause = explain(self.stopped.state) if self.stopped is not None else ""
        self.measured = [rung for rung in self.rungs if rung.losses]

    @property
    def common_step(self) -> int | None:
        """The last step of which every rung with metrics has a loss."""
        steps = [set(rung.losses) for rung in self.measured]
        return max(set.intersection(*steps), default=None) if len(steps) > 1 else None

    @property
    def verdicts(self) -> list[str]:
        """Whether losses, steps and speed are as they should be, in one line each."""
        measured, step = self.measured, self.common_step
        if len(measured) < 2:
            return []
        first, last = measured[0], measured[-1]
        lines = []
        if any(one.batch != first.batch for one in measured):
            lines.append(_compare_steps(measured))
        elif step is not None:
            lines.append(_compare_losses(measured, step))
        if first.speed and last.speed:
            ranks, times = last.run.world_size / first.run.world_size, last.speed / first.speed
            lines.append(f"{times:.2f}x speed-up with {ranks:.0f}x the ranks: scaling efficiency {times / ranks:.0%}")
        return lines

    def lines(self) -> list[str]:
        """Return the report."""
        rows = self._rows()
        kept = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]  # a script has no losses
        columns = [Column(_COLUMNS[name][0], right=name not in ("job_id", "state")) for name in kept]
        lines = fit(columns, [[_cell(name, row[name]) for name in kept] for row in rows])
        if self.stopped is not None:
            number, job = self.rungs.index(self.stopped) + 1, self.stopped.state.status
            why = f": {self.cause}" if self.cause else ""
            lines.append(f"stopped at rung {number} of {len(self.rungs)}: job {job.id} is {job.state}{why}")
        return [*lines, *self.verdicts]

    def json(self) -> dict[str, Any]:
        """Return the report for ``--json``; times in seconds."""
        return {
            "rungs": self._rows(),
            "common_step": self.common_step,
            "stopped_at": None if self.stopped is None else str(self.stopped.state.status.id),
            "cause": self.cause or None,
            "verdicts": self.verdicts,
        }

    def _rows(self) -> list[dict[str, Any]]:
        step, base = self.common_step, self.rungs[0].speed
        rows = []
        for number, rung in enumerate(self.rungs, 1):
            job, speed = rung.state.status, rung.speed
            row = {
                "rung": number,
                "job_id": str(job.id),
                "run_id": rung.run.run_id,
                "ranks": rung.run.world_size,
                "nodes": rung.run.nodes,
                "global_batch": rung.batch or None,
                "steps_per_epoch": rung.steps_per_epoch or None,
                "loss": rung.losses.get(step) if step is not None else None,
                "tokens_per_second": speed,
                "speedup": speed / base if speed and base else None,
                "elapsed": job.elapsed,
                "state": job.state,
            }
            rows.append(row)
        return rows


_TRAINING = ("micro_batch_size", "grad_accum_steps", "steps_per_epoch")


def _training_facts(run: RunRecord) -> Mapping[str, Any]:
    attempt = run_record.newest_attempt(run)
    return ends.load_training(attempt) if attempt is not None else {}


def _cell(name: str, value: Any) -> str:
    return "" if value is None else safe_line(_COLUMNS[name][1](value))


def _compare_losses(rungs: Sequence[Rung], step: int) -> str:
    first = rungs[0].losses[step]
    worst = max(rungs, key=lambda one: abs(one.losses[step] - first))
    share = abs(worst.losses[step] - first) / max(abs(first), 1e-9)
    if share <= TOLERANCE:
        return f"same loss at step {step}, within {TOLERANCE:.0%} (largest difference {share:.2%})"
    return (
        f"DIFFERENT loss at step {step} with the same global batch: {worst.losses[step]:.4f} on"
        f" {worst.run.world_size} ranks, {first:.4f} on {rungs[0].run.world_size}"
    )


def _compare_steps(rungs: Sequence[Rung]) -> str:
    """Compare the steps per epoch with 1/N, as the global batch grows; each is rounded, so it may be off by one."""
    samples = rungs[0].steps_per_epoch * rungs[0].batch
    shown = ", ".join(str(one.steps_per_epoch or "?") for one in rungs)
    for one in rungs:
        if 0 in (samples, one.steps_per_epoch, one.batch):
            continue
        expected = samples / one.batch
        if abs(one.steps_per_epoch - expected) > 1:
            return f"WRONG steps per epoch: {shown}; {expected:.0f} expected on {one.run.world_size} ranks"
    return f"steps per epoch fall as 1/N on N ranks because the global batch grows: {shown}"
