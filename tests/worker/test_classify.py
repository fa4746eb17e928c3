"""The task `classify` on one rank: from tables to a folder that transformers loads, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import labelled, prepared
from clusterrun.worker.data.groups import MISSING, UNSEEN, Group
from clusterrun.worker.rank import distenv
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.tasks import classify, prepare
from clusterrun.worker.tasks.classify import Config

from .small_models import make_tokenizer

TRADES = {"smith": "83110", "baker": "77610", "shepherd": "62430", "physician": "06105"}
TOWNS = {"Ribe": "west", "Odense": "middle", "Gilleleje": "east"}
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
HEADER = ["text", "trade", "coast"]


pytestmark = pytest.mark.usefixtures("signals_as_before")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """An architecture without weights and without a tokenizer."""
    config = LlamaConfig(**SHAPE, num_key_value_heads=1, vocab_size=300, max_position_embeddings=64)
    config.save_pretrained(tmp_path / "m")
    return str(tmp_path / "m")


def table(path: Path, count: int, *more: list[str], header: list[str] = HEADER) -> str:
    """Write rows whose text tells the answers: "a smith of Ribe" is a smith and lives in the west."""
    draw = random.Random(path.name)
    rows = []
    for _ in range(count):
        trade, town = draw.choice(list(TRADES)), draw.choice(list(TOWNS))
        rows.append([f"{draw.choice(['a', 'the old'])} {trade} of {town}", trade, TOWNS[town]])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows, *more])
    return str(path)


def start(folder: Path, run_id: str = "r1", **settings: Any) -> Path:
    """Run the task as it would be on a node; returns the run's folder."""
    words = [f"{k}={json.dumps(v) if isinstance(v, list) else v}" for k, v in settings.items()]
    run_dir = folder / "runs" / run_id
    (run_dir / "attempt").mkdir(parents=True)
    env = RunEnv(run_id=run_id, run_dir=run_dir, attempt_dir=run_dir / "attempt")
    prepare("classify", words, 1)(distenv.resolve({}), env, torch.device("cpu"))
    return run_dir


def last_row(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])


SMALL = {"vocab": 300, "seq_len": 32, "micro_batch_size": 16, "lr": 0.01, "eval_every": 0}


def test_several_files_are_learned_and_the_folder_is_a_plain_classifier(tmp_path: Path, model: str) -> None:
    table(tmp_path / "train1.csv", 100)
    table(tmp_path / "train2.csv", 100)
    more = table(tmp_path / "more.csv", 50, ["a smith of nowhere", "smith", ""])
    held = table(tmp_path / "held.csv", 40)
    files = {"data": [str(tmp_path / "train*.csv"), more], "val_data": held}
    run_dir = start(tmp_path, model=model, **files, target_cols=["trade", "coast"], steps=60, **SMALL)
    row = last_row(run_dir)
    assert row["exact_match"] > 0.9 and row["accuracy_trade"] > 0.9 and row["f1_coast"] > 0.9
    assert row["val_loss"] < 0.3

    loaded, found = AutoModelForSequenceClassification.from_pretrained(run_dir / "model", output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "model")
    labels = json.loads((run_dir / "model" / "labels.json").read_text())
    assert (labels["formatter"], labels["text_cols"]) == ("plain", ["text"])
    texts = [f"a {trade} of {town}" for trade in TRADES for town in TOWNS]
    encoded = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    outputs = loaded.eval()(**encoded).logits
    answers = []
    for (one,) in labels["targets"].values():
        answers.append([one["classes"][i] for i in outputs[:, one["start"] : one["end"]].argmax(-1)])
    expected = [(trade, TOWNS[town]) for trade in TRADES for town in TOWNS]
    assert sum(a == b for a, b in zip(zip(*answers, strict=True), expected, strict=True)) >= 11
    names = [loaded.config.id2label[i] for i in range(7)]
    assert names == [f"trade={t}" for t in sorted(TRADES)] + ["coast=east", "coast=middle", "coast=west"]


def test_one_file_is_split_by_the_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = table(tmp_path / "all.csv", 50)
    config = Config(data=data, target_cols=("trade",), held_out=0.2, vocab=300)
    dist = distenv.resolve({})

    def held_out(**change: Any) -> tuple[list[list[int]], prepared.Corpus]:
        found, _, notes = labelled.prepare(dataclasses.replace(config, **change), None, tmp_path / "cache", dist)
        assert notes == ["40 texts to train on, 10 held out"]
        return [found.held_out.batch([i]).tensors["input_ids"].tolist() for i in range(10)], found

    one, found = held_out()
    assert (len(found.train), len(found.held_out)) == (40, 10)
    assert held_out()[0] == one and held_out()[1].fingerprint == found.fingerprint
    assert held_out(seed=2)[0] != one
    with pytest.raises(WorkerError, match=r"held_out=0.99 leaves no rows to train on \(the data has 50 rows\)"):
        held_out(held_out=0.99)


def test_without_data_the_docstrings_of_python_are_learned(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = start(tmp_path, model=model, **SMALL | {"steps": 25, "seq_len": 24, "vocab": 600})
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["val_loss"] < rows[0]["val_loss"] - 0.1
    assert {"accuracy_kind", "accuracy_topic", "exact_match", "f1_kind", "f1_topic"} <= rows[-1].keys()
    assert "truncated to 24 tokens" in capsys.readouterr().out


def test_codes_are_learned_digit_by_digit(tmp_path: Path, model: str) -> None:
    path = tmp_path / "codes.csv"
    rows = [["trade", "town", "code"]]
    rows += [[t, town, code.lstrip("0")] for t, code in TRADES.items() for town in TOWNS for _ in range(5)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([*rows, *[["none", "Ribe", "-1"]] * 10])
    settings = {"data": path, "target_cols": "code", "text_cols": ["trade", "town"], "formatter": "hisco"}
    run_dir = start(tmp_path, model=model, **settings, **SMALL, steps=40)
    row = last_row(run_dir)
    assert row["accuracy_code"] > 0.8 and row["accuracy_code"] <= min(row[f"accuracy_code_{i}"] for i in range(1, 6))
    digits = json.loads((run_dir / "model" / "labels.json").read_text())["targets"]["code"]
    assert digits[0]["classes"] == ["-1", "0", "6", "7", "8"] and len(digits) == 5


def test_a_class_that_training_never_saw_counts_as_wrong_and_is_said(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"data": table(tmp_path / "a.csv", 40), "val_data": table(tmp_path / "b.csv", 1, ["x", "king", ""])}
    run_dir = start(tmp_path, model=model, **files, target_cols="trade", **SMALL, steps=1)
    assert "classes without training rows (their held-out rows count as wrong): trade=king" in capsys.readouterr().out
    row = last_row(run_dir)
    assert row["accuracy_trade"] in (0.0, 0.5) and row["val_loss"] > 0


def test_a_doubtful_column_is_named_before_the_training(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,code\n" + "".join(f"word,{i % 5}|{i % 7 + 5}\n" for i in range(70)))
    start(tmp_path, model=model, data=str(path), target_cols="code", **SMALL, steps=1)
    assert "clusterrun: target 'code' joins labels with '|'" in capsys.readouterr().out
    path.write_text("text,code\n" + "".join(f"word,{i}.5\n" for i in range(70)))
    with pytest.raises(WorkerError, match="target 'code' holds measurements"):
        start(tmp_path, "r2", model=model, data=str(path), target_cols="code", objective="classes", **SMALL, steps=1)


def test_bad_rows_stop_the_run_or_are_counted(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"data": table(tmp_path / "a.csv", 9, ["", "smith", ""]), "target_cols": "trade", "model": model}
    with pytest.raises(WorkerError, match=r"a\.csv:11: no text in 'text' \(set on_bad_row=skip to skip such rows\)"):
        start(tmp_path, "one", **settings, **SMALL, steps=1)
    start(tmp_path, "two", **settings, **SMALL, steps=1, on_bad_row="skip")
    assert "8 texts to train on, 1 held out; 1 bad row skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["held_out=1"], "held_out must be greater than 0 and less than 1, got 1.0"),
        (["formatter=hisko"], "did you mean 'hisco'?"),
        (["formatter={a}", "text_cols=b"], "already names the text columns: omit text_cols"),
        (["text_cols="], "text_cols contains an empty column name"),
        (['target_cols=["a","a"]'], "target_cols names 'a' twice"),
        (["target_cols=text"], "target 'text' is also a text column"),
        (["formatter={a} {b}", "target_cols=b"], "target 'b' is also a text column"),
    ],
)
def test_what_cannot_be_is_refused_before_any_file_is_read(words: list[str], said: str) -> None:
    with pytest.raises(WorkerError) as caught:
        prepare("classify", words, 2)
    assert said in str(caught.value) and caught.value.status == 2


def test_columns_typed_as_one_word_are_refused_with_the_way_to_write_them(tmp_path: Path, model: str) -> None:
    data = table(tmp_path / "a.csv", 9)
    with pytest.raises(WorkerError) as caught:
        start(tmp_path, model=model, data=data, target_cols="trade,coast", **SMALL)
    assert 'target_cols=\'["trade","coast"]\'' in str(caught.value) and caught.value.status == 2


def samples(pad_id: int = 0) -> labelled.Labelled:
    """Three texts of 2, 5 and 3 tokens, in two groups."""
    tokens = torch.tensor([5, 6, 7, 8, 9, 10, 11, 12, 13, 14], dtype=torch.int32)
    labels = torch.tensor([[0, 2], [MISSING, 1], [UNSEEN, MISSING]], dtype=torch.int32)
    return labelled.Labelled(tokens, torch.tensor([0, 2, 7, 10]), labels, pad_id)


def test_a_batch_is_as_long_as_its_longest_text() -> None:
    tensors, weight, tokens = samples(pad_id=3).batch([2, 0])
    assert tensors["input_ids"].tolist() == [[12, 13, 14], [5, 6, 3]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert tensors["labels"].tolist() == [[UNSEEN, MISSING], [0, 2]]
    assert (weight, tokens, len(samples())) == (2.0, 5, 3)


HEADS = {
    "llama": LlamaConfig(**SHAPE, vocab_size=20, pad_token_id=0, num_labels=5),
    "gpt2": GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=20, pad_token_id=0, num_labels=5),
    "bert": BertConfig(**SHAPE, vocab_size=20, pad_token_id=0, num_labels=5),
}


@pytest.mark.parametrize("architecture", HEADS)
def test_the_loss_is_a_sum_of_cross_entropies_that_padding_does_not_change(architecture: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(HEADS[architecture]).eval()
    groups = (Group("a", "a", ("x", "y"), 0), Group("b", "b", ("1", "2", "3"), 2))
    alone = [classify.sum_of_losses(model, samples().batch([i]).tensors, groups) for i in range(3)]
    together = classify.sum_of_losses(model, samples().batch([0, 1, 2]).tensors, groups)
    torch.testing.assert_close(together, sum(alone[1:], alone[0]))
    outputs = model(torch.tensor([[5, 6]])).logits[0]
    expected = -outputs[:2].log_softmax(-1)[0] - outputs[2:].log_softmax(-1)[2]
    torch.testing.assert_close(alone[0], expected)
    assert alone[2] == 0 and together.dtype == torch.float32  # nothing is known of the third text


def test_a_model_with_a_tokenizer_keeps_it_and_learns_to_pad(tmp_path: Path, model: str) -> None:
    tokenizer = make_tokenizer()
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|end|>")
    bare.save_pretrained(model)
    before = json.loads((Path(model) / "tokenizer.json").read_text())
    data = table(tmp_path / "a.csv", 20)
    run_dir = start(tmp_path, model=model, data=data, target_cols="coast", **SMALL | {"seq_len": 12}, steps=1)
    loaded = AutoTokenizer.from_pretrained(run_dir / "model")
    assert (loaded.pad_token, loaded.padding_side) == ("<|end|>", "right")
    assert json.loads((run_dir / "model" / "config.json").read_text())["pad_token_id"] == loaded.pad_token_id
    after = json.loads((run_dir / "model" / "tokenizer.json").read_text())
    assert after["model"] == before["model"] and after["truncation"] is None  # texts were cut while training
