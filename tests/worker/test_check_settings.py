"""The check of a task before its job is queued: quick, without torch, and true to what the task does with its data."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.submit.job_python import WORKER
from clusterrun.worker import check_settings


def found(capsys: pytest.CaptureFixture[str], *arguments: str, ranks: int = 2) -> tuple[str, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(json.dumps(arguments)))
        assert check_settings.main([str(ranks)]) == 0
    document = json.loads(capsys.readouterr().out)
    return document["wrong"], document["missing"]


def test_it_checks_each_line_and_loads_neither_torch_nor_transformers() -> None:
    argv = [sys.executable, "-X", "importtime", str(WORKER), "check-settings", "2"]
    lines = '["classify", "lr=1e-4"]\n["classify", "lr=x"]\n'
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, input=lines)
    right, wrong = map(json.loads, done.stdout.splitlines())
    assert right == {"wrong": "", "missing": []} and "lr must be a number" in wrong["wrong"]
    assert not {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()} & {"torch", "transformers"}


def test_a_wrong_setting_and_what_is_missing_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, missing = found(capsys, "lm", "precision=fp17", "data=no.txt")
    assert "precision=fp17" in wrong and missing == [], "a wrong setting ends the check"
    wrong, missing = found(capsys, "lm", "data=no.txt", "model=tinny", "resume=/no/such")
    assert wrong == "" and [one.partition(" ")[0] for one in missing] == ["data:", "unknown", "resume=/no/such:"]


def test_the_first_rows_of_each_kind_of_data_are_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table, chats = tmp_path / "t.csv", tmp_path / "c.jsonl"
    table.write_text("body,kind\nhello,a\n" * 30 + "x\n")  # the job finds what is wrong after the first rows
    chats.write_text('{"messages": [{"role": "user"}]}\n')
    assert "no column 'text'" in found(capsys, "lm", f"data={table}")[1][0]
    assert found(capsys, "lm", f"data={table}", "text_column=body")[1] == []
    assert "message 1 is not an object with role and content" in found(capsys, "sft", f"data={chats}")[1][0]
    assert "set target_cols to the columns of" in found(capsys, "classify", f"dataset={table}")[1][0]


def test_an_unreadable_or_empty_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "e.jsonl"
    empty.touch()
    assert found(capsys, "sft", f"data={empty}")[1] == [f"data: no rows in {empty}"]
    assert "is a folder" in found(capsys, "lm", f"data={tmp_path}")[1][0]
    assert found(capsys, "lm", "data=")[1] == ["data: no data given: use a file, a glob, or hf:org/name"]
