"""Rows into texts and classes: formatters, cells, columns that are not there, and how right the guesses are."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import groups as outputs
from clusterrun.worker.data import targets
from clusterrun.worker.data.groups import MISSING, UNSEEN, Group
from clusterrun.worker.data.targets import Example
from clusterrun.worker.tasks import scores

PLAIN = targets.find_formatter("plain", ("text",))
HISCO = targets.find_formatter("hisco", ("text",))


def write(path: Path, *rows: list[str]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return str(path)


def read(data: str, formatter: targets.Formatter = PLAIN, target_cols: tuple[str, ...] = ("a",), **more: str) -> list:
    examples, _, _, _ = targets.read_examples([data], formatter, target_cols, on_bad_row=more.get("on_bad_row", "stop"))
    return examples


def answered(*answers: tuple[str | None, ...]) -> list[Example]:
    return [Example("text", one, "file:1") for one in answers]


def groups(*answers: tuple[str | None, ...], names: tuple[str, ...] = ("a", "b")) -> tuple[Group, ...]:
    return outputs.find_groups(answered(*answers), names, PLAIN)


@pytest.mark.parametrize(
    ("formatter", "text"),
    [("plain", "smith in Ribe"), ("{occ 1} [{town.x}]", "smith [in Ribe]"), ("a {occ 1}", "a smith")],
)
def test_the_text_is_made_of_columns(tmp_path: Path, formatter: str, text: str) -> None:
    data = write(tmp_path / "d.csv", ["occ 1", "town.x", "a"], [" smith ", "in Ribe", "1"])
    (example,) = read(data, targets.find_formatter(formatter, ("occ 1", "town.x")))
    assert (example.text, example.answers) == (text, ("1",))


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(cells, cells, st.text().filter(lambda text: not {*"{}"} & {*text}))
def test_whatever_stands_in_a_cell_stands_in_the_text(one: str, two: str, between: str) -> None:
    formatter = targets.find_formatter(f"{{x}}{between}{{y}}", ())
    assert (formatter.columns, formatter.text([one, two])) == (("x", "y"), f"{one}{between}{two}".strip())
    values = {"x": one, "y": two, "a": "1"}
    if one.strip() or two.strip():
        found = targets._example(values, formatter, ["a"], "here")
        assert found.text == f"{one.strip()}{between}{two.strip()}".strip()


@given(st.integers(0, 99_999), st.sampled_from(["", ".0"]))
def test_a_hisco_code_gets_back_the_zeros_that_a_spreadsheet_took(code: int, tail: str) -> None:
    answers = targets.find_formatter("hisco", ("text",)).answers
    assert answers(f"{code}{tail}") == answers(f"{code:05d}") == tuple(f"{code:05d}")


def test_hisco_codes_for_no_occupation_are_classes_of_every_digit() -> None:
    answers = targets.find_formatter("hisco", ("text",)).answers
    assert answers("-1") == ("-1",) * 5 and answers("-3.0") == ("-3",) * 5


@pytest.mark.parametrize("cell", ["-4", "123456", "1.5", "smith", "12a", "٣"])
def test_what_is_no_hisco_code_is_a_bad_row(tmp_path: Path, cell: str) -> None:
    data = write(tmp_path / "d.csv", ["text", "a"], ["smith", "83110"], ["baker", cell])
    with pytest.raises(
        WorkerError, match=r"d\.csv:3: .* is not a HISCO code: expected up to five digits, or one of -1, -2, -3"
    ):
        read(data, targets.find_formatter("hisco", ("text",)))


@pytest.mark.parametrize(
    ("formatter", "said"),
    [
        ("hisko", "unknown formatter 'hisko' (did you mean 'hisco'?): use plain or hisco, or columns in braces"),
        ("{}", "write a column name in each pair of braces"),
        ("{a", "write a column name in each pair of braces"),
        ("{{a}}", "write a column name in each pair of braces"),
    ],
)
def test_an_unknown_formatter_is_refused(formatter: str, said: str) -> None:
    with pytest.raises(WorkerError) as caught:
        targets.find_formatter(formatter, ("text",))
    assert said in str(caught.value) and caught.value.status == 2


@pytest.mark.parametrize(
    ("text_cols", "target_cols", "said"),
    [
        (
            ("text",),
            (),
            "set target_cols to the columns of {} that the model should predict; columns: occ1, kind, area",
        ),
        (("occ1",), ("kin",), "no column 'kin' in {} (did you mean 'kind'?); columns: occ1, kind, area"),
        (("occ1",), ("kind,area",), '(to name several columns, write target_cols=\'["kind","area"]\')'),
        (("text",), ("kind",), "no column 'text' in {} (did you mean 'occ1'?); columns: occ1, kind, area"),
        (("occ1, area",), ("kind",), '(to name several columns, write text_cols=\'["occ1","area"]\')'),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, text_cols: tuple[str, ...], target_cols: tuple[str, ...], said: str
) -> None:
    data = write(tmp_path / "d.csv", ["occ1", "kind", "area"], ["smith", "x", "7"])
    with pytest.raises(WorkerError) as caught:
        read(data, targets.find_formatter("plain", text_cols), target_cols)
    assert said.format(data) in str(caught.value) and caught.value.status == 2


def test_an_empty_cell_leaves_out_one_target_and_a_row_without_any_is_bad(tmp_path: Path) -> None:
    rows = [["text", "a", "b"], ["one", "x", " "], ["two", "", "y"], ["three", "", ""], [" ", "x", "y"]]
    data = write(tmp_path / "d.csv", *rows)
    with pytest.raises(WorkerError, match=r"d\.csv:4: no value in 'a', 'b' \(set on_bad_row=skip"):
        read(data, target_cols=("a", "b"))
    with pytest.raises(WorkerError, match=r"d\.csv:2: no text in 'text'"):
        read(write(tmp_path / "d.csv", rows[0], rows[4]), target_cols=("a", "b"))
    data = write(tmp_path / "d.csv", *rows)
    found, skipped, _, _ = targets.read_examples([data], PLAIN, ("a", "b"), on_bad_row="skip")
    assert [(e.text, e.answers) for e in found] == [("one", ("x", None)), ("two", (None, "y"))] and skipped == 2


def test_cells_that_are_no_texts(tmp_path: Path) -> None:
    lines = [{"text": "t", "a": 3, "b": True}, {"text": 5, "b": "y"}, {"text": "t", "a": float("nan"), "b": 0.5}]
    file = tmp_path / "d.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = read(str(file), target_cols=("a", "b"))
    assert [e.text for e in found] == ["t", "5", "t"]
    assert [e.answers for e in found] == [("3", "true"), (None, "y"), (None, "0.5")]
    file.write_text(json.dumps({"text": ["t"], "a": 1}))
    with pytest.raises(WorkerError, match="'text' has type list, neither text nor a number"):
        read(str(file))


def column(tmp_path: Path, *cells: str) -> str:
    return write(tmp_path / "d.csv", ["text", "a"], *([f"word {i}", cell] for i, cell in enumerate(cells)))


def doubts(data: str, text_cols: tuple[str, ...] = ("text",), formatter: str = "plain") -> list[str]:
    return targets.read_examples([data], targets.find_formatter(formatter, text_cols), ("a",), on_bad_row="stop").doubts


@pytest.mark.parametrize("count", [8, 300])
def test_measurements_are_numbers_unless_classes_are_asked_for(tmp_path: Path, count: int) -> None:
    data = column(tmp_path, *(f"{i * 7 % 259}.25" for i in range(count)), "")
    table = targets.read_examples([data], PLAIN, ("a",), on_bad_row="skip")
    assert table.formatter.measured == {"a"}
    (line,) = table.doubts
    assert line.startswith("target 'a' holds measurements (0.25, ") and line.endswith(": the number is predicted")
    with pytest.raises(WorkerError, match=r"target 'a' holds measurements \(.*omit it to predict the number") as caught:
        read(data, dataclasses.replace(PLAIN, objective="classes"))
    assert caught.value.status == 2 and f"different numbers in {count} rows" in str(caught.value)


@pytest.mark.parametrize(
    "cells",
    [
        [f"{i % 9 / 2}" for i in range(40)],  # ratings by halves
        [f"{i}.0" for i in range(300)],  # whole numbers of a column with gaps
        [f"v{i}.5" for i in range(40)],
        ["0.5", "1.5"],
    ],
)
def test_numbers_that_are_names_are_classes(tmp_path: Path, cells: list[str]) -> None:
    assert len(read(column(tmp_path, *cells))) == len(cells)


def test_a_hisco_code_is_a_code_however_a_spreadsheet_wrote_it(tmp_path: Path) -> None:
    data = column(tmp_path, *(f"{i}.0" for i in range(300)))
    assert doubts(data, formatter="hisco") == []


def test_a_column_that_is_learned_as_something_else_than_it_looks_like_is_named(tmp_path: Path) -> None:
    assert doubts(column(tmp_path, "x", "y", "x")) == []
    (line,) = doubts(column(tmp_path, *map(str, range(300))))
    assert line.startswith("target 'a' holds 300 different numbers: each is a class")
    labels = ["A0", "B1", "C2", "D0"]
    (line,) = doubts(column(tmp_path, *(f"{one}|{two}" for one in labels for two in labels), *labels))
    assert line.startswith("target 'a' joins labels with '|' (A0|A0): each of 16 combinations of 4 labels is a class")
    data = write(tmp_path / "d.csv", ["text", "n", "a"], ["one", "17", "x"], ["two", "-2.5e3", "y"])
    (line,) = doubts(data, ("text", "n"))
    assert line.startswith("text column 'n' holds numbers, which are read as words")


def test_a_class_may_contain_a_mark_that_joins(tmp_path: Path) -> None:
    assert doubts(column(tmp_path, "Leeds, UK", "York, UK", "Paris, France", "Lyon, France")) == []


def test_classes_come_sorted_from_training_and_others_are_unseen() -> None:
    found = groups(("y", "1"), ("x", None), (None, "10"), ("y", "2"))
    assert found == (Group("a", "a", ("x", "y"), 0), Group("b", "b", ("1", "10", "2"), 2))
    table, unseen = outputs.labels(answered(("x", "2"), ("z", None), ("z", "3")), found)
    assert (table, unseen) == ([[0, 2], [UNSEEN, MISSING], [UNSEEN, UNSEEN]], ["a=z", "b=3"])


def test_a_target_without_a_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerError, match="target 'b' has only one value in the training rows"):
        groups(("x", "1"), ("y", "1"))
    with pytest.raises(WorkerError, match="target 'a' has no value in the training rows"):
        groups((None, "1"), (None, "2"))
    monkeypatch.setattr(outputs, "MOST_CLASSES", 2)
    with pytest.raises(
        WorkerError, match=r"target 'b' has 3 classes in 3 rows, more than the limit of 2: is the target an identifier"
    ):
        groups(("x", "1"), ("y", "2"), ("y", "3"))


def test_every_digit_of_a_code_is_a_group_and_one_that_never_changes_is_allowed() -> None:
    examples = answered(tuple("01234"), tuple("01299"), ("-1",) * 5, (None,) * 5)
    found = outputs.find_groups(examples[:2], ("code",), HISCO)
    assert [(g.name, g.classes) for g in found][2:4] == [("code.3", ("2",)), ("code.4", ("3", "9"))]
    found = outputs.find_groups(examples, ("code",), HISCO)
    assert found[0] == Group("code.1", "code", ("-1", "0"), 0) and found[4].end == 2 + 2 + 2 + 3 + 3
    assert outputs.groups_of(json.loads(json.dumps(outputs.describe(found)))) == found


answer = st.sampled_from(["x", "y", "z", None])
guess = st.sampled_from(["x", "y", "z"])


@given(st.lists(st.tuples(answer, guess), min_size=1), st.integers(0, 9))
def test_f1_is_that_of_the_definition_and_sums_add_up(pairs: list[tuple[str | None, str]], cut: int) -> None:
    group = Group("a", "a", ("x", "y"), 0)
    pairs = [(right, "y" if guessed == "z" else guessed) for right, guessed in pairs]  # z is never in training
    table, _ = outputs.labels(answered(*((right,) for right, _ in pairs)), [group])
    logits = torch.tensor([[float(guessed == name) for name in group.classes] for _, guessed in pairs])
    parts = [(logits[:cut], torch.tensor(table[:cut])), (logits[cut:], torch.tensor(table[cut:]))]
    sums = sum(scores.measure([group], *part) for part in parts if len(part[0]))
    known = [pair for pair in pairs if pair[0] is not None]
    if not known:
        assert scores.summarize([group], sums) == {}
        return
    f1 = []
    for name in {name for pair in known for name in pair}:
        true = sum(pair == (name, name) for pair in known)
        f1.append(2 * true / (sum(r == name for r, _ in known) + sum(g == name for _, g in known)))
    accuracy = sum(r == g for r, g in known) / len(known)
    assert scores.summarize([group], sums) == pytest.approx({"accuracy_a": accuracy, "f1_a": sum(f1) / len(f1)})


def test_a_code_is_right_when_every_digit_is_and_a_row_when_every_target_is() -> None:
    examples = answered((*"12", *"7-"), (*"34", None, None), (*"14", *"87"))
    found = outputs.find_groups(examples, ("code", "a b/ø"), dataclasses.replace(PLAIN, parts=2))
    table, _ = outputs.labels(examples, found)
    logits = torch.zeros(3, found[-1].end)
    for row, guessed in enumerate(["127-", "347-", "1287"]):  # the third row's first code is wrong in one digit
        for group, name in zip(found, guessed, strict=True):
            logits[row, group.start + group.classes.index(name)] = 1
    measured = scores.summarize(found, scores.measure(found, logits, torch.tensor(table)))
    whole = {"accuracy_code": 2 / 3, "accuracy_a_b_ø": 1.0, "exact_match": 2 / 3}
    digits = {"accuracy_code_1": 1.0, "accuracy_code_2": 2 / 3, "accuracy_a_b_ø_1": 1.0, "accuracy_a_b_ø_2": 1.0}
    assert measured == pytest.approx(whole | digits)


def test_two_names_that_look_the_same_stay_two() -> None:
    found = groups(("x", "1"), ("y", "2"), names=("a b", "a_b"))
    sums = scores.measure(found, torch.eye(2, 4), torch.tensor([[0, 0], [0, 1]]))
    assert set(scores.summarize(found, sums)) == {"accuracy_a_b", "accuracy_a_b_", "exact_match", "f1_a_b", "f1_a_b_"}


def test_hundreds_of_classes_have_no_f1() -> None:
    found = groups(*((str(i), str(i % 2)) for i in range(101)))
    sums = scores.measure(found, torch.zeros(1, 103), torch.tensor([[0, 0]]))
    assert set(scores.summarize(found, sums)) == {"accuracy_a", "accuracy_b", "exact_match", "f1_b"}
