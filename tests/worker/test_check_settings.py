"""The check of a task before its job is queued: quick, without torch, and true to what the task does with its data."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.submit.job_python import WORKER
from clusterrun.worker import tasks
from clusterrun.worker.data import hub_data
from clusterrun.worker.tasks import check_settings
from tests.support.patience import HUNG


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, ranks: int = 2) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(json.dumps(arguments)))
        assert check_settings.main([str(ranks)]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, list[str]]:
    document = answer(capsys, *arguments)
    return document["wrong"], document["missing"]


def test_it_checks_each_line_and_loads_neither_torch_nor_transformers() -> None:
    argv = [sys.executable, "-X", "importtime", str(WORKER), "check-settings", "2"]
    lines = '["classify", "lr=1e-4"]\n["classify", "lr=x"]\n'
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HUNG, input=lines)
    right, wrong = map(json.loads, done.stdout.splitlines())
    assert right == {"wrong": "", "missing": [], "doubts": []} and "lr must be a number" in wrong["wrong"]
    assert not {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()} & {"torch", "transformers"}


def test_a_wrong_setting_and_what_is_missing_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, missing = found(capsys, "lm", "precision=fp17", "data=no.txt")
    assert "precision=fp17" in wrong and missing == [], "a wrong setting ends the check"
    wrong, missing = found(capsys, "lm", "data=no.txt", "model=tinny", "resume=/no/such")
    assert wrong == "" and [one.partition(" ")[0] for one in missing] == ["data:", "unknown", "resume=/no/such:"]


def test_the_first_rows_of_each_kind_of_data_are_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table, chats = tmp_path / "t.csv", tmp_path / "c.jsonl"
    table.write_text("body,kind\nhello,a\n" * 300 + "x\n")  # the job finds what is wrong after the first rows
    chats.write_text('{"messages": [{"role": "user"}]}\n')
    assert "no column 'text'" in found(capsys, "lm", f"data={table}")[1][0]
    assert found(capsys, "lm", f"data={table}", "text_column=body")[1] == []
    assert "message 1 is not an object with role and content" in found(capsys, "sft", f"data={chats}")[1][0]
    assert "set target_cols to the columns of" in found(capsys, "classify", f"data={table}")[1][0]


def test_of_a_data_set_of_the_hub_only_the_form_is_checked_unless_the_job_is_submitted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_data, "look", lambda name: f"{name} was not checked")
    assert found(capsys, "sft", "data=hf:org/name") == ("", [])
    assert "is not of the form hf:org/name" in found(capsys, "sft", "data=hf:a/b/c")[1][0]
    _, config = tasks.load("sft", ["data=hf:org/name"], 1)
    assert check_settings.examine(config, looks=True) == ([], ["data: hf:org/name was not checked"])


def test_an_unreadable_or_empty_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "e.jsonl"
    empty.touch()
    assert found(capsys, "sft", f"data={empty}")[1] == [f"data: no rows in {empty}"]
    assert "is a folder" in found(capsys, "lm", f"data={tmp_path}")[1][0]
    assert found(capsys, "lm", "data=")[1] == ["data: no data given: use a file, a glob, or hf:org/name"]


def test_columns_that_are_no_classes_or_no_words_are_found_before_the_job_is_queued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("text,size,kind,price\n" + "".join(f"word,{i},a,{i}.5\n" for i in range(40)))
    (line,) = found(capsys, "classify", f"data={table}", "target_cols=price", "objective=classes")[1]
    assert line.startswith("data: target 'price' holds measurements (0.5, 1.5, 2.5, …: 40 different numbers in 40")
    measured = ("target_cols=price", "objective=classes", "on_bad_row=skip")
    (line,) = found(capsys, "classify", f"data={table}", *measured)[1]
    assert "holds measurements" in line
    words = ("classify", f"data={table}", "target_cols=kind", 'text_cols=["text","size"]')
    document = answer(capsys, *words)
    (doubt,) = document["doubts"]
    words = "data: text column 'size' holds numbers, which are read as words: how large they are does not count"
    assert document["missing"] == [] and doubt.startswith(words)


def test_chats_without_an_answer_are_found_before_the_job_is_queued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    question, chats = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, tmp_path / "c.jsonl"
    chats.write_text((json.dumps({"messages": [question]}) + "\n") * 3)
    nothing = [f"data: no message in {chats} is from the assistant, so there is nothing to learn"]
    assert found(capsys, "sft", f"data={chats}")[1] == nothing
    with chats.open("a") as file:
        file.write(json.dumps({"messages": [question, {"role": "assistant", "content": "Hello"}]}) + "\n")
    document = answer(capsys, "sft", f"data={chats}")
    few = "3 of the first 4 conversations have no message from the assistant and are left out"
    assert document["missing"] == [] and document["doubts"] == [f"data: {few}, such as {chats}:1"]


def test_a_model_that_cannot_be_trained_so_is_found_before_the_job_is_queued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 64}')
    wrong, missing = found(capsys, "lm", f"model={tmp_path}", "seq_len=65")
    assert wrong == f"seq_len=65 is longer than the 64 positions of {tmp_path.name}: use 64 or less" and missing == []
    assert found(capsys, "lm", f"model={tmp_path}", "seq_len=64") == ("", [])
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.C"}}')
    (line,) = found(capsys, "lm", f"model={tmp_path}")[1]
    assert "needs code of its own (mine.C, named in config.json), which is never run" in line
