"""Count a task's samples, tokens and parameters for `clusterrun plan`, without training: prints one JSON document.

The data is read and tokenized as the task does it, in a temporary folder. The model is built on the meta device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base.errors import WorkerError, suggestion
from .. import tasks
from ..node.log import say
from ..rank.distenv import DistEnv

VERSION = 1
_ALONE = DistEnv(0, 0, 1, 1, 0, "localhost", "localhost", 0, "single")


def main(arguments: Sequence[str]) -> int:
    """Print the facts of `TASK [--samples N] [KEY=VALUE …]`; return the exit status. Notices go to stderr.

    With `--samples` the data is not read, and every sample counts as `seq_len` tokens.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            facts = find_facts(arguments)
    except WorkerError as error:
        say(str(error))
        return error.status
    print(json.dumps(facts))
    return 0


def find_facts(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a task, the counts of its data and the size of its model. Raises WorkerError."""
    name, *rest = arguments
    if name not in tasks.NAMES:
        raise WorkerError(f"unknown task {name!r}{suggestion(name, tasks.NAMES)}; known: {', '.join(tasks.NAMES)}", 2)
    samples = int(rest[1]) if rest[:1] == ["--samples"] else 0
    task: Any = importlib.import_module(f"{tasks.__name__}.{name}")
    config = tasks.configure(task.Config, rest[2:] if samples else rest)
    # the product of all three batch sizes decides the number of ranks, which is not known here
    three = config.global_batch_size and config.micro_batch_size and config.grad_accum_steps
    task.check(dataclasses.replace(config, grad_accum_steps=0) if three else config, 1)

    from ..models import count, load

    source = load.resolve(config.model)
    tokenizer = load.tokenizer(source)
    with tempfile.TemporaryDirectory(prefix="clusterrun-plan-") as folder:
        if samples:
            vocabulary = config.vocab if tokenizer is None else len(tokenizer)
            tokens, meaning = samples * config.seq_len, None
        else:
            samples, tokens, vocabulary, meaning = _count(name, config, tokenizer, Path(folder))
    model = count.count(source, vocab_size=vocabulary, **_head(name, meaning))
    return {
        "version": VERSION,
        "task": name,
        "settings": dataclasses.asdict(config),
        "default_global_batch": config.default_global_batch,
        "samples": samples,
        "tokens": tokens,
        "model": model,
    }


def _head(name: str, meaning: Any) -> dict[str, Any]:
    """Return what the model has beside a text's states, as count() takes it."""
    from . import classify

    if name != "classify":
        return {"head": "causal"}
    outputs = meaning.outputs if meaning else 2
    layout = classify.layout_of(meaning) if meaning else None
    return {"head": "none" if layout else "classify", "num_labels": outputs, "layout": layout}


def _count(name: str, config: Any, tokenizer: Any, folder: Path) -> tuple[int, int, int, Any]:
    """Return the samples to train on, their tokens, the tokenizer's size, and the meaning of a classifier's outputs."""
    from ..data import chat, labelled, texts
    from ..models import load, masked
    from . import sft

    if name == "sft":
        if tokenizer is not None:
            chat.with_template(tokenizer)
        tensors = sft.tokenize(config, tokenizer, folder)
        tokenizer = tokenizer or load.tokenizer(load.Source("folder", str(folder)))
        lengths = tensors["train.used" if config.packing else "train.lengths"]
        return len(lengths), int(lengths.sum()), len(tokenizer), None
    if name == "classify":
        corpus, meaning, _ = labelled.prepare(config, tokenizer, folder, _ALONE)
        tokens = corpus.train.batch(range(len(corpus.train))).tokens
        return len(corpus.train), tokens, len(corpus.tokenizer), meaning
    corpus = texts.prepare(config, tokenizer, folder, _ALONE)
    if name == "diffusion":
        masked.add_mask_token(corpus.tokenizer)
    return len(corpus.train), len(corpus.train) * config.seq_len, len(corpus.tokenizer), None
