"""The whole answer of ``clusterrun plan``: rows by number of GPUs, memory, and predicted speed. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from clusterrun.errors import RequestError
from clusterrun.sizing.batches import GpuPlan, Training, batch_notes, plan_batches
from clusterrun.sizing.memory import MemoryEstimate, ModelSize, estimate_memory, memory_verdict
from clusterrun.sizing.speed import Machine, Prediction, count_nodes, predict

MOST_COUNTS, MOST_GPUS = 32, 1_000_000
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class Question(NamedTuple):
    """What to plan. ``model`` and ``tokens_per_sample`` are None and 0 if unknown: then there is no memory and speed.

    ``seq_len`` is the length of a row in memory. ``memory_bytes`` and ``machine`` are None without a known device.
    """

    training: Training
    gpu_counts: Sequence[int]
    model: ModelSize | None = None
    seq_len: int = 0
    tokens_per_sample: float = 0.0
    precision: str = "bf16"
    gradient_copies: int = 2
    device: str = ""
    memory_bytes: float | None = None
    machine: Machine | None = None
    gpus_per_node: int = 8


class Answer(NamedTuple):
    """A plan for each number of GPUs, the memory by micro batch, the predictions, and lines for the user."""

    question: Question
    plans: list[GpuPlan]
    memory: dict[int, MemoryEstimate]
    predictions: list[Prediction]
    notes: list[str]

    def verdict(self, micro_batch: int) -> str:
        """Return whether a micro batch fits the device; an empty text if the device is unknown."""
        size = self.question.memory_bytes
        return "" if size is None else memory_verdict(self.memory[micro_batch], size)


def answer(question: Question) -> Answer:
    """Return the plan. Raises RequestError for batch sizes that are not possible."""
    plans = plan_batches(question.training, question.gpu_counts)
    model, memory, predictions = question.model, {}, []
    if model is not None:
        for plan in plans:
            memory[plan.micro_batch] = estimate_memory(
                model,
                plan.micro_batch,
                question.seq_len,
                question.precision,
                gradient_copies=question.gradient_copies if plans[-1].gpus > 1 else 1,
            )
        if question.machine is not None:
            predictions = [predict(plan, model, question.tokens_per_sample, question.machine) for plan in plans]
    found = Answer(question, plans, memory, predictions, batch_notes(question.training, plans))
    found.notes.extend(_memory_notes(found))
    return found


def answer_json(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON: sizes in bytes, times in seconds."""
    question = found.question
    predicted = {one.gpus: one._asdict() for one in found.predictions}
    return {
        "samples": question.training.samples,
        "parameters": question.model.parameters if question.model else None,
        "device": {"name": question.device, "memory": question.memory_bytes},
        "plans": [
            plan._asdict()
            | {
                "nodes": count_nodes(plan.gpus, question.gpus_per_node),
                "memory": _memory_json(found, plan.micro_batch),
                "prediction": predicted.get(plan.gpus),
            }
            for plan in found.plans
        ],
        "assumptions": question.machine._asdict() if question.machine else None,
        "notes": found.notes,
    }


def parse_gpu_counts(text: str) -> list[int]:
    """Parse ``1,2,4,8`` into increasing numbers. Raises RequestError."""
    hint = "for example --gpus 1,2,4,8"
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not re.fullmatch(r"[0-9]{1,7}", part)), None)
    if wrong is not None:
        raise RequestError(f"--gpus: not a number of GPUs: {wrong[:40]!r}", hint=hint)
    counts = sorted({int(part) for part in parts})
    if not 1 <= counts[0] <= counts[-1] <= MOST_GPUS:
        raise RequestError(f"--gpus must be between 1 and {MOST_GPUS:,}, not {text[:40]}", hint=hint)
    if len(counts) > MOST_COUNTS:
        raise RequestError(f"--gpus has {len(counts)} numbers; at most {MOST_COUNTS} are possible", hint=hint)
    return counts


def parse_parameters(text: str) -> int:
    """Parse a number of parameters such as ``135M``, ``1.7B`` or ``134515008``. Raises RequestError."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMBT]?)", text.strip().upper())
    number = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 1 <= number <= 10**15:
        raise RequestError(f"--parameters: not a number of parameters: {text[:40]!r}", hint="for example 135M or 1.7B")
    return number


def _memory_json(found: Answer, micro_batch: int) -> dict[str, Any] | None:
    if micro_batch not in found.memory:
        return None
    estimate = found.memory[micro_batch]
    parts = {name: list(part) for name, part in estimate._asdict().items()}
    return parts | {"total": list(estimate.total), "fits": found.verdict(micro_batch) or None}


def _memory_notes(found: Answer) -> list[str]:
    device, model = found.question.device, found.question.model
    verdicts = {micro: found.verdict(micro) for micro in found.memory}
    if "never" in verdicts.values() and model is not None:
        gigabytes = 16 * model.parameters / 1e9
        advice = "use a larger GPU, or a trainer that shards the model (FSDP, DeepSpeed ZeRO)"
        return [f"DDP keeps {gigabytes:,.0f} GB on every GPU before activations, too much for {device}; {advice}"]
    tight = next((micro for micro, verdict in sorted(verdicts.items()) if verdict in ("no", "maybe")), None)
    if tight is None:
        return []
    problem = "does not fit" if verdicts[tight] == "no" else "may not fit"
    advice = f"halve it and double the accumulation: --micro-batch {tight // 2}" if tight > 1 else "shorten --seq-len"
    return [f"a micro batch of {tight} {problem} on {device}; {advice}"]
