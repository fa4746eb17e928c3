"""A sweep as a table: its tasks with their parameters, states, steps and a metric. Reads records; no queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from clusterrun.base.errors import RequestError
from clusterrun.records.progress import NAN, is_number, read_metrics
from clusterrun.records.run_record import RunRecord
from clusterrun.records.sweeps import sweep_of
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import figure_cells, format_figure, handle, state_json, state_row
from clusterrun.terminal import tables

_NO_METRICS = {"step", "steps", "steps_per_second", "time", "trained_s", "nan_losses"}


class SweepTable:
    """The tasks of a sweep in the order of their parameter sets, with each task's best value of a metric, if any.

    Takes the runs of one sweep with their states. Raises RequestError if no run has the metric
    and none is active, which may still log it.
    """

    def __init__(
        self, runs: Sequence[RunRecord], states: Sequence[RunState], metric: str = "", *, largest: bool = False
    ) -> None:  # fmt: skip
        self.states, self.metric = states, metric
        self.parameters = _parameters(runs)
        best_of = max if largest else min
        rows = list(map(_measurements, runs, states)) if metric else [[] for _ in runs]
        self.values = [best_of(_values(of_run, metric), default=None) for of_run in rows]
        self._are_nan = [_ends_as_nan(of_run, metric) for of_run in rows]
        measured = [value for value in self.values if value is not None]
        self._not_yet = "" if measured else self._missing(rows)
        self.best = self.values.index(best_of(measured)) if measured else None
        """The index of the task with the best value; the first of several."""

    def _missing(self, rows: Sequence[Sequence[Mapping[str, Any]]]) -> str:
        """Return which metrics there are instead of the wanted one; raises RequestError if all runs are over."""
        if not self.metric or any(self._are_nan):
            return ""
        if all(state.status.is_over for state in self.states):
            raise RequestError(f"no run has the metric {self.metric[:40]}", hint=_name_metrics(rows))
        return _name_metrics(rows)

    def columns(self) -> list[str]:
        return ["JOBID", *chain(*self.parameters[:1]), "STATE", "TIME", "STEP", self.metric or "LOSS", "REASON"]

    def cells(self) -> list[list[str]]:
        """Return the texts of each row; without a metric, the newest loss."""
        return list(map(self._cells, self.states, self.parameters, self.values, self._are_nan))

    def _repr_html_(self) -> str:
        return tables.as_html(self.columns(), self.cells())

    def _cells(self, state: RunState, parameters: Mapping[str, str], value: float | None, is_nan: bool) -> list[str]:
        _, _, word, time, _, _, reason = state_row(state)
        step, loss, *_ = figure_cells(state)
        best = NAN if is_nan and value is None else format_figure(value)
        figure = best if self.metric else loss
        return [handle(state), *parameters.values(), word, time, step, figure, reason]

    def best_line(self) -> str:
        """Return the best task in one line, or that none has logged the metric yet; empty without a metric."""
        if self._not_yet:
            return f"no {self.metric[:40]} yet; {self._not_yet}"
        if self.best is None:
            return ""
        value, job = self.values[self.best], handle(self.states[self.best])
        parameters = " ".join(f"{name}={value}" for name, value in self.parameters[self.best].items())
        return f"best {self.metric}: {value:.6g}, job {job} ({parameters})"

    def json(self) -> list[dict[str, Any]]:
        """Return the state of each task with its parameters, its metric and whether it is the best."""
        rows = zip(self.states, self.parameters, self.values, strict=True)
        return [
            {**state_json(state), "parameters": dict(parameters), "metric": value, "best": index == self.best}
            for index, (state, parameters, value) in enumerate(rows)
        ]


def _parameters(runs: Sequence[RunRecord]) -> list[Mapping[str, str]]:
    sweep = sweep_of(runs[0])
    parameters = sweep.parameters() if sweep is not None else {}
    return [parameters.get(run.run_id, {}) for run in runs]


def _measurements(run: RunRecord, state: RunState) -> list[Mapping[str, Any]]:
    """Return the rows of a run's metrics; of a run without any the last figures, as `list` shows them."""
    rows = read_metrics(run)
    if rows or state.figures is None:
        return [*rows]
    return [state.figures._asdict()]


def _values(rows: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    """Return all values of a metric in a run's rows."""
    return [float(row[metric]) for row in rows if is_number(row.get(metric))]


def _ends_as_nan(rows: Sequence[Mapping[str, Any]], metric: str) -> bool:
    """Return whether the last value of a metric in a run's rows was NaN; of a run without rows, the last loss."""
    known = [row for row in rows if metric in row]
    if not known:
        return False
    return known[-1][metric] == NAN or (
        metric == "loss" and known[-1]["loss"] is None and bool(known[-1].get("nan_losses"))
    )


def _name_metrics(rows_of_runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    rows = chain.from_iterable(rows_of_runs)
    names = {name for row in rows for name, value in row.items() if is_number(value)} - _NO_METRICS
    if names:
        return f"metrics of these runs: {', '.join(sorted(names))}"
    return "print the loss, or write metrics.jsonl (the page on sweeps says how)"
