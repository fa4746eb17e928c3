"""The tables and lines that ``clusterrun plan`` prints. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.sizing.answer import Answer
from clusterrun.sizing.batches import GpuPlan
from clusterrun.sizing.devices import GIB
from clusterrun.sizing.memory import MemoryEstimate, Span
from clusterrun.sizing.scaling import ScalingRow
from clusterrun.sizing.speed import BACKWARD_SHARE, Machine
from clusterrun.terminal.tables import Column
from clusterrun.terminal.units import format_duration, plural

Table = tuple[list[Column], list[list[str]]]


def format_rate(rate: float) -> str:
    """Return a learning rate as the guides write it: ``1.25e-6``, ``5.0e-6``."""
    mantissa, _, exponent = f"{rate:.2e}".partition("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' * mantissa.endswith('.')}e{int(exponent)}"


def format_count(number: float) -> str:
    """Return a large number in its unit: ``134.5 M``, ``8.0 B``."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def title(found: Answer, job: str = "") -> str:
    """Return the first line: the data, the model and the length of the training."""
    question = found.question
    parts = [f"{plural_thousands(question.training.samples, 'sample')}"]
    if question.tokens_per_sample:
        parts[0] += f" of {question.tokens_per_sample:,.0f} tokens"
    if question.model is not None:
        parts.append(f"{format_count(question.model.parameters)} parameters")
    training = question.training
    parts.append(
        f"{training.steps:,} steps" if training.steps else f"{training.epochs:g} epoch{'s' * (training.epochs != 1)}"
    )
    if training.lr is not None:
        parts.append(f"learning rate {format_rate(training.lr)}")
    return (f"{job}: " if job else "") + ", ".join(parts)


def plural_thousands(count: int, noun: str) -> str:
    """Return ``29,500 samples``."""
    return plural(count, noun).replace(str(count), f"{count:,}", 1)


def batch_table(found: Answer) -> Table:
    """Return batches, steps and learning rates, a row for each number of GPUs."""
    columns = [
        _right("GPUS"), _right("BATCH"), _right("MICRO", 2), _right("ACCUM", 2), _right("STEPS/EPOCH"),
        _right("DROP_LAST"), _right("SHARE", 3), _right("STEPS", 1), _right("WARM-UP", 1),
    ]  # fmt: skip
    if found.question.training.lr is not None:
        columns += [_right("LR LINEAR"), _right("LR SQRT")]
    rows = []
    for plan in found.plans:
        cells = [plan.gpus, plan.global_batch, plan.micro_batch, plan.grad_accum]
        cells += [plan.steps_per_epoch, plan.steps_drop_last]
        row = [f"{cell:,}" for cell in cells] + [
            f"{100 * plan.share:.3g}%",
            f"{plan.total_steps:,}",
            f"{plan.warmup:,}",
        ]
        rows.append(row + [format_rate(rate) for rate in (plan.lr_linear, plan.lr_sqrt) if rate is not None])
    return columns, rows


def memory_table(found: Answer) -> Table:
    """Return the memory of one GPU in GiB by part, a row for each micro batch."""
    names = [name.upper() for name in MemoryEstimate._fields]
    columns = [_right("MICRO"), *(_right(name, 2) for name in names), _right("TOTAL")]
    size = found.question.memory_bytes
    if size is not None:
        columns += [Column(found.question.device.upper(), right=True), Column("FITS")]
    rows = []
    for micro_batch, estimate in sorted(found.memory.items()):
        row = [f"{micro_batch:,}", *map(_gib, estimate), _gib(estimate.total)]
        if size is not None:
            row += [f"{size / GIB:.0f}", found.verdict(micro_batch).replace("never", "no")]
        rows.append(row)
    return columns, rows


def memory_line(found: Answer) -> str:
    """Return the assumptions of the memory table."""
    guessed = "" if found.question.model and found.question.model.vocabulary else "; layers and width are guessed"
    return (
        f"Estimated memory per GPU in GiB ({found.question.precision}, {found.question.seq_len:,} tokens per row): fp32"
        f" weights, gradients and Adam; fused attention; no activation checkpointing{guessed}."
    )


def speed_table(found: Answer) -> Table:
    """Return the predicted speed, a row for each number of GPUs."""
    columns = [
        _right("GPUS"), _right("NODES"), _right("TOKENS/S"), _right("SPEED-UP"), _right("EFFICIENCY"),
        _right("ALL-REDUCE", 1), _right("EXPOSED", 2), _right("EPOCH"),
    ]  # fmt: skip
    rows = [
        [
            f"{one.gpus:,}", f"{one.nodes:,}", f"{one.tokens_per_second:,.0f}", f"{one.speedup:.1f}x",
            f"{one.efficiency:.0%}", _milliseconds(one.all_reduce_s), _milliseconds(one.exposed_s),
            format_duration(one.epoch_s),
        ]
        for one in found.predictions
    ]  # fmt: skip
    return columns, rows


def scaling_table(rows: Sequence[ScalingRow]) -> Table:
    """Return measured speed-ups, a row for each number of GPUs."""
    columns = [
        _right("GPUS"), _right("NODES", 1), _right("TOKENS/S"), _right("SPEED-UP"), _right("EFFICIENCY"),
        _right("COMMUNICATION", 3), _right("PREDICTED", 2), Column("HELD BACK BY", least=12),
    ]  # fmt: skip
    cells = [
        [
            f"{row.gpus:,}", f"{row.nodes:,}", f"{row.tokens_per_second:,.0f}", f"{row.speedup:.2f}x",
            f"{row.efficiency:.0%}", f"{row.communication:.0%}", f"{row.predicted_tokens_per_second:,.0f}", row.limit,
        ]
        for row in rows
    ]  # fmt: skip
    return columns, cells


def scaling_line(plan: GpuPlan, machine: Machine, steps: int) -> str:
    """Return how the speed-up was measured, and what the prediction beside it assumes."""
    return (
        f"Measured over {steps} steps with a micro batch of {plan.micro_batch} and accumulation {plan.grad_accum} on"
        " each GPU, the first quarter left out; communication compares with steps that do not average gradients."
        f" Predicted from the first row at {machine.link / 1e9:,g} GB/s within a node and"
        f" {machine.network * 8e-9:,g} Gbit/s between nodes."
    )


def speed_line(machine: Machine) -> str:
    """Return the assumptions of a prediction."""
    return (
        f"Predicted, not measured: {machine.utilization:.0%} of {machine.peak / 1e12:,.0f} TFLOP/s; fp32 gradients"
        f" summed at {machine.link / 1e9:,.0f} GB/s within a node of {plural(machine.gpus_per_node, 'GPU')} and"
        f" {machine.network * 8e-9:,g} Gbit/s between nodes, hidden behind the last backward pass"
        f" ({BACKWARD_SHARE:.0%} of a micro batch). Slow ranks and data loading often cost 2-10% more."
    )


def _right(name: str, leaves: int = 0) -> Column:
    return Column(name, leaves=leaves, right=True)


def _gib(part: Span) -> str:
    low, high = (f"{size / GIB:.{1 if size > GIB / 10 else 3}f}" for size in part)
    return low if low == high else f"{low}-{high}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds else "0"
