"""Measured speed-ups: which rows count, what is compared, and what holds a run back."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.sizing import text
from clusterrun.sizing.batches import Training, plan_batches
from clusterrun.sizing.measure import measure_settings
from clusterrun.sizing.scaling import (
    Measured,
    ScalingRow,
    parse_measured,
    scaling_notes,
    scaling_rows,
    slower_by_cores,
)
from clusterrun.sizing.speed import Machine
from clusterrun.worker.tasks import configure, lm
from clusterrun.worker.training import settings

MACHINE = Machine(1e12, 0.4, 2e9, 12.5e9, 8)
TRAINING = Training(10_000, micro_batch_size=4)


def row(step: int, speed: float, wait: float = 0.0) -> dict[str, Any]:
    return {"step": step, "tokens_per_second": speed, "step_s": 0.1, "data_wait_s": wait, "cores_used": 1.0}


def metrics(synced: float, unsynced: float, wait: float = 0.0) -> list[dict[str, Any]]:
    """Rows as a run of 2 x 20 steps writes them; warm-up is slower."""
    first = [{"step": 0, "val_loss": 7.0}, row(1, 1.0), row(5, 2.0)]
    second = [row(step, synced, wait) for step in (10, 15, 20)]
    return [*first, *second, row(25, 3.0), *(row(step, unsynced, wait) for step in (30, 35, 40))]


def run(gpus: int, synced: float, unsynced: float | None = None, *, nodes: int = 1, wait: float = 0.0) -> Measured:
    found = parse_measured(metrics(synced, unsynced or synced, wait), 20, gpus, nodes)
    assert found is not None
    return found


def scaled(*runs: Measured) -> list[ScalingRow]:
    return scaling_rows(runs, plan_batches(TRAINING, [one.gpus for one in runs]), 500_000, 64, MACHINE)


def test_warm_up_is_left_out() -> None:
    found = run(2, 100.0, 125.0)
    assert (found.tokens_per_second, found.unsynced_tokens_per_second, found.spread) == (100.0, 125.0, 0.0)


@pytest.mark.parametrize("rows", [[], metrics(1.0, 1.0)[:6], [row(10, 1.0)] * 9, [{"step": None}] * 9])
def test_a_run_without_enough_rows(rows: list[dict[str, Any]]) -> None:
    assert parse_measured(rows, 20, 2, 1) is None


def test_speed_up_efficiency_and_communication() -> None:
    one, two, four = scaled(run(1, 100.0), run(2, 180.0, 200.0), run(4, 300.0, 400.0))
    assert (one.speedup, one.efficiency, one.communication, one.limit) == (1.0, 1.0, 0.0, "nothing")
    assert (two.speedup, two.efficiency) == (1.8, 0.9) and two.communication == pytest.approx(0.1)
    assert four.communication == pytest.approx(0.25) and four.limit == "gradient sync within the node"
    assert one.predicted_tokens_per_second == pytest.approx(100.0)
    assert two.predicted_tokens_per_second == pytest.approx(200.0, rel=0.01), "500,000 parameters need 1 ms"


def test_the_prediction_follows_the_network() -> None:
    runs = [run(1, 5000.0), run(2, 2000.0, 10_000.0, nodes=2)]
    slow = MACHINE._replace(gpus_per_node=1, network=12.5e6)
    found = scaling_rows(runs, plan_batches(TRAINING, [1, 2]), 500_000, 64, slow)[1]
    assert found.limit == "the network between nodes"
    # 2 MB over 12.5 MB/s x 0.88; two thirds of 51 ms are hidden, except the only bucket
    assert found.predicted_tokens_per_second == pytest.approx(512 / (0.0512 + 0.1818), rel=0.01)


@pytest.mark.parametrize(
    ("measured", "limit"),
    [
        (run(2, 196.0, 200.0), "nothing"),
        (run(2, 100.0, 102.0), "ranks that share cores, memory or power"),
        (run(2, 150.0, 160.0, wait=0.05), "waiting for data"),
        (run(2, 120.0, 198.0, nodes=2), "the network between nodes"),
    ],
)
def test_what_holds_it_back(measured: Measured, limit: str) -> None:
    assert scaled(run(1, 100.0), measured)[1].limit == limit


def test_a_first_run_on_several_gpus() -> None:
    two, four = scaled(run(2, 160.0, 200.0), run(4, 300.0, 400.0))
    assert (two.speedup, two.efficiency) == (2.0, 1.0)
    assert four.speedup == pytest.approx(3.75)


def test_figures_that_mean_little_say_so() -> None:
    steady = [run(1, 100.0), run(2, 190.0)]
    assert scaling_notes(steady, scaled(*steady), 20) == []
    rows = [*metrics(100.0, 100.0)[:-1], row(40, 60.0)]
    unsteady = parse_measured(rows, 20, 1, 1)
    assert unsteady is not None
    (note,) = scaling_notes([unsteady], scaled(unsteady), 20)
    assert note.startswith("the step times on 1 GPU vary by 40%") and note.endswith("--measure-steps 100")
    wrong = [run(1, 100.0), run(2, 500.0)]
    (note,) = scaling_notes(wrong, scaled(*wrong), 20)
    assert note.startswith("a speed-up of 5.0 on 2 GPUs is not plausible")


def test_a_measuring_run_is_one_that_the_task_accepts() -> None:
    (plan,) = plan_batches(Training(100, micro_batch_size=4, grad_accum_steps=2), [2])
    chosen = measure_settings(plan, 20)
    config = configure(lm.Config, [f"{key}={value}" for key, value in chosen.items()])
    settings.check(config, 2)
    assert (config.steps, config.measure, config.log_every, config.sample_prompts) == (40, 20, 5, ())
    assert (config.micro_batch_size, config.grad_accum_steps, config.global_batch_size) == (4, 2, 0)


def test_a_plot_in_the_terminal() -> None:
    lines = text.terminal_plot(scaled(run(1, 100.0), run(2, 180.0), run(4, 300.0)), width=60, height=12)
    plot = "\n".join(lines)
    assert len(lines) <= 12 and "\x1b" not in plot
    assert "measured" in plot and "predicted" in plot and "x" in plot and "GPUs" in plot


@pytest.mark.parametrize(
    ("cores_used", "ranks", "cores", "slower"),
    [
        (1.0, 1, 2, 1.0),
        (1.0, 2, 2, 1.0),
        (1.0, 4, 2, 2.0),  # an idle machine: four ranks share two cores
        (0.5, 1, 2, 1.0),  # three others share the cores already
        (0.5, 4, 2, 1.75),
        (2.0, 4, 2, 4.0),  # a rank with two threads
        (1.0, 64, 0, 1.0),  # cores unknown
    ],
)
def test_ranks_that_share_cores_take_longer_as_predicted(
    cores_used: float, ranks: int, cores: int, slower: float
) -> None:
    first = run(1, 100.0)._replace(cores_used=cores_used, host=(1, cores))
    assert slower_by_cores(first, (ranks, cores)) == pytest.approx(slower)
