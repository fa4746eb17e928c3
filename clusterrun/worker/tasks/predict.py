"""The answers of a trained classifier for rows, by the names of their columns and labels."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...base.decode import parse_object
from ...base.errors import WorkerError
from ..data import codes, targets
from ..data.conversations import Malformed
from ..data.groups import NUMBER, SET, Group
from ..data.labelled import Labelled, encode
from ..data.meaning import of_json
from ..data.scales import features
from ..data.targets import Example
from ..models import classifier, generate
from ..training.work import Tensors

INPUTS = ("input_ids", "attention_mask", "features", "codes")  # the tensors of a batch that the model sees
Row = Mapping[str, Any] | str
"""The cells of a row by column, or its text."""


def load(folder: str | Path) -> Predictor:
    """Return the predictor of a model that the task `classify` has saved; raises WorkerError without a labels.json."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    try:
        described = parse_object((Path(folder) / "labels.json").read_bytes())
    except (OSError, ValueError) as error:
        raise WorkerError(f"{folder} is no model that classify has saved: {error}") from None
    config = AutoConfig.from_pretrained(folder)
    model: Any
    if hasattr(config, classifier.LAYOUT):
        model = classifier.Classifier(config)
        model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    else:
        model = AutoModelForSequenceClassification.from_pretrained(folder)
    return Predictor(model.eval(), AutoTokenizer.from_pretrained(folder), described)


class Predictor:
    """Predicts the targets of rows; `described` is what labels.json has."""

    def __init__(self, model: Any, tokenizer: Any, described: Mapping[str, Any]) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._seq_len = described["seq_len"]
        self._meaning = of_json(described)
        formatter = targets.find_formatter(described["formatter"], described["text_cols"])
        columns = tuple(scale.column for scale in self._meaning.scales)
        self._formatter = dataclasses.replace(formatter, number_cols=columns)

    def __call__(self, rows: Sequence[Row], device: torch.device | str = "cpu") -> list[dict[str, Any]]:
        """Return a value for each target: a label, a number, or of a set the list of its labels.

        Where a decoder wrote the set, `NAME (flat)` has the labels that were chosen each by itself. The model is on
        `device`. Raises WorkerError for a row without a text or number, or with a text where a number should be.
        """
        device = torch.device(device)
        tensors = {name: tensor.to(device) for name, tensor in self._tensors(rows).items()}
        with generate.undisturbed(self._model, device):
            logits = outputs_of(self._model, tensors).logits.float().tolist()
            written: list[list[int]] = [[]] * len(logits)
            if self._meaning.alphabet is not None:
                states, _ = self._model.encode(tensors["input_ids"], tensors["attention_mask"])
                written = self._model.decoder.write(states, tensors["attention_mask"], codes.BEGIN).tolist()
        return [self._answers(*pair) for pair in zip(logits, written, strict=True)]

    def sample(self, prompt: str, device: torch.device) -> str:
        """Return the answers for a row, typed as JSON or as its text, on one line."""
        row: Row
        try:
            row = parse_object(prompt)
        except ValueError:
            row = prompt
        (answers,) = self([row], device)
        return "; ".join(f"{target}: {_in_words(answer)}" for target, answer in answers.items())

    def _tensors(self, rows: Sequence[Row]) -> Tensors:
        examples = [self._example(row) for row in rows]
        ids, _ = encode(self._tokenizer, examples, self._seq_len)
        tokens = torch.tensor([i for text in ids for i in text])
        offsets = torch.tensor([0, *map(len, ids)]).cumsum(0)
        more = {}
        if self._meaning.scales:
            more["features"] = torch.tensor([features(self._meaning.scales, example.numbers) for example in examples])
        samples = Labelled(tokens, offsets, torch.zeros(len(ids), 1), self._tokenizer.pad_token_id, more)
        samples.molecule = getattr(self._model.config, "downsampling_rate", 0)
        return samples.batch(range(len(ids))).tensors

    def _example(self, row: Row) -> Example:
        if isinstance(row, str):
            return Example(row, (), repr(row), (None,) * len(self._meaning.scales))
        try:
            text, numbers = targets.seen(row, self._formatter)
        except Malformed as problem:
            raise WorkerError(f"{json.dumps(row)}: {problem}") from None
        return Example(text, (), json.dumps(row), numbers)

    def _answers(self, outputs: Sequence[float], written: Sequence[int]) -> dict[str, Any]:
        parts: dict[str, list[Any]] = {}
        for group in self._meaning.groups:
            parts.setdefault(group.target, []).append(_answer(group, outputs[group.start : group.end]))
        answers = {
            target: several[0] if len(several) == 1 else targets.whole_code(several)
            for target, several in parts.items()
        }
        if self._meaning.alphabet is None:
            return answers
        ((name, flat),) = answers.items()
        return {name: codes.decode(written, self._meaning.alphabet), f"{name} (flat)": flat}


def outputs_of(model: torch.nn.Module, tensors: Tensors) -> Any:
    """Return the model's outputs, of which the `logits` are (texts, outputs), and of a decoder its `codes`."""
    return model(**{name: tensors[name] for name in INPUTS if name in tensors})


def _answer(group: Group, outputs: Sequence[float]) -> Any:
    if group.kind == NUMBER:
        return outputs[0] * group.scale + group.mean
    if group.kind == SET:
        return [label for label, output in zip(group.classes, outputs, strict=True) if output > 0]
    return group.classes[max(range(len(outputs)), key=outputs.__getitem__)]


def _in_words(answer: Any) -> str:
    if isinstance(answer, list):
        return ", ".join(answer) or "none"
    return f"{answer:.6g}" if isinstance(answer, float) else answer
