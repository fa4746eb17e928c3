"""The predicted speed, compared with figures that were calculated or measured elsewhere."""

from __future__ import annotations

import pytest

from clusterrun.base.gpus import flops_per_token
from clusterrun.sizing.batches import GpuPlan, Training, plan_batches
from clusterrun.sizing.memory import ModelSize
from clusterrun.sizing.speed import Machine, Prediction, all_reduce_seconds, count_nodes, predict

SMALL = ModelSize(134_515_008, 30, 576, 49_152)
LARGE = ModelSize(1_711_376_384, 24, 2048, 49_152)


def h100(network_gbits: float = 100.0, gpus_per_node: int = 8) -> Machine:
    return Machine(989e12, 0.4, 370e9, network_gbits / 8 * 1e9, gpus_per_node)


def plan(gpus: int, micro: int = 4, accum: int = 1) -> GpuPlan:
    return plan_batches(Training(10**6, micro_batch_size=micro, grad_accum_steps=accum), [gpus])[0]


def speed(gpus: int, machine: Machine, model: ModelSize = SMALL, **sizes: int) -> Prediction:
    return predict(plan(gpus, **sizes), model, 2048, machine)


def test_one_gpu_communicates_nothing() -> None:
    found = speed(1, h100())
    assert (found.efficiency, found.speedup, found.all_reduce_s, found.nodes) == (1.0, 1.0, 0.0, 1)
    assert found.tokens_per_second == pytest.approx(
        0.4 * 989e12 / flops_per_token(SMALL.parameters, SMALL.layers, SMALL.width, 2048)
    )
    assert found.tokens_per_second == pytest.approx(321_000, rel=0.01), "SmolLM2-135M at 40 % of an H100"


def test_the_ring_moves_each_byte_almost_twice() -> None:
    assert all_reduce_seconds(370e9, 2, h100()) == pytest.approx(1.0)
    assert all_reduce_seconds(370e9, 8, h100()) == pytest.approx(2 * 7 / 8)
    between = all_reduce_seconds(1e9, 16, h100()) - all_reduce_seconds(1e9, 8, h100())
    assert between == pytest.approx(1e9 / (12.5e9 * 0.88))


@pytest.mark.parametrize(
    ("model", "machine", "gpus", "micro", "efficiency"),
    [
        # 8,192 tokens per GPU and step; 32,768 in the fourth
        (SMALL, h100(), 8, 4, 0.99),
        (SMALL, h100(), 16, 4, 0.42),
        (SMALL, h100(25), 16, 4, 0.12),
        (SMALL, h100(), 16, 16, 0.97),
        (LARGE, h100(), 8, 4, 0.99),
        (LARGE, h100(), 16, 4, 0.32),
    ],
)
def test_the_efficiency_of_known_shapes(
    model: ModelSize, machine: Machine, gpus: int, micro: int, efficiency: float
) -> None:
    assert speed(gpus, machine, model, micro=micro).efficiency == pytest.approx(efficiency, abs=0.03)


def test_accumulation_and_a_faster_network_help() -> None:
    slow = speed(16, h100())
    assert speed(16, h100(), accum=8).efficiency > slow.efficiency
    assert speed(16, h100(3200)).efficiency > 0.98
    assert slow.exposed_s <= slow.all_reduce_s


def test_the_time_of_an_epoch() -> None:
    found = speed(8, h100())
    assert found.epoch_s == pytest.approx(found.step_s * plan(8).steps_per_epoch)
    assert found.tokens_per_second == pytest.approx(plan(8).global_batch * 2048 / found.step_s)


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_nodes(gpus: int, nodes: int) -> None:
    assert count_nodes(gpus, 4) == nodes
