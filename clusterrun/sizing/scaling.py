"""Speed-up, efficiency and communication from measured runs, with the prediction beside them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clusterrun.base.units import plural
from clusterrun.sizing.batches import GpuPlan
from clusterrun.sizing.speed import Machine, predict_from

QUARTERS = 4  # a phase has four rows of metrics; the first is warm-up
GOOD = 0.95  # from this efficiency on, nothing holds it back
_UNSTEADY, _SURELY_WRONG = 0.3, 1.15
_KEYS = ("step", "step_s", "tokens_per_second", "data_wait_s", "cores_used")


Host = tuple[int, int]
"""The fullest machine of a run: its ranks and its cores; 0 cores: unknown."""
UNKNOWN_HOST: Host = (1, 0)


class Measured(NamedTuple):
    """A measured run: tokens per second of all GPUs, with and without averaging gradients.

    ``data_share`` is the share of a step that waits for data; ``spread`` is how much the steps differ (0.1: by 10 %).
    ``cores_used`` are the cores that a rank keeps busy without averaging.
    """

    gpus: int
    nodes: int
    tokens_per_second: float
    unsynced_tokens_per_second: float
    data_share: float
    spread: float
    cores_used: float = 1.0
    host: Host = UNKNOWN_HOST


class ScalingRow(NamedTuple):
    """How a run scales. ``communication`` is the share of a step; ``limit`` says what holds it back."""

    gpus: int
    nodes: int
    tokens_per_second: float
    speedup: float
    efficiency: float
    communication: float
    predicted_tokens_per_second: float
    limit: str


def parse_measured(
    rows: Sequence[Mapping[str, Any]], steps: int, gpus: int, nodes: int, host: Host = UNKNOWN_HOST
) -> Measured | None:
    """Return what the metrics of a measuring run say; None if rows are missing.

    ``steps`` is the length of each of the two phases. The first quarter of a phase is warm-up.
    """
    quarter = steps // QUARTERS
    good = [row for row in rows if _is_whole(row)]
    phases = [
        [row for row in good if quarter < row["step"] <= steps],
        [row for row in good if row["step"] > steps + quarter],
    ]
    if min(map(len, phases)) < QUARTERS - 1:
        return None
    synced, unsynced = (_column(phase, "tokens_per_second") for phase in phases)
    return Measured(
        gpus, nodes, statistics.median(synced), statistics.median(unsynced),
        data_share=statistics.median(row["data_wait_s"] / row["step_s"] for row in phases[0]),
        spread=max(_spread(synced), _spread(unsynced)), cores_used=statistics.median(_column(phases[1], "cores_used")),
        host=host,
    )  # fmt: skip


def _is_whole(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(key), int | float) for key in _KEYS)


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in rows]


def _spread(speeds: Sequence[float]) -> float:
    return (max(speeds) - min(speeds)) / statistics.median(speeds)


def scaling_rows(
    found: Sequence[Measured], plans: Sequence[GpuPlan], parameters: int, tokens_per_sample: float, machine: Machine
) -> list[ScalingRow]:
    """Return a row for each run. The first, with the fewest GPUs, is what the others are compared with."""
    base = found[0]
    per_gpu = max(base.tokens_per_second, base.unsynced_tokens_per_second if base.gpus > 1 else 0.0) / base.gpus
    compute_s = plans[0].micro_batch * tokens_per_sample / per_gpu
    rows = []
    for run, plan in zip(found, plans, strict=True):
        slower = slower_by_cores(base, run.host)
        predicted = predict_from(plan, compute_s * slower, 4.0 * parameters, tokens_per_sample, machine)
        speedup = base.gpus * run.tokens_per_second / base.tokens_per_second
        exposed = max(0.0, 1 - run.tokens_per_second / run.unsynced_tokens_per_second) if run.gpus > 1 else 0.0
        limit = _limit(run, speedup / run.gpus, exposed, per_gpu)
        speeds = (run.tokens_per_second, speedup, speedup / run.gpus, exposed, predicted.tokens_per_second)
        rows.append(ScalingRow(run.gpus, run.nodes, *speeds, limit))
    return rows


def slower_by_cores(base: Measured, host: Host) -> float:
    """Return how much longer a rank computes on ``host`` than in the first run, as more ranks share its cores.

    A rank that keeps less than its one core busy already shares: the others that it shares with are then known, too.
    """
    (ranks, cores), (base_ranks, _) = host, base.host
    if not cores or base.cores_used <= 0:
        return 1.0
    wanted = max(1.0, base.cores_used)
    crowded = base.cores_used < GOOD * wanted
    others = max(0.0, cores * wanted / base.cores_used - base_ranks * wanted) if crowded else 0.0
    share = min(1.0, cores / (ranks * wanted + others))
    return max(1.0, base.cores_used / wanted / share)


def scaling_notes(found: Sequence[Measured], rows: Sequence[ScalingRow], steps: int) -> list[str]:
    """Return a warning if the steps of a run differ so much that its figures mean little."""
    unsteady = max(found, key=lambda run: run.spread)
    too_good = next((row for row in rows if row.efficiency > _SURELY_WRONG), None)
    if unsteady.spread > _UNSTEADY:
        why = f"the step times on {plural(unsteady.gpus, 'GPU')} vary by {unsteady.spread:.0%}"
    elif too_good is not None:
        why = f"a speed-up of {too_good.speedup:.1f} on {plural(too_good.gpus, 'GPU')} is not plausible"
    else:
        return []
    return [f"{why}, so these figures are unreliable; measure again on idle nodes with --measure-steps {5 * steps}"]


def _limit(run: Measured, efficiency: float, communication: float, per_gpu: float) -> str:
    """Return the largest loss in one phrase."""
    slower = 1 - run.unsynced_tokens_per_second / (run.gpus * per_gpu)
    losses = {
        "the network between nodes" if run.nodes > 1 else "gradient sync within the node": communication,
        "waiting for data": run.data_share,
        "ranks that share cores, memory or power": slower if run.gpus > 1 else 0.0,
    }
    worst = max(losses, key=lambda name: losses[name])
    if losses[worst] < 1 - GOOD or (efficiency >= GOOD and worst != "waiting for data"):
        return "nothing"
    return worst
