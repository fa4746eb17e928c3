"""Which files, documents and columns `data=` means, and what is said when there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import builtin
from clusterrun.worker.data.sources import read_rows, read_texts, require_columns


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a little data, which is the current one."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "train.csv").write_text("text,label\none,a\ntwo,b\n")
    (tmp_path / "deep" / "b.csv").write_text("text,label\nb,b\n")
    (tmp_path / "deep" / "er" / "a.csv").write_text("text,label\na,a\n")
    (tmp_path / "[x].csv").write_text("text\nbrackets\n")
    (tmp_path / "mixed.jsonl").write_text('{"text": "one"}\n{"title": "two"}\n{"text": 3}\n{"text": " "}\n')
    (tmp_path / "notes.md").write_bytes(b"# Notes\n\xff")
    (tmp_path / "empty.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(call: Any, *args: Any, **options: Any) -> tuple[str, int]:
    with pytest.raises(WorkerError) as caught:
        call(*args, **options)
    assert str(caught.value).isprintable()
    return str(caught.value), caught.value.status


def texts_of(data: str | list[str]) -> list[str]:
    return [row.values["text"] for row in read_rows(data).rows]


def test_files_and_globs_are_read_in_order() -> None:
    assert texts_of("train.csv") == ["one", "two"]
    assert texts_of("deep/**/*.csv") == ["b", "a"]
    assert texts_of(["deep/*.csv", "train.csv"]) == ["b", "one", "two"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file() -> None:
    assert texts_of("[x].csv") == ["brackets"]


def test_home_is_understood(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert texts_of("~/train.csv") == ["one", "two"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("tran.csv", "no such file: tran.csv (did you mean 'train.csv'?) (in {folder})"),
        ("deep/c.csv", "no such file: deep/c.csv (did you mean 'b.csv'?) (in {folder})"),
        ("gone/x.csv", "no such file: gone/x.csv (in {folder})"),
        ("/gone/x.csv", "no such file: /gone/x.csv"),
        ("*.tsv", "no file matches *.tsv (in {folder})"),
        ("e*y", "no file matches e*y"),  # folders are no files
        ("deep", "deep is a folder: give its files, for example deep/*.csv"),
        ("empty", "empty is a folder: give its files, for example empty/*.txt"),
        ("imdb/plain", "for a dataset on the Hugging Face Hub, write hf:imdb/plain"),
        ("a\0b", r"no such file: 'a\x00b'"),
        ("\x1b[31m", r"no file matches '\x1b[31m'"),
        ("builtin:labeled", "no such data: builtin:labeled (did you mean 'builtin:labelled'?)"),
        ("hf:a/b/c", "hf:a/b/c is not of the form hf:org/name, hf:org/name:config or hf:org/name:config[split]"),
        ("", "no data given"),
        ([], "no data given"),
        ([7], "data must be a file name or a list of file names, got 7"),
        ("notes.md", "unknown file type: notes.md; known: .jsonl,"),
    ],
)
def test_data_that_is_not_there_is_a_wrong_request(folder: Path, data: Any, said: str) -> None:
    message, status = refusal(read_rows, data)
    assert said.format(folder=folder) in message and status == 2


def test_what_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "loop.csv").symlink_to("loop.csv")
    assert "loop.csv" in refusal(read_rows, "loop.csv")[0]
    (folder / "bad.csv.gz").write_text("text\n")
    assert refusal(read_rows, "bad.csv.gz") == ("cannot read bad.csv.gz: Not a gzipped file (b'te')", 1)


def test_one_empty_file_among_good_ones_is_not_passed_over(folder: Path) -> None:
    (folder / "train2.csv").touch()
    assert refusal(read_rows, "train*.csv") == ("no rows in train2.csv", 1)


def test_a_missing_column_is_refused_with_those_that_are_there() -> None:
    rows = read_rows("train.csv")
    assert require_columns(rows, ["label", "text"], "train.csv") == rows
    message = "no column 'lable' in train.csv (did you mean 'label'?); columns: text, label"
    assert refusal(require_columns, rows, ["text", "lable"], "train.csv") == (message, 2)


def test_a_row_without_the_column_is_a_bad_row() -> None:
    rows = read_rows("mixed.jsonl")
    message, status = refusal(require_columns, rows, ["text"], "mixed.jsonl")
    assert message.startswith("mixed.jsonl:2: no 'text' in this row") and status == 1
    kept = require_columns(rows, ["text"], "mixed.jsonl", on_bad_row="skip")
    assert ([row.where for row in kept.rows], kept.skipped) == (["mixed.jsonl:1", "mixed.jsonl:3", "mixed.jsonl:4"], 1)
    assert "no row in mixed.jsonl has all of" in refusal(
        require_columns, kept, ["text", "title"], "mixed.jsonl", on_bad_row="skip"
    )[0]  # fmt: skip


def test_texts_are_whole_files_or_a_column() -> None:
    assert read_texts(["notes.md", "train.csv", "empty.txt"]) == (["# Notes\n\ufffd", "one", "two"], 0)
    assert read_texts("train.csv", text_column="label") == (["a", "b"], 0)


def test_a_column_that_is_not_text_is_a_bad_row(folder: Path) -> None:
    (folder / "n.jsonl").write_text('{"text": "one"}\n{"text": null}\n')
    assert refusal(read_texts, "n.jsonl")[0].startswith("n.jsonl:2: the value of 'text' is null, not a string")
    assert read_texts("mixed.jsonl", on_bad_row="skip") == (["one"], 2)


def test_no_text_at_all_is_refused(folder: Path) -> None:
    assert refusal(read_texts, ["empty.txt"]) == ("no text in empty.txt", 1)
    (folder / "x.bin").write_bytes(b"\x7fELF\0\0")
    assert refusal(read_texts, "x.bin") == ("x.bin is not a text file (it contains NUL bytes)", 1)


def test_the_builtin_data_go_by_name() -> None:
    assert read_texts("pydoc") == (builtin.documents(), 0)
    rows = read_rows("builtin:conversations")
    assert [row.values for row in rows.rows] == builtin.conversations()
    assert (rows.columns, rows.rows[4].where) == (("messages",), "builtin:conversations:5")
