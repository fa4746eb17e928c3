"""What `classify` learns beside classes: numbers, sets of labels and codes, on tables whose answers are known."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModel, BertConfig, CanineConfig, LlamaConfig

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import codes, groups, targets
from clusterrun.worker.data.groups import MISSING, NUMBER, SET, UNSEEN, Group
from clusterrun.worker.data.meaning import Meaning, of_json
from clusterrun.worker.data.scales import Scale, scale_of
from clusterrun.worker.data.tokenizer import train_bpe
from clusterrun.worker.models import load
from clusterrun.worker.models.code_decoder import CodeDecoder
from clusterrun.worker.tasks import check_settings, classify, predict, prepare, scores
from clusterrun.worker.tasks.classify import Config

from .test_classify import SHAPE, last_row, start

TRADES = {"smith": "83110", "baker": "77610", "shepherd": "62430", "physician": "06105"}
SMALL = {"vocab": 300, "seq_len": 48, "micro_batch_size": 32, "eval_every": 0, "lr": 0.01}

pytestmark = pytest.mark.usefixtures("signals_as_before")


@pytest.fixture
def model(tmp_path: Path) -> str:
    config = LlamaConfig(**SHAPE, num_key_value_heads=1, vocab_size=300, max_position_embeddings=64)
    config.save_pretrained(tmp_path / "m")
    return str(tmp_path / "m")


@pytest.fixture
def small_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,114,112 characters transformers makes a dictionary, which takes seconds."""
    monkeypatch.setattr("transformers.models.canine.tokenization_canine.UNICODE_VOCAB_SIZE", 256)


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def houses(path: Path, count: int = 600) -> str:
    """Prices that follow from the size and the year as numbers, and from the town in the text."""
    draw = random.Random(1)
    rows = []
    for _ in range(count):
        town, size, year = draw.choice(["Ribe", "Odense", "Gilleleje"]), draw.uniform(20, 300), draw.randint(1900, 2020)
        price = 1000 * size * (1 + len(town) / 9) + 2500 * (year - 1900) + 0.25
        rows.append([f"a house in {town}", f"{size:.1f}", year, price, "old" if year < 1960 else "new"])
    return write(path, ["text", "size", "year", "price", "age"], rows)


def test_numbers_are_predicted_from_numbers_and_texts_and_the_folder_predicts_as_the_run(
    tmp_path: Path, model: str
) -> None:
    settings = {"data": houses(tmp_path / "h.csv"), "number_cols": ["size", "year"], "target_cols": ["price", "age"]}
    row = {"text": "a house in Ribe", "size": 100, "year": "1950"}
    prompts = {"sample_prompts": [json.dumps(row)]}
    run_dir = start(tmp_path, model=model, **settings, **prompts, **SMALL, steps=300)
    measured = last_row(run_dir)
    assert measured["r2_price"] >= 0.99 and measured["accuracy_age"] >= 0.95
    assert 0 < measured["mae_price"] < 20_000 and "accuracy_price" not in measured

    predictor = predict.load(run_dir / "model")
    expected = 100_000 * (1 + 4 / 9) + 2500 * 50
    later, bare = predictor([row, {"text": "a house in Ribe", "size": "", "year": None}])
    assert later["price"] == pytest.approx(expected, rel=0.15) and later["age"] == "old"
    assert bare["price"] != later["price"]
    last = json.loads((run_dir / "samples.jsonl").read_text().splitlines()[-1])
    assert last["text"] == f"price: {later['price']:.6g}; age: old"
    labels = json.loads((run_dir / "model" / "labels.json").read_text())
    assert [scale["column"] for scale in labels["numbers"]] == ["size", "year"] and labels["numbers"][1]["mean"] > 1900
    _, found = AutoModel.from_pretrained(run_dir / "model", output_loading_info=True)
    assert not found["missing_keys"]  # the encoder is where transformers looks for it
    with pytest.raises(WorkerError, match="'big' in 'size' is not a number"):
        predictor([{"text": "a house", "size": "big"}])


def test_a_table_of_numbers_needs_no_text(tmp_path: Path, model: str) -> None:
    settings = {"data": houses(tmp_path / "h.csv"), "number_cols": ["size", "year"], "target_cols": "price"}
    run_dir = start(tmp_path, model=model, text_cols="[]", **settings, **SMALL, steps=60)
    assert last_row(run_dir)["r2_price"] > 0.6
    (answer,) = predict.load(run_dir / "model")([{"size": 100, "year": 1950}])
    assert answer["price"] > 0


def test_a_number_in_the_words_of_a_text_is_predicted_by_a_model_of_transformers(tmp_path: Path, model: str) -> None:
    words = {"one": 1.5, "two": 2.5, "five": 5.5, "ten": 10.25}
    rows = [[f"{a} and {b}", words[a] + words[b] / 8] for a in words for b in words] * 12
    run_dir = start(
        tmp_path,
        model=model,
        data=write(tmp_path / "t.csv", ["text", "sum"], rows),
        target_cols="sum",
        objective="regression",
        **SMALL,
        steps=80,
    )
    assert last_row(run_dir)["r2_sum"] >= 0.99
    config = json.loads((run_dir / "model" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"] and config["id2label"] == {"0": "sum"}
    (answer,) = predict.load(run_dir / "model")(["ten and two"])
    assert answer["sum"] == pytest.approx(10.25 + 2.5 / 8, abs=0.5)


def people(path: Path, count: int, *, as_codes: bool, separator: str = "|") -> str:
    """Texts with one to three trades in any order, and their names or codes."""
    draw = random.Random(path.name)
    rows = []
    for _ in range(count):
        trades = draw.sample(list(TRADES), draw.randint(1, 3))
        labels = [TRADES[trade] if as_codes else trade for trade in trades]
        draw.shuffle(labels)
        rows.append([" and ".join(trades), separator.join(labels)])
    return write(path, ["text", "trades"], rows)


def test_a_set_of_labels_is_learned_in_whatever_order_it_is_written(tmp_path: Path, model: str) -> None:
    data = people(tmp_path / "p.csv", 500, as_codes=False, separator="&")
    settings = {"data": data, "target_cols": "trades", "objective": "set", "separator": "&"}
    run_dir = start(tmp_path, model=model, **settings, **SMALL, steps=120)
    measured = last_row(run_dir)
    assert measured["exact_set"] >= 0.95 and measured["f1_micro"] > 0.98 and measured["f1_macro"] > 0.98
    config = json.loads((run_dir / "model" / "config.json").read_text())
    assert sorted(config["id2label"].values()) == sorted(TRADES)
    assert predict.load(run_dir / "model")(["shepherd and baker"]) == [{"trades": ["baker", "shepherd"]}]


def test_codes_are_written_and_chosen_at_once(tmp_path: Path, model: str) -> None:
    data = people(tmp_path / "p.csv", 600, as_codes=True)
    settings = {"data": data, "target_cols": "trades", "objective": "mixed", "formatter": "hisco"}
    prompts = {"sample_prompts": "baker and physician"}
    run_dir = start(
        tmp_path, model=model, **settings, **prompts, **SMALL | {"micro_batch_size": 16, "seq_len": 24}, steps=90
    )
    measured = last_row(run_dir)
    assert measured["exact_set"] >= 0.95 and measured["exact_sequence"] >= 0.95
    both = ["06105", "77610"]
    assert predict.load(run_dir / "model")(["baker and physician"]) == [{"trades": both, "trades (flat)": both}]
    last = json.loads((run_dir / "samples.jsonl").read_text().splitlines()[-1])
    assert last["text"] == "trades: 06105, 77610; trades (flat): 06105, 77610"


@pytest.mark.usefixtures("small_unicode")
def test_a_model_of_characters_trains_and_its_folder_loads(tmp_path: Path) -> None:
    shape = SHAPE | {"max_position_embeddings": 128, "num_hash_buckets": 128, "num_hash_functions": 4}
    CanineConfig(**shape).save_pretrained(tmp_path / "c")
    rows = [[trade, trade] for trade in TRADES] * 20 + [["i", "smith"]] * 5  # a text shorter than a molecule
    data = write(tmp_path / "t.csv", ["text", "trade"], rows)
    settings = {"data": data, "target_cols": "trade", **SMALL, "lr": 0.003, "micro_batch_size": 16, "seq_len": 16}
    run_dir = start(tmp_path, model=str(tmp_path / "c"), **settings, steps=50)
    assert last_row(run_dir)["accuracy_trade"] >= 0.9
    answers = predict.load(run_dir / "model")(list(TRADES))
    assert [answer["trade"] for answer in answers] == list(TRADES)
    again = start(tmp_path, "r2", model=str(run_dir / "model"), **settings, steps=1)
    assert (again / "model" / "tokenizer_config.json").exists()


@pytest.mark.usefixtures("small_unicode")
def test_the_preset_of_characters_needs_no_download(tmp_path: Path) -> None:
    rows = [[trade, code, code] for trade, code in TRADES.items()] * 3
    data = write(tmp_path / "t.csv", ["text", "code", "n"], rows)
    settings = {"data": data, "target_cols": "code", "number_cols": "n", "objective": "mixed", **SMALL, "seq_len": 16}
    run_dir = start(tmp_path, model="canine-tiny", **settings, steps=1)
    assert predict.load(run_dir / "model")(["smith"])[0].keys() == {"code", "code (flat)"}


def test_a_text_of_characters_is_padded_by_a_molecule_that_the_model_leaves_out() -> None:
    from clusterrun.worker.data.labelled import Labelled

    samples = Labelled(torch.arange(9), torch.tensor([0, 3, 9]), torch.zeros(2, 1), 0)
    assert samples.batch([0, 1]).tensors["input_ids"].shape == (2, 6)
    samples.molecule = 4
    assert samples.batch([0]).tensors["input_ids"].shape == (1, 8)
    assert samples.batch([0, 1]).tensors["input_ids"].shape == (2, 12)


ENCODERS = {
    "llama": LlamaConfig(**SHAPE, num_key_value_heads=1, vocab_size=300),
    "bert": BertConfig(**SHAPE, vocab_size=300),
    "canine": CanineConfig(**SHAPE, max_position_embeddings=64, num_hash_buckets=64, num_hash_functions=4),
}


@pytest.mark.parametrize("architecture", ENCODERS)
@pytest.mark.parametrize("kind", ["plain", "numbers", "mixed"])
def test_a_gradient_reaches_all_that_is_trained(tmp_path: Path, architecture: str, kind: str) -> None:
    """DDP waits for the gradient of each parameter."""
    ENCODERS[architecture].save_pretrained(tmp_path)
    is_mixed = kind == "mixed"
    group = Group("a", "a", ("x", "y"), 0, SET) if is_mixed else Group("a", "a", ("x", "y"), 0)
    meaning = Meaning(
        (group,), (Scale("n", 0.0, 1.0),) if kind == "numbers" else (), codes.Alphabet("xy", 4) if is_mixed else None
    )
    tokenizer = train_bpe(["a text"], 300)
    model = classify.build(load.Source("folder", str(tmp_path)), Config(seq_len=16), meaning, tokenizer)
    tensors = {"input_ids": torch.ones(2, 8).long(), "attention_mask": torch.ones(2, 8).long()}
    tensors |= {"labels": torch.tensor([[0], [1]]), "features": torch.ones(2, 2), "codes": torch.ones(2, 4).int()}
    unused = {"plain": ("features", "codes"), "numbers": ("codes",), "mixed": ("features",)}[kind]
    tensors = {name: tensor for name, tensor in tensors.items() if name not in unused}
    classify.sum_of_losses(model, tensors, meaning.groups).backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    lacking = [name for name, parameter in trained.items() if parameter.grad is None]
    assert trained and lacking == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["objective=clases"], "objective=clases (did you mean 'classes'?)"),
        (["objective=regression", "formatter=hisco"], "formatter=hisco predicts codes, not numbers"),
        (["separator=;"], "separator needs objective=set or mixed"),
        (["sequence_weight=0.7", "objective=set"], "sequence_weight needs objective=mixed"),
        (["sequence_weight=1", "objective=mixed"], "sequence_weight must be greater than 0 and less than 1, got 1"),
        (["number_cols=a", "target_cols=a"], "target 'a' is also a number column"),
        (['number_cols=["a","a"]'], "number_cols names 'a' twice"),
        (["text_cols=[]"], "without text_cols the model needs number_cols"),
    ],
)
def test_objectives_that_clash_are_refused_before_any_file_is_read(words: list[str], said: str) -> None:
    with pytest.raises(WorkerError) as caught:
        prepare("classify", words, 2)
    assert said in str(caught.value) and caught.value.status == 2


def table(path: Path, **columns: Sequence[Any]) -> str:
    return write(path, list(columns), zip(*columns.values(), strict=True))


def test_what_a_column_holds_is_said_or_refused_at_submission(tmp_path: Path) -> None:
    prices = [f"{i * 7 % 259}.25" for i in range(100)]
    data = table(tmp_path / "t.csv", text=["word"] * 100, price=prices, kind=["x", "y"] * 50, n=range(100))

    def said(**settings: Any) -> list[str]:
        missing, doubts = check_settings.examine(Config(data=data, **settings))
        return [*missing, *doubts]

    (line,) = said(target_cols=("price",))
    assert line.startswith("data: target 'price' holds measurements (0.25, ") and line.endswith(
        "the number is predicted"
    )
    assert said(target_cols=("price", "n"), objective="regression") == []
    (line,) = said(target_cols=("price",), objective="classes")
    assert "holds measurements" in line and "omit it to predict the number" in line
    (line,) = said(target_cols=("kind",), objective="regression")
    assert "target 'kind' holds words ('x', 'y', 'x'), and objective=regression predicts numbers" in line
    (line,) = said(target_cols=("n",))
    assert line.endswith("to predict the number, set objective=regression")
    (line,) = said(target_cols=("kind",), text_cols=("n",))
    assert line.endswith("to let it count, name the column in number_cols")
    (line,) = said(target_cols=("kind",), number_cols=("text",))
    assert "t.csv:2: 'word' in 'text' is not a number" in line
    (line,) = said(target_cols=("kind",), number_cols=("pric",))
    assert "no column 'pric'" in line and "did you mean 'price'?" in line
    (line,) = said(target_cols=("kind",), number_cols=("n",), text_cols=("body",))
    assert "(if the numbers are all that there is, set text_cols=[])" in line


def test_a_row_of_a_set_is_a_list_or_a_joined_text_and_an_empty_list_is_a_set(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    cells = [["b", "a", "b"], "c| a |", [], None]
    file.write_text("\n".join(json.dumps({"text": "t", "x": cell, "y": "b"}) for cell in cells))
    formatter = targets.formatter_of(Config(objective="set"))

    def labels(*target_cols: str) -> list[tuple[str | None, ...]]:
        return [
            e.answers for e in targets.read_examples([str(file)], formatter, target_cols, on_bad_row="skip").examples
        ]

    assert labels("x") == [("a", "b"), ("a", "c"), ()]
    assert labels("x", "y") == [("a", "b"), ("a", "b", "c"), ("b",), ("b",)]


def test_a_code_of_a_set_gets_its_zeros_back() -> None:
    formatter = targets.formatter_of(Config(objective="mixed", formatter="hisco"))
    assert formatter.answers("6105|-1|83110.0") == ("06105", "-1", "83110")


words = st.text("ab-1", min_size=1, max_size=4)


@given(st.lists(st.lists(words, max_size=3, unique=True), min_size=1).filter(any))
def test_codes_come_back_from_their_characters(sets: list[list[str]]) -> None:
    alphabet = codes.alphabet_of(sets)
    for one in sets:
        sequence = codes.encode(one, alphabet)
        assert len(sequence) == alphabet.length and codes.decode(sequence, alphabet) == one


def test_codes_that_training_never_saw_are_marked() -> None:
    alphabet = codes.alphabet_of([["12"], ["1"]])
    assert codes.encode(["13"], alphabet) == [codes.BEGIN, codes.OTHERS, UNSEEN, codes.END]
    assert codes.encode(["112"], alphabet) == [codes.BEGIN, codes.OTHERS, codes.OTHERS, UNSEEN]
    with pytest.raises(WorkerError, match=r"those of a row have 602, more than the limit of 512: use objective=set"):
        codes.alphabet_of([["x" * 600]])


def test_the_meaning_of_a_model_survives_its_file() -> None:
    found = (Group("a", "a", ("x", "y"), 0), Group("b", "b", (), 2, NUMBER, 3.5, 2.0))
    meaning = Meaning(found, (Scale("n", 1.0, 0.5),), codes.Alphabet("01", 9))
    assert of_json(json.loads(json.dumps(meaning.json()))) == meaning
    assert meaning.names == ["a=x", "a=y", "b"] and meaning.outputs == 3


@given(st.lists(st.one_of(st.none(), st.integers(-(10**8), 10**8).map(lambda n: n / 100)), min_size=1))
def test_scaled_numbers_have_mean_zero_and_spread_one(numbers: list[float | None]) -> None:
    scale = scale_of("n", numbers)
    scaled = [scale.apply(number) for number in numbers if number is not None]
    if scaled:
        assert sum(scaled) / len(scaled) == pytest.approx(0, abs=1e-6)
    if max(scaled, default=0) - min(scaled, default=0) > 1e-3:
        assert sum(one * one for one in scaled) / len(scaled) == pytest.approx(1, rel=1e-3)


def test_r2_and_the_error_are_those_of_the_definition_and_sums_add_up() -> None:
    group = Group("a b", "a b", (), 0, NUMBER, 10.0, 2.0)
    wanted, guessed = torch.tensor([[1.0], [2.0], [0.0], [4.0]]), torch.tensor([[1.5], [2.0], [9.0], [3.0]])
    labels = torch.tensor([[0], [0], [MISSING], [0]])
    sums = sum(scores.measure([group], guessed[i : i + 2], labels[i : i + 2], wanted[i : i + 2]) for i in (0, 2))
    mean = 7 / 3
    r2 = 1 - (0.25 + 0 + 1) / sum((y - mean) ** 2 for y in (1, 2, 4))
    assert scores.summarize([group], sums) == pytest.approx({"r2_a_b": r2, "mae_a_b": 2 * 1.5 / 3})
    alone = scores.measure([group], guessed[:1], labels[:1], wanted[:1])
    assert set(scores.summarize([group], alone)) == {"mae_a_b"}  # one number has no spread to explain
    assert scores.summarize([group], torch.zeros(5)) == {}


def test_a_set_is_exact_or_not_and_f1_counts_labels() -> None:
    group = Group("a", "a", ("x", "y", "z"), 0, SET)
    labels = torch.tensor([[0, 2], [1, MISSING], [MISSING, MISSING], [0, UNSEEN]])
    logits = torch.tensor([[1.0, -1, 1], [1, 1, -1], [-1, -1, -1], [1, -1, -1]])
    assert scores.summarize([group], scores.measure([group], logits, labels)) == pytest.approx(
        {"exact_set": 2 / 4, "f1_micro": 2 * 4 / (5 + 4 + 1), "f1_macro": (4 / 5 + 1 + 1) / 3}
    )


def test_the_decoder_writes_what_it_finds_likeliest_and_sees_nothing_later() -> None:
    torch.manual_seed(1)
    decoder = CodeDecoder(16, 7, 6).eval()
    states, mask = torch.randn(2, 5, 16), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    written = decoder.write(states, mask, codes.BEGIN)
    assert written.shape == (2, 6)
    following = decoder(states, mask, written)[:, :-1].argmax(-1)
    torch.testing.assert_close(following, written[:, 1:])  # so a pass over the right answers tells what is written
    changed = states.clone()
    changed[1, 3:] = 9.0
    torch.testing.assert_close(decoder(changed, mask, written), decoder(states, mask, written))


@pytest.mark.parametrize("weight", [0.25, 0.5])
def test_the_mixed_loss_weighs_two_means(tmp_path: Path, weight: float) -> None:
    found = (Group("a", "a", ("x", "y"), 0, SET),)
    outputs = classify_outputs()
    tensors = {
        "labels": torch.tensor([[0], [1]]),
        "codes": torch.tensor([[1, 4, 2, 0], [1, 5, UNSEEN, 2]], dtype=torch.int32),
    }
    loss = classify.sum_of_losses(lambda **_: outputs, tensors, found, weight)
    flat = sum(
        torch.nn.functional.binary_cross_entropy_with_logits(outputs.logits[i], torch.eye(2)[i]) for i in range(2)
    )
    nats = -outputs.codes.log_softmax(-1)
    written = (nats[0, 0, 4] + nats[0, 1, 2]) / 2 + (nats[1, 0, 5] + nats[1, 2, 2]) / 2
    torch.testing.assert_close(loss, weight * written + (1 - weight) * flat)


def classify_outputs() -> Any:
    from clusterrun.worker.models.classifier import Outputs

    torch.manual_seed(1)
    return Outputs(torch.randn(2, 2), torch.randn(2, 4, 6))


def test_an_old_cache_is_used_again(tmp_path: Path) -> None:
    """A table that needs none of the newer settings has the key that it always had."""
    from clusterrun.worker.data import labelled

    data = people(tmp_path / "p.csv", 20, as_codes=False)
    config = Config(data=data, target_cols=("trades",))
    key = labelled._key(config, None)
    assert not {"objective", "number_cols", "separator"} & key.keys()
    more = dataclasses.replace(config, objective="set")
    assert labelled._key(more, None) == key | {"objective": "set"}


def test_groups_of_numbers_stand_beside_classes() -> None:
    examples = [targets.Example("t", answers, "f:1") for answers in (("x", "1.5"), ("y", "2.5"), (None, None))]
    formatter = dataclasses.replace(targets.find_formatter("plain", ("text",)), measured=frozenset({"n"}))
    found = groups.find_groups(examples, ("k", "n"), formatter)
    assert found[1] == Group("n", "n", (), 2, NUMBER, 2.0, 0.5) and found[1].end == 3
    assert groups.labels(examples, found)[0] == [[0, 0], [1, 0], [MISSING, MISSING]]
    assert groups.scaled_numbers(examples, found) == [[0, -1], [0, 1], [0, 0]]
    with pytest.raises(WorkerError, match="target 'n' has only one value in the training rows"):
        groups.find_groups([targets.Example("t", ("1.5",), "f:1")] * 2, ("n",), formatter)
