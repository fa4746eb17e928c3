"""Predicted tokens per second and efficiency under DDP. Pure.

The model: a micro batch takes FLOPs / (peak x utilization), a third of it forward and two thirds backward, but never
less than the CPU needs to start its kernels. The fp32 gradients are summed by a ring within each node, then between the
nodes, during the backward pass of a step's last micro batch. What does not fit into it, and the last bucket, is added
to the step.
"""

from __future__ import annotations

from typing import NamedTuple

from clusterrun.base.gpus import flops_per_token
from clusterrun.sizing.batches import GpuPlan
from clusterrun.sizing.memory import ModelSize

BACKWARD_SHARE = 2 / 3
BUCKET_BYTES = 25 * 2**20  # DDP's default bucket_cap_mb
NETWORK_USE = 0.88  # of a network's bit rate that a large all-reduce reaches
UTILIZATION = 0.4  # of the peak, for a well-tuned transformer
KERNELS = 40  # of a layer's passes, compiled: 21 matrix products, attention, and what is fused between them
LAUNCH_S = 5e-6  # to start one
DEFAULT_NETWORK = 100.0  # Gbit/s
DEFAULT_LINK = 2.0  # GB/s, of ranks on CPUs


class Machine(NamedTuple):
    """The hardware: one GPU's peak in FLOP/s and the share of it that training uses, bandwidths in bytes/s.

    ``link`` is the bus bandwidth of an all-reduce within a node, ``network`` the nominal one of a node to the others.
    """

    peak: float
    utilization: float
    link: float
    network: float
    gpus_per_node: int


class Prediction(NamedTuple):
    """The predicted speed on one number of GPUs; times in seconds.

    ``all_reduce_s`` is the communication of a step, ``exposed_s`` the part that the backward pass does not hide.
    """

    gpus: int
    nodes: int
    step_s: float
    tokens_per_second: float
    speedup: float
    efficiency: float
    all_reduce_s: float
    exposed_s: float
    epoch_s: float


def all_reduce_seconds(size: float, gpus: int, machine: Machine) -> float:
    """Return the time to sum ``size`` bytes over all GPUs: 2(n-1)/n x size / bandwidth, in nodes and between them."""
    local, nodes = min(gpus, machine.gpus_per_node), count_nodes(gpus, machine.gpus_per_node)
    within = 2 * (local - 1) / local * size / machine.link
    return within + 2 * (nodes - 1) / nodes * size / (machine.network * NETWORK_USE)


def count_nodes(gpus: int, gpus_per_node: int) -> int:
    """Return the number of nodes with this many GPUs."""
    return -(-gpus // gpus_per_node)


def predict(plan: GpuPlan, model: ModelSize, tokens_per_sample: float, machine: Machine) -> Prediction:
    """Predict the speed of one plan."""
    compute_s = compute_seconds(plan.micro_batch, model, tokens_per_sample, machine)
    busy_s = max(compute_s, launch_seconds(model))
    return predict_from(plan, busy_s, 4.0 * model.parameters, tokens_per_sample, machine)


def compute_seconds(micro_batch: int, model: ModelSize, tokens_per_sample: float, machine: Machine) -> float:
    """Return the time that the work of a micro batch takes a GPU."""
    flops = flops_per_token(model.parameters, model.layers, model.width, tokens_per_sample)
    return micro_batch * tokens_per_sample * flops / (machine.peak * machine.utilization)


def launch_seconds(model: ModelSize) -> float:
    """Return the least time that it takes to start the kernels of a micro batch, whatever its size."""
    return model.layers * KERNELS * LAUNCH_S


def predict_from(
    plan: GpuPlan, compute_s: float, gradient_bytes: float, tokens_per_sample: float, machine: Machine
) -> Prediction:
    """Predict from the seconds that one GPU takes for a micro batch, such as a measured time."""
    all_reduce_s = all_reduce_seconds(gradient_bytes, plan.gpus, machine)
    last_bucket = all_reduce_s * min(1.0, BUCKET_BYTES / gradient_bytes)
    exposed_s = min(all_reduce_s, max(0.0, all_reduce_s - BACKWARD_SHARE * compute_s) + last_bucket)
    busy_s = plan.grad_accum * compute_s
    step_s, efficiency = busy_s + exposed_s, busy_s / (busy_s + exposed_s)
    return Prediction(
        plan.gpus, count_nodes(plan.gpus, machine.gpus_per_node), step_s,
        tokens_per_second=plan.global_batch * tokens_per_sample / step_s,
        speedup=plan.gpus * efficiency, efficiency=efficiency, all_reduce_s=all_reduce_s, exposed_s=exposed_s,
        epoch_s=plan.steps_per_epoch * step_s,
    )  # fmt: skip
