"""The settings of the built-in tasks: one row each, with default, unit and meaning. No I/O.

One row drives the task's configuration, the check of its value, ``clusterrun tasks``, the completion of ``--set`` and
docs/settings.md. What several values decide together is checked in worker/training/settings.py and worker/tasks/.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

DATA, MODEL, LENGTH, BATCH = "Data", "Model", "Length", "Batch sizes (two give the third)"
OPTIMIZER, NUMERICS, EVALUATION = "Optimizer (AdamW)", "Numerics", "Evaluation and samples"
CHECKPOINTS, RESULTS, INTERNAL = "Checkpoints", "Results", "Set by other commands"
SECTIONS = (DATA, MODEL, LENGTH, BATCH, OPTIMIZER, NUMERICS, EVALUATION, CHECKPOINTS, RESULTS, INTERNAL)
Texts = str | tuple[str, ...]
"""One text, or a list of them."""
Every = int | str
"""A number of steps, or of epochs as text: ``1ep``, ``0.5ep``."""
EPOCHS = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)ep")


class Setting(NamedTuple):
    """One setting of a task; numbers are at least ``least``, if it is not None. ``epochs``: see ``Every``."""

    name: str
    section: str
    default: Any
    text: str
    unit: str = ""
    least: int | None = None
    choices: tuple[str, ...] = ()
    epochs: bool = False

    @property
    def shown_default(self) -> str:
        """The default as it is typed after ``=``; empty for what is not set."""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return ", ".join(self.default) if isinstance(self.default, tuple) else str(self.default)


def _row(
    section: str, default: Any, text: str, *, unit: str = "", least: int | None = None, choices: tuple[str, ...] = (),
    epochs: bool = False,
) -> Any:  # fmt: skip
    """Return a field of a configuration with its row."""
    row = {"section": section, "text": text, "unit": unit, "least": least, "choices": choices, "epochs": epochs}
    return dataclasses.field(default=default, metadata=row)


@dataclass(frozen=True)
class Training:
    """The settings of every training, set with `KEY=VALUE`. Batch sizes are in samples; 0 and "" mean: not set."""

    task: ClassVar[str] = "train"
    about: ClassVar[str] = ""
    default_global_batch: ClassVar[int] = 16  # if no batch size is set

    steps: int = _row(LENGTH, 0, "optimizer steps; 0: as many as epochs take", unit="steps", least=0)
    epochs: float = _row(LENGTH, 1.0, "passes over the data, if steps=0")

    global_batch_size: int = _row(
        BATCH, 0, "per step, over all ranks; 0: 16 (sft, diffusion: 8), rounded up to divide evenly", unit="samples",
        least=0,
    )  # fmt: skip
    micro_batch_size: int = _row(BATCH, 0, "per forward pass of one rank; 0: from the others", unit="samples", least=0)
    grad_accum_steps: int = _row(
        BATCH, 0, "forward passes of a rank per step; 0: from the others", unit="passes", least=0
    )
    auto_micro_batch: bool = _row(
        BATCH, False, "halve the micro batch until a step fits in memory; the global batch stays"
    )
    drop_last: bool = _row(BATCH, False, "drop the last, smaller batch of an epoch")

    lr: float = _row(OPTIMIZER, 1e-3, "peak learning rate")
    warmup: int = _row(OPTIMIZER, 10, "linear warm-up", unit="steps", least=0)
    schedule: str = _row(
        OPTIMIZER, "cosine", "after the warm-up: cosine, linear (both down to a tenth of lr) or constant",
        choices=("cosine", "linear", "constant"),
    )  # fmt: skip
    lr_scaling: str = _row(
        OPTIMIZER, "none", "linear or sqrt: scale lr by global_batch_size / base_batch_size",
        choices=("none", "linear", "sqrt"),
    )  # fmt: skip
    base_batch_size: int = _row(
        OPTIMIZER, 0, "the global batch size that lr is for, with lr_scaling", unit="samples", least=0
    )
    weight_decay: float = _row(OPTIMIZER, 0.1, "of matrices only")
    clip: float = _row(OPTIMIZER, 1.0, "highest norm of the gradient; 0: no clipping")

    precision: str = _row(
        NUMERICS, "auto", "bf16, fp16, fp32; auto: bf16 if the GPU has it, else fp16; fp32 on a CPU",
        choices=("auto", "bf16", "fp16", "fp32"),
    )  # fmt: skip
    parallel: str = _row(
        NUMERICS, "ddp",
        "ddp: every rank has the whole model; fsdp (FSDP2): a part of it, for models too large for one GPU, and in bf16"
        " without float32 activations",
        choices=("ddp", "fsdp"),
    )  # fmt: skip
    recompute: bool = _row(
        NUMERICS, False, "activation checkpointing: compute layers again for the backward pass; less memory, slower"
    )
    compile: str = _row(
        NUMERICS, "auto",
        "true, false; auto: torch.compile on a GPU, but not with deterministic, fsdp or batches that differ in length",
        choices=("auto", "true", "false"),
    )  # fmt: skip
    deterministic: bool = _row(NUMERICS, False, "the same run gives the same bits on a GPU too (slower)")
    seed: int = _row(NUMERICS, 1, "of weights, order of samples, dropout and noise")
    on_nan: str = _row(
        NUMERICS, "stop", "stop, or skip steps whose gradient is not finite (20 in a row stop the run)",
        choices=("stop", "skip"),
    )  # fmt: skip

    eval_every: Every = _row(
        EVALUATION, 25, "between evaluations (or epochs: 1ep); 0: only at the end", unit="steps", least=0, epochs=True
    )
    eval_samples: int = _row(
        EVALUATION, 256, "held out, evenly spread, per evaluation; 0: all", unit="samples", least=0
    )
    early_stopping: int = _row(
        EVALUATION, 0, "in a row without a lower held-out loss, after which the training ends; 0: never",
        unit="evaluations", least=0,
    )  # fmt: skip
    log_every: int = _row(EVALUATION, 10, "between rows of metrics.jsonl", unit="steps", least=1)
    sample_prompts: tuple[str, ...] = _row(
        EVALUATION, (), "generate from these prompts at each evaluation, into samples.jsonl"
    )
    sample_tokens: int = _row(EVALUATION, 40, "to generate per prompt", unit="tokens", least=1)

    save_every: Every = _row(
        CHECKPOINTS, 0, "between checkpoints (or epochs: 1ep); 0: only at the end and before an early stop",
        unit="steps", least=0, epochs=True,
    )  # fmt: skip
    keep_last: int = _row(
        CHECKPOINTS, 2, "kept, besides the best and the one resumed from", unit="checkpoints", least=1
    )
    checkpoint_dir: str = _row(
        CHECKPOINTS, "", "another folder than the run's own, from which the next job with it continues"
    )
    resume: str = _row(
        CHECKPOINTS, "auto",
        "auto (after a requeue this run's own), no, a checkpoint, a folder of them, or a .pt file with a"
        " model_state_dict (and with epoch and optimizer_state_dict to continue after that epoch)",
    )  # fmt: skip
    time_margin: float = _row(
        CHECKPOINTS, 0.0,
        "before the time limit to save and stop; 0: twice the saving time, at least a minute (or a tenth of a short"
        " limit)", unit="s",
    )  # fmt: skip

    save_path: str = _row(
        RESULTS, "", "folder for the finished model in Hugging Face format; default: in the run's folder"
    )
    keep: str = _row(
        RESULTS, "best", "the finished model: best (of the evaluation with the lowest held-out loss) or last (step)",
        choices=("best", "last"),
    )  # fmt: skip
    export: str = _row(
        RESULTS, "", "also write checkpoint_epoch_N.pt after each epoch N (without an N: one at the end), with epoch,"
        " model_state_dict and optimizer_state_dict",
    )  # fmt: skip
    push_to_hub: str = _row(RESULTS, "", "org/name on the Hugging Face Hub, with the token of HF_TOKEN")
    tensorboard: bool = _row(RESULTS, False, "also log to TensorBoard, in the run's folder")
    wandb: str = _row(RESULTS, "", "also log to this W&B project")

    ladder: int = _row(
        INTERNAL, 0, "of the whole job, whose batch sizes a rung of submit --ladder has", unit="ranks", least=0
    )
    measure: int = _row(
        INTERNAL, 0, "after which plan --measure does not average gradients; nothing is saved", unit="steps", least=0
    )


@dataclass(frozen=True)
class _Task(Training):
    """What the shipped tasks share beside the training: data and a model. Lengths are in tokens."""

    data: Texts = _row(
        DATA,
        "pydoc",
        "files or globs (txt, jsonl, csv, parquet), hf:org/name:config[split]; pydoc: Python's help topics",
    )
    val_data: Texts = _row(DATA, "", "data to evaluate on")
    held_out: float = _row(DATA, 0.1, "share of the data, at its end, to evaluate on without val_data")
    on_bad_row: str = _row(DATA, "stop", "stop, or skip rows of the data that do not parse", choices=("stop", "skip"))
    model: str = _row(
        MODEL, "tiny",
        "tiny, smollm2-135m, smollm2-360m, smollm2-1.7b, gpt2-124m, for classify canine-tiny (untrained), a folder,"
        " gguf:FILE or hf:org/name",
    )  # fmt: skip
    lora: int = _row(
        MODEL, 0, "rank of LoRA adapters, trained in place of the weights and merged at the end (needs peft); 0: none",
        least=0,
    )  # fmt: skip
    vocab: int = _row(
        MODEL, 1024, "size of the tokenizer trained on the data, for an untrained model", unit="tokens", least=300
    )  # 256 bytes and the special tokens
    seq_len: int = _row(MODEL, 64, "per sample", unit="tokens", least=2)


@dataclass(frozen=True)
class Lm(_Task):
    """The settings of `lm`."""

    task: ClassVar[str] = "lm"
    about: ClassVar[str] = "causal language modelling"

    text_column: str = _row(DATA, "text", "column of jsonl, csv and parquet files")

    steps: int = 150
    lr: float = 3e-3


@dataclass(frozen=True)
class Sft(_Task):
    """The settings of `sft`."""

    task: ClassVar[str] = "sft"
    about: ClassVar[str] = "chats; loss on the assistant's tokens only, packed"
    default_global_batch: ClassVar[int] = 8

    data: Texts = _row(
        DATA, "pydoc",
        "files or globs (jsonl, csv, parquet), hf:org/name:config[split]: messages, prompt and completion, or"
        " instruction and output; pydoc: questions about Python's library",
    )  # fmt: skip
    held_out: float = _row(DATA, 0.1, "share of the data, evenly spread, to evaluate on without val_data")
    seq_len: int = _row(MODEL, 256, "per row; longer conversations are cut", unit="tokens", least=2)
    packing: bool = _row(DATA, True, "a row has several conversations, which do not see each other; false: one")

    steps: int = 150
    lr: float = 3e-3
    sample_prompts: tuple[str, ...] = ("What does textwrap.dedent do?",)


@dataclass(frozen=True)
class Classify(_Task):
    """The settings of `classify`."""

    task: ClassVar[str] = "classify"
    about: ClassVar[str] = "tables (csv, jsonl, parquet); one or more targets"

    data: Texts = _row(
        DATA,
        "pydoc",
        "files or globs (csv, tsv, jsonl, parquet), hf:org/name:config[split]; pydoc: docstrings of Python's library",
    )
    held_out: float = _row(DATA, 0.1, "share of the data, drawn by seed, to evaluate on without val_data")
    target_cols: tuple[str, ...] = _row(
        DATA, (), "columns to predict (required for files); rows with an empty cell do not count for that column"
    )
    text_cols: tuple[str, ...] = _row(DATA, ("text",), "columns of the text")
    formatter: str = _row(
        DATA, "plain", "plain: joins text_cols; hisco: HISCO codes; or a template such as {title}: {body}"
    )
    number_cols: tuple[str, ...] = _row(
        DATA, (), "columns of numbers that the model sees beside the text, scaled by their mean and spread in training"
    )
    objective: str = _row(
        DATA, "auto",
        "auto: each target by itself, measurements as numbers, others as classes; classes, regression: all targets so;"
        " set: the labels of all targets as one set; mixed: that, and a decoder that writes the set",
        choices=("auto", "classes", "regression", "set", "mixed"),
    )  # fmt: skip
    separator: str = _row(DATA, "|", "between the labels of a cell, with objective=set or mixed")
    sequence_weight: float = _row(
        OPTIMIZER, 0.5, "share of the decoder's loss in the sum of both, with objective=mixed"
    )
    seq_len: int = _row(MODEL, 64, "per text; longer ones are cut", unit="tokens", least=2)

    steps: int = 150


@dataclass(frozen=True)
class Diffusion(_Task):
    """The settings of `diffusion`."""

    task: ClassVar[str] = "diffusion"
    about: ClassVar[str] = "LLaDA's masked diffusion over text"
    default_global_batch: ClassVar[int] = 8

    text_column: str = _row(DATA, "text", "column of jsonl, csv and parquet files")
    eps: float = _row(MODEL, 1e-3, "a sequence's tokens are masked with a probability drawn from eps to 1")
    sample_steps: int = _row(EVALUATION, 20, "in which a sample is filled in", unit="rounds", least=1)
    vocab: int = 320  # with more tokens it takes longer to learn more than their frequencies

    steps: int = 1000
    lr: float = 3e-3
    eval_every: int = 200
    log_every: int = 50


TASKS: dict[str, type[Training]] = {kind.task: kind for kind in (Lm, Sft, Classify, Diffusion)}


def rows(kind: type[Training]) -> list[Setting]:
    """Return the settings of a task, sorted by section."""
    found = []
    for field in dataclasses.fields(kind):
        meaning = _meaning(kind, field.name)
        if meaning:
            found.append(Setting(field.name, default=field.default, **meaning))
    return sorted(found, key=lambda row: SECTIONS.index(row.section))


def _meaning(kind: type, name: str) -> dict[str, Any]:
    """Return what the row of a setting says beside its default, which a task may change; empty without a row."""
    for ancestor in kind.__mro__:
        field = getattr(ancestor, "__dataclass_fields__", {}).get(name)
        if field is not None and field.metadata:
            return dict(field.metadata)
    return {}
