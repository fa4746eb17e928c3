"""Collect what a page shows of a run, from its records, its logs and the scheduler. ``--json`` prints the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from clusterrun.base.decode import as_number
from clusterrun.base.series import Point
from clusterrun.compare import changes_json
from clusterrun.compare.code import compare_code
from clusterrun.compare.environment import compare_environments, load_environment
from clusterrun.compare.metrics import compare_metrics
from clusterrun.compare.options import command_line, compare_options, load_options
from clusterrun.records import progress
from clusterrun.records.code_store import code_line
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.records.sweeps import sweep_of
from clusterrun.report import timeline, usage
from clusterrun.state import headline
from clusterrun.state.launches import failed_state
from clusterrun.state.reconcile import RunState
from clusterrun.state.samples import load_samples
from clusterrun.state.show import handle, status_json
from clusterrun.state.waited import waited
from clusterrun.why import ended

CURVES = frozenset({"loss", "val_loss", "lr", "tokens_per_second", "mfu", "memory_gib"})
_METRICS = 16 * 1024 * 1024  # bytes; those of the last steps


class Cluster(ended.Cluster, Protocol):
    """The part of clusterrun.cluster.Cluster that is needed here."""

    def store(self, root: Path | None = None) -> Store: ...


def collect(cluster: Cluster, state: RunState, now: float) -> dict[str, Any]:
    """Return what is known of a run at ``now`` (epoch seconds); what is not known is None or empty.

    It begins as ``status --json``, whose ``ranks`` are in ``timeline`` here.
    """
    run, job = state.run, state.status
    known = status_json(state)
    del known["ranks"], known["sources"]
    versions, packages, is_mixed = load_environment(run)
    curves, x_label = load_curves(run)
    ranks = progress.ranks(run, job.id.task)
    wait = waited(state)
    card = usage.efficiency_of(cluster.store(run.root), state)
    return {
        **known,
        **timeline.load(run, job, ranks, now),
        "handle": handle(state),
        "parameters": load_parameters(run),
        "headline": headline.of_job(job, state.figures, ranks, now=now),
        "cause": find_cause(cluster, state),
        "efficiency": card and card.json(),
        "waited": wait.line() if wait is not None else "",
        "card": card.lines() if card is not None else [],
        "curves": curves,
        "curves_over": x_label,
        "samples": load_samples(run),
        "command": command_line(run) or None,
        "options": [{"name": name, "value": value, "source": source}
                    for name, (value, source) in load_options(run).items()],
        "environment": {"versions": versions, "packages": packages, "nodes_differ": is_mixed},
        "code": code_line(run) or None,
    }  # fmt: skip


def load_parameters(run: RunRecord) -> dict[str, str]:
    """Return the parameters of a sweep's run by name; empty for any other run."""
    sweep = sweep_of(run)
    return dict(sweep.parameters().get(run.run_id, {})) if sweep is not None else {}


def find_cause(cluster: ended.Cluster, state: RunState) -> dict[str, Any] | None:
    """Return the first cause of the end as ``why`` gives it, None if nothing failed; a job whose nodes are held too."""
    over = failed_state(state) or state
    if not over.status.is_over:
        return None
    cause = ended.explain(cluster, over)
    return None if cause.kind == "none" else {"headline": cause.headline(), **cause.json()}


def load_curves(run: RunRecord) -> tuple[dict[str, list[Point]], str]:
    """Return what the run logged at its steps, by name, and what it is drawn over.

    Of a run that only printed its losses these are a few of them.
    """
    curves: dict[str, list[Point]] = {}
    for row in progress.metric_rows(run, _METRICS):
        step = as_number(row.get("step"))
        if step is not None:
            for name in CURVES & row.keys():  # NaN is written as a text
                curves.setdefault(name, []).append((step, as_number(row[name])))
    if curves:
        return curves, progress.STEP
    losses, over = progress.loss_curve(run)
    return ({"loss": [*losses]} if len(losses) > 1 else {}), over


def find_difference(first: RunRecord, second: RunRecord) -> dict[str, Any]:
    """Return what differs between two runs, as ``diff`` finds it: options, files, their lines, environment, metrics."""
    changed_files, code, _ = compare_code(first, second)
    return {
        "options": changes_json(compare_options(first, second)),
        "files": list(changed_files),
        "code": list(code),
        "environment": changes_json(compare_environments(first, second)[0]),
        "metrics": changes_json(compare_metrics(first, second)[0]),
    }
