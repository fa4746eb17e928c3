"""The tables, the lines and the plot that ``clusterrun plan`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clusterrun.base.gpus import GIB
from clusterrun.base.units import clause, format_duration, plural
from clusterrun.sizing.answer import Answer
from clusterrun.sizing.batches import GpuPlan
from clusterrun.sizing.memory import MemoryEstimate, Span
from clusterrun.sizing.scaling import ScalingRow
from clusterrun.sizing.speed import BACKWARD_SHARE, Machine
from clusterrun.terminal.plot import plot
from clusterrun.terminal.tables import Column

Table = tuple[list[Column], list[list[str]]]
Form = str | Callable[[Any], str]  # makes a cell of a row: a format of {0}, or a function
Columns = tuple[tuple[str, int, Form], ...]  # name, the order in which a narrow terminal drops it, and the cells
_BATCHES: Columns = (
    ("GPUS", 0, "{0.gpus:,}"), ("BATCH", 0, "{0.global_batch:,}"), ("MICRO", 2, "{0.micro_batch:,}"),
    ("ACCUM", 2, "{0.grad_accum:,}"), ("STEPS/EPOCH", 0, "{0.steps_per_epoch:,}"),
    ("DROP_LAST", 0, "{0.steps_drop_last:,}"), ("SHARE", 3, lambda plan: f"{100 * plan.share:.3g}%"),
    ("STEPS", 1, "{0.total_steps:,}"), ("WARM-UP", 1, "{0.warmup:,}"),
)  # fmt: skip
_RATES: Columns = (
    ("LR LINEAR", 0, lambda plan: format_rate(plan.lr_linear)), ("LR SQRT", 0, lambda plan: format_rate(plan.lr_sqrt))
)  # fmt: skip
_SPEED: Columns = (
    ("GPUS", 0, "{0.gpus:,}"), ("NODES", 0, "{0.nodes:,}"), ("TOKENS/S", 0, "{0.tokens_per_second:,.0f}"),
    ("SPEED-UP", 0, "{0.speedup:.1f}x"), ("EFFICIENCY", 0, "{0.efficiency:.0%}"),
    ("ALL-REDUCE", 1, lambda one: _milliseconds(one.all_reduce_s)),
    ("EXPOSED", 2, lambda one: _milliseconds(one.exposed_s)), ("EPOCH", 0, lambda one: format_duration(one.epoch_s)),
)  # fmt: skip
_SCALING: Columns = (
    ("GPUS", 0, "{0.gpus:,}"), ("NODES", 1, "{0.nodes:,}"), ("TOKENS/S", 0, "{0.tokens_per_second:,.0f}"),
    ("SPEED-UP", 0, "{0.speedup:.2f}x"), ("EFFICIENCY", 0, "{0.efficiency:.0%}"),
    ("COMMUNICATION", 3, "{0.communication:.0%}"), ("PREDICTED", 2, "{0.predicted_tokens_per_second:,.0f}"),
    ("LIMITED BY", 0, "{0.limit}"),
)  # fmt: skip


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


def title(found: Answer) -> str:
    """Return the first line: the data, the model and the length of the training."""
    question, training = found.question, found.question.training
    parts = [f"{training.samples:,} sample{'s' * (training.samples != 1)}"]
    if question.tokens_per_sample:
        parts[0] += f" of {question.tokens_per_sample:,.0f} tokens"
    if question.model is not None:
        parts.append(f"{format_count(question.model.parameters)} parameters")
    epochs = f"{training.epochs:g} epoch{'s' * (training.epochs != 1)}"
    parts.append(f"{training.steps:,} steps" if training.steps else epochs)
    if training.lr is not None:
        parts.append(f"learning rate {format_rate(training.lr)}")
    return clause(question.task, "{}: ") + ", ".join(parts)


def batch_table(found: Answer) -> Table:
    """Return batches, steps and learning rates, a row for each number of GPUs."""
    return _table(found.plans, _BATCHES if found.question.training.lr is None else (*_BATCHES, *_RATES))


def memory_table(found: Answer) -> Table:
    """Return the memory of one GPU in GiB by part, a row for each micro batch; under FSDP for each number of GPUs."""
    parts = [(name.upper(), 2, _part(name)) for name in MemoryEstimate._fields]
    gpus: Columns = (("GPUS", 0, "{0[0].shards:,}"),) if found.question.parallel == "fsdp" else ()
    columns: Columns = (*gpus, ("MICRO", 0, "{0[0].micro_batch:,}"), *parts, ("TOTAL", 0, _part("total")))
    if (size := found.question.memory_bytes) is not None:
        fits: Columns = (("FITS", 0, lambda row: found.verdict(row[0]).replace("never", "no")),)
        columns = (*columns, (found.question.device.upper(), 0, f"{size / GIB:.0f}"), *fits)
    return _table(sorted(found.memory.items()), columns)


def memory_line(found: Answer) -> str:
    """Return the assumptions of the memory table."""
    guessed = "" if found.question.model and found.question.model.vocabulary else "; layers and width are guessed"
    divided = ", divided over the GPUs (FSDP)" if found.question.parallel == "fsdp" else ""
    return (
        f"Estimated memory per GPU in GiB ({found.question.precision}, sequence length {found.question.seq_len:,}):"
        f" fp32 weights, gradients and Adam states{divided}; fused attention; no activation checkpointing{guessed}."
    )


def speed_table(found: Answer) -> Table:
    """Return the predicted speed, a row for each number of GPUs."""
    return _table(found.predictions, _SPEED)


def scaling_table(rows: Sequence[ScalingRow]) -> Table:
    """Return measured speed-ups, a row for each number of GPUs."""
    return _table(rows, _SCALING)


def scaling_line(plan: GpuPlan, machine: Machine, steps: int) -> str:
    """Return how the speed-up was measured, and what the prediction beside it assumes."""
    return (
        f"Measured over {steps} steps with a micro batch of {plan.micro_batch} and"
        f" {plural(plan.grad_accum, 'accumulation step')} on each GPU, excluding the first quarter of the steps."
        " Communication is the extra time compared with steps that"
        " do not average gradients. The prediction is extrapolated from the first row and assumes"
        f" {machine.link / 1e9:,g} GB/s within a node and {machine.network * 8e-9:,g} Gbit/s between nodes."
    )


def speed_line(machine: Machine) -> str:
    """Return the assumptions of a prediction."""
    return (
        f"Predicted, not measured. Assumptions: {machine.utilization:.0%} of {machine.peak / 1e12:,.0f} TFLOP/s;"
        f" all-reduce of fp32 gradients at {machine.link / 1e9:,.0f} GB/s within a node of"
        f" {plural(machine.gpus_per_node, 'GPU')} and {machine.network * 8e-9:,g} Gbit/s between nodes, overlapped with"
        f" the last backward pass ({BACKWARD_SHARE:.0%} of the time of a micro batch). Slow ranks and data"
        " loading often cost another 2-10%."
    )


def terminal_plot(rows: Sequence[ScalingRow], width: int = 72, height: int = 16) -> list[str]:
    """Return the lines of a plot of the speed-up; it needs plotext."""
    gpus = [row.gpus for row in rows]
    unit = rows[0].tokens_per_second / rows[0].speedup
    curves: dict[str, list[tuple[float, float]]] = {
        "ideal": [(row.gpus, row.gpus) for row in rows],
        "predicted": [(row.gpus, row.predicted_tokens_per_second / unit) for row in rows],
        "measured": [(row.gpus, row.speedup) for row in rows],
    }
    return plot("speed-up", curves, x_label="GPUs", xs=gpus, width=width, height=height, markers=(".", "+", "x"))


def _table(rows: Iterable[Any], columns: Columns) -> Table:
    heading = [Column(name, leaves=leaves, right=name not in ("FITS", "LIMITED BY")) for name, leaves, _ in columns]
    return heading, [
        [form.format(row) if isinstance(form, str) else form(row) for _, _, form in columns] for row in rows
    ]


def _part(name: str) -> Form:
    return lambda row: _gib(getattr(row[1], name))


def _gib(part: Span) -> str:
    low, high = (f"{size / GIB:.{1 if size > GIB / 10 else 3}f}" for size in part)
    return low if low == high else f"{low}-{high}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds else "0"
