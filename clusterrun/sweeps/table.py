"""A sweep as a table: its tasks with their parameters, states, steps and a metric. Reads records; no queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.records.progress import is_number, read_metrics
from clusterrun.records.run_record import RunRecord
from clusterrun.records.sweeps import Sweep
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import figure_cells, format_figure, handle, state_json, state_row
from clusterrun.terminal import tables


class Row(NamedTuple):
    """A task: its state, parameters, and the best value of the requested metric, else None."""

    state: RunState
    parameters: Mapping[str, str]
    value: float | None = None


class SweepTable(NamedTuple):
    """The tasks of a sweep in the order of their parameter sets; ``metric`` is empty without one."""

    rows: Sequence[Row]
    metric: str = ""
    largest: bool = False

    @property
    def best(self) -> Row | None:
        """The task with the best value of the metric; the first of several."""
        found = [row for row in self.rows if row.value is not None]
        return (max if self.largest else min)(found, key=lambda row: row.value or 0.0, default=None)

    def columns(self) -> list[str]:
        names = list(self.rows[0].parameters) if self.rows else []
        return ["JOBID", *names, "STATE", "TIME", "STEP", self.metric or "LOSS", "REASON"]

    def cells(self) -> list[list[str]]:
        """Return the texts of each row; without a metric, the newest loss."""
        return [self._cells(row) for row in self.rows]

    def _repr_html_(self) -> str:
        return tables.as_html(self.columns(), self.cells())

    def _cells(self, row: Row) -> list[str]:
        _, _, word, time, _, _, reason = state_row(row.state)
        step, loss, _ = figure_cells(row.state)
        value = format_figure(row.value) if self.metric else loss
        return [handle(row.state), *row.parameters.values(), word, time, step, value, reason]

    def best_line(self) -> str:
        """Return the best task in one line; empty without a metric."""
        if self.best is None or self.best.value is None:
            return ""
        values = " ".join(f"{name}={value}" for name, value in self.best.parameters.items())
        return f"best {self.metric}: {self.best.value:.6g}, job {handle(self.best.state)} ({values})"

    def json(self) -> list[dict[str, Any]]:
        """Return the state of each task with its parameters, its metric and whether it is the best."""
        best = self.best
        return [
            {**state_json(row.state), "parameters": dict(row.parameters), "metric": row.value, "best": row is best}
            for row in self.rows
        ]


def load_table(sweep: Sweep | None, states: Sequence[RunState], metric: str = "", *, largest: bool) -> SweepTable:
    """Return the table of these runs of a sweep. Raises RequestError if no run has the metric."""
    rows = [_row(sweep, state, metric, largest=largest) for state in states]
    if metric and all(row.value is None for row in rows):
        raise RequestError(f"no run has the metric {metric[:40]}", hint=_name_metrics(states))
    return SweepTable(rows, metric, largest)


def _row(sweep: Sweep | None, state: RunState, metric: str, *, largest: bool) -> Row:
    run = state.record
    if run is None:
        return Row(state, {})
    parameters = sweep.parameters(run.run_id) if sweep is not None else {}
    values = [float(row[metric]) for row in _metrics(run) if metric in row] if metric else []
    return Row(state, parameters, (max if largest else min)(values, default=None))


def _metrics(run: RunRecord) -> Iterator[dict[str, Any]]:
    """Yield the numbers in each row of a run's metrics."""
    for row in read_metrics(run):
        yield {name: value for name, value in row.items() if is_number(value)}


def _name_metrics(states: Sequence[RunState]) -> str:
    names = set[str]()
    for state in states:
        if state.record is not None:
            names.update(*_metrics(state.record))
    names -= {"step", "time"}
    return f"metrics of these runs: {', '.join(sorted(names))}" if names else "see docs/sweeps.md"
