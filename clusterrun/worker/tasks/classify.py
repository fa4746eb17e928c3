"""Fine-tuning a classifier of texts on tables: for one target column or many, classes, numbers, or a set of labels."""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError
from ...base.settings import Classify as Config
from ..data import targets
from ..rank.distenv import DistEnv, RunEnv
from ..training import settings

if TYPE_CHECKING:
    import torch

    from ..data.groups import Group
    from ..data.meaning import Meaning
    from ..models.load import Source
    from ..training.work import Tensors


def check(config: Config, world_size: int) -> None:
    """Raise WorkerError (status 2) for settings that cannot work."""
    settings.check(config, world_size)
    formatter = targets.formatter_of(config)
    if formatter.columns != config.text_cols and config.text_cols != Config.text_cols:
        raise WorkerError(f"formatter={config.formatter} already names the text columns: omit text_cols", status=2)
    if not all(formatter.columns):
        raise WorkerError("text_cols contains an empty column name", status=2)
    if not formatter.columns and not formatter.number_cols:
        raise WorkerError("without text_cols the model needs number_cols", status=2)
    for key in ("target_cols", "number_cols"):
        twice = [name for name, count in Counter(getattr(config, key)).items() if count > 1]
        if twice:
            raise WorkerError(f"{key} names {twice[0]!r} twice", status=2)
    _refuse_shown_targets(config, "text", formatter.columns)
    _refuse_shown_targets(config, "number", formatter.number_cols)
    _check_objective(config)


def _refuse_shown_targets(config: Config, kind: str, columns: tuple[str, ...]) -> None:
    for target in config.target_cols:
        if target in columns:
            raise WorkerError(f"target {target!r} is also a {kind} column, so the model would see the label", status=2)


def _check_objective(config: Config) -> None:
    if config.objective == "regression" and config.formatter == "hisco":
        raise WorkerError("formatter=hisco predicts codes, not numbers: omit objective=regression", status=2)
    if config.separator != Config.separator and config.objective not in targets.SETS:
        raise WorkerError("separator needs objective=set or mixed", status=2)
    if config.sequence_weight != Config.sequence_weight and config.objective != "mixed":
        raise WorkerError("sequence_weight needs objective=mixed", status=2)
    if not 0 < config.sequence_weight < 1:
        raise WorkerError(
            f"sequence_weight must be greater than 0 and less than 1, got {config.sequence_weight:g}", status=2
        )


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import labelled
    from ..models import load
    from ..training.work import Work
    from . import predict
    from .finish import cache_folder, train_and_save

    source = load.resolve(config.model)
    corpus, meaning, notes = labelled.prepare(config, load.tokenizer(source), cache_folder(run), dist)
    for line in notes if dist.rank == 0 else ():
        print(f"clusterrun: {line}", flush=True)
    model = build(source, config, meaning, corpus.tokenizer)
    parts: tuple[Any, ...] = (corpus.train, corpus.held_out)
    for part in parts:
        part.molecule = getattr(model.config, "downsampling_rate", 0)
    described = describe(config, meaning)
    predictor = predict.Predictor(model, corpus.tokenizer, described)
    work = Work(
        model=model,
        train=corpus.train,
        held_out=corpus.held_out,
        loss=functools.partial(sum_of_losses, groups=meaning.groups, sequence_weight=config.sequence_weight),
        measure=functools.partial(measure, groups=meaning.groups),
        summarize=functools.partial(summarize, groups=meaning.groups),
        sample=functools.partial(predictor.sample, device=device),
        tokenizer=corpus.tokenizer,
        fingerprint=corpus.fingerprint,
        files={"labels.json": json.dumps(described, indent=2, ensure_ascii=False) + "\n"},
    )
    train_and_save(work, config, dist, run, device)


def build(source: Source, config: Config, meaning: Meaning, tokenizer: Any) -> Any:
    """Return a model of transformers; with numbers or a decoder, return a Classifier around its encoder."""
    from ..models import classifier, load

    shape: dict[str, Any] = {"vocab_size": len(tokenizer), "seq_len": config.seq_len, "pad_id": tokenizer.pad_token_id}
    layout = layout_of(meaning)
    if layout is None:
        names = meaning.names
        shape |= {"num_labels": len(names), "id2label": dict(enumerate(names))}
        model = load.build(source, head="classify", seed=config.seed, **shape)
    else:
        encoder = load.build(source, head="none", seed=config.seed, **shape)
        model = classifier.around(encoder, meaning.outputs, layout, config.seed)
    classifier.freeze_unreached(model, uses_states=meaning.alphabet is not None)
    return model


def layout_of(meaning: Meaning) -> dict[str, int] | None:
    """Return the layout of a Classifier; None if a model of transformers will do."""
    alphabet = meaning.alphabet
    if not meaning.scales and alphabet is None:
        return None
    decoder = {"size": alphabet.size, "length": alphabet.length} if alphabet is not None else {"size": 0, "length": 0}
    return {"features": 2 * len(meaning.scales), **decoder}


def describe(config: Config, meaning: Meaning) -> dict[str, Any]:
    """Return what labels.json has: how a row becomes the model's input, and the meaning of its outputs."""
    formatter = targets.formatter_of(config)
    return {
        "formatter": config.formatter,
        "text_cols": formatter.columns,
        "objective": config.objective,
        "seq_len": config.seq_len,
        **meaning.json(),
    }


def sum_of_losses(
    model: torch.nn.Module, tensors: Tensors, groups: tuple[Group, ...], sequence_weight: float = 0.5
) -> torch.Tensor:
    """Return the sum of losses over all answers.

    Of a class it is the cross-entropy (nats), of a number the squared error in units of its variance. Of a set it is
    the binary cross-entropy, averaged over the labels, and with a decoder the weighted mean of it and of the
    cross-entropy per number of the sequence.
    """
    from ..data.groups import SET
    from .predict import outputs_of

    outputs = outputs_of(model, tensors)
    logits = outputs.logits.float()
    if groups[0].kind != SET:
        losses = [_loss_of_group(group, i, logits, tensors) for i, group in enumerate(groups)]
        return sum(losses[1:], losses[0])
    flat = _loss_of_set(groups[0], logits, tensors["labels"])
    if "codes" not in tensors:
        return flat
    return sequence_weight * _loss_of_codes(outputs.codes.float(), tensors["codes"]) + (1 - sequence_weight) * flat


def _loss_of_group(group: Group, column: int, logits: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    from torch.nn.functional import cross_entropy

    from ..data.groups import NUMBER
    from ..training.work import IGNORED

    labels = tensors["labels"][:, column]
    if group.kind == NUMBER:
        errors = logits[:, group.start] - tensors["numbers"][:, column]
        return (errors.square() * (labels >= 0)).sum()
    labels = labels.masked_fill(labels < 0, IGNORED)
    return cross_entropy(logits[:, group.start : group.end], labels, ignore_index=IGNORED, reduction="sum")


def _loss_of_set(group: Group, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import binary_cross_entropy_with_logits

    from .scores import wanted_labels

    wanted = wanted_labels(group, labels)
    return binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1).sum()


def _loss_of_codes(scores: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of the mean cross-entropy of a row's numbers, each after those before it."""
    from torch.nn.functional import cross_entropy

    from ..data.codes import PAD

    following = sequences[:, 1:].long()
    known = following > PAD
    losses = cross_entropy(
        scores[:, :-1].transpose(1, 2), following.masked_fill(~known, PAD), ignore_index=PAD, reduction="none"
    )
    return (losses.sum(1) / known.sum(1)).sum()


def measure(model: torch.nn.Module, tensors: Tensors, groups: tuple[Group, ...]) -> torch.Tensor:
    """Return the sums that summarize() reads; the last two are of a decoder: rows, and rows with exactly their codes.

    If each number is the likeliest one after the right ones before it, then so is the sequence that the decoder writes.
    """
    import torch

    from ..data.codes import PAD
    from . import scores
    from .predict import outputs_of

    outputs = outputs_of(model, tensors)
    sums = scores.measure(groups, outputs.logits.float(), tensors["labels"], tensors.get("numbers"))
    written = torch.zeros(2, dtype=torch.float64)
    if "codes" in tensors:
        following = tensors["codes"][:, 1:]
        right = (outputs.codes[:, :-1].argmax(-1) == following) | (following == PAD)
        written[0], written[1] = len(following), right.all(1).sum()
    return torch.cat([sums, written])


def summarize(sums: torch.Tensor, groups: tuple[Group, ...]) -> dict[str, float]:
    """Return the scores by name, from the sums of measure()."""
    from . import scores

    found = scores.summarize(groups, sums[:-2])
    rows, right = sums[-2:].tolist()
    return found | ({"exact_sequence": right / rows} if rows else {})
