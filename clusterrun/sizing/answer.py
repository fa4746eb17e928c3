"""The whole answer of ``clusterrun plan``: rows by number of GPUs, memory, and predicted speed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clusterrun.sizing.batches import GpuPlan, Training, batch_notes, plan_batches
from clusterrun.sizing.memory import MemoryEstimate, ModelSize, estimate_memory, memory_verdict
from clusterrun.sizing.speed import Machine, Prediction, compute_seconds, count_nodes, launch_seconds, predict


@dataclass(frozen=True)
class Question:
    """What to plan. ``model`` and ``tokens_per_sample`` are None and 0 if unknown: then there is no memory and speed.

    ``seq_len`` is the length of a row in memory. ``memory_bytes`` and ``machine`` are None without a known device.
    ``task`` and its setting ``lr_scaling`` are empty for work without a job.
    """

    training: Training
    gpu_counts: Sequence[int] = ()
    model: ModelSize | None = None
    seq_len: int = 0
    tokens_per_sample: float = 0.0
    precision: str = "bf16"
    gradient_copies: int = 2
    whole_logits: bool = True
    device: str = ""
    memory_bytes: float | None = None
    machine: Machine | None = None
    gpus_per_node: int = 8
    task: str = ""
    lr_scaling: str = ""
    parallel: str = "ddp"

    def load(self, plan: GpuPlan) -> Load:
        """Return what a plan puts on each GPU. FSDP divides the model over all of them."""
        return Load(plan.micro_batch, plan.gpus if self.parallel == "fsdp" else 1)


class Load(NamedTuple):
    """What one GPU holds: the activations of a micro batch, and the model's part if it is divided over ``shards``."""

    micro_batch: int
    shards: int = 1


class Answer(NamedTuple):
    """A plan for each number of GPUs, the memory of each load, the predictions, and lines for the user."""

    question: Question
    plans: list[GpuPlan]
    memory: dict[Load, MemoryEstimate]
    predictions: list[Prediction]
    notes: list[str]

    def verdict(self, load: Load) -> str:
        """Return whether a load fits the device; an empty text if the device is unknown."""
        size = self.question.memory_bytes
        return "" if size is None else memory_verdict(self.memory[load], size)

    def json(self) -> dict[str, Any]:
        """Return the answer for ``--json``: sizes in bytes, times in seconds."""
        question = self.question
        predicted = {one.gpus: one._asdict() for one in self.predictions}
        memory = {
            load: one._asdict() | {"total": one.total, "fits": self.verdict(load) or None}
            for load, one in self.memory.items()
        }
        return {
            "samples": question.training.samples,
            "parameters": question.model.parameters if question.model else None,
            "device": {"name": question.device, "memory": question.memory_bytes},
            "plans": [
                plan._asdict()
                | {"nodes": count_nodes(plan.gpus, question.gpus_per_node)}
                | {"memory": memory.get(question.load(plan)), "prediction": predicted.get(plan.gpus)}
                for plan in self.plans
            ],
            "assumptions": question.machine._asdict() if question.machine else None,
            "notes": self.notes,
        }


def answer(question: Question) -> Answer:
    """Return the plan. Raises RequestError for batch sizes that are not possible."""
    plans = plan_batches(question.training, question.gpu_counts)
    found = Answer(question, plans, {}, [], batch_notes(question.training, plans))
    if question.model is None:
        return found
    copies = question.gradient_copies if plans[-1].gpus > 1 else 1
    for load in dict.fromkeys(map(question.load, plans)):
        found.memory[load] = estimate_memory(
            question.model,
            load.micro_batch,
            question.seq_len,
            question.precision,
            gradient_copies=copies,
            whole_logits=question.whole_logits,
            shards=load.shards,
        )
    if question.machine is not None:
        found.predictions.extend(
            predict(plan, question.model, question.tokens_per_sample, question.machine) for plan in plans
        )
        found.notes.extend(_launch_note(found, question.model, question.machine))
    found.notes.extend(_memory_note(found, question.model))
    return found


def _launch_note(found: Answer, model: ModelSize, machine: Machine) -> list[str]:
    """Return a line if starting the kernels of the first plan's micro batch takes longer than their work."""
    micro, launching_s = found.plans[0].micro_batch, launch_seconds(model)
    compute_s = compute_seconds(micro, model, found.question.tokens_per_sample, machine)
    if compute_s >= launching_s:
        return []
    busy, starting = (f"{1000 * seconds:.1f} ms" for seconds in (compute_s, launching_s))
    text = (
        f"starting the kernels of a micro batch of {micro} takes {starting} or more, and their work {busy}: a larger"
        " one takes no longer until the work does"
    )
    return [text]


def _memory_note(found: Answer, model: ModelSize) -> list[str]:
    device = "the device" if found.question.device == "device" else found.question.device
    verdicts = {load: found.verdict(load) for load in sorted(found.memory)}
    if never := [load for load, verdict in verdicts.items() if verdict == "never"]:
        return [f"{_too_much(never[-1], model)}, which is too much for {device}; {_advice(found.question)}"]
    tight = next((load for load, verdict in verdicts.items() if verdict in ("no", "maybe")), None)
    if tight is None:
        return []
    problem = "does not fit" if verdicts[tight] == "no" else "may not fit"
    return [f"a micro batch of {tight.micro_batch} {problem} on {device}{_on_gpus(tight)}; {_less(tight.micro_batch)}"]


def _less(micro: int) -> str:
    return f"halve it (--micro-batch {micro // 2}) and double the accumulation" if micro > 1 else "reduce --seq-len"


def _too_much(load: Load, model: ModelSize) -> str:
    name = "FSDP" if load.shards > 1 else "DDP"
    needed = 16 * model.parameters / load.shards / 1e9
    return f"{name} needs {needed:,.0f} GB on every GPU{_on_gpus(load)} before activations"


def _on_gpus(load: Load) -> str:
    return f" with {load.shards} GPUs" if load.shards > 1 else ""


def _advice(question: Question) -> str:
    if question.parallel == "fsdp":
        return "use more GPUs, or larger ones"
    shard = "--set parallel=fsdp" if question.task else "FSDP, DeepSpeed ZeRO"
    return f"use a larger GPU, or shard the model ({shard})"
