"""What is a row, what is a bad one, and that no bytes at all lead to anything else."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data.sources import Rows, read_rows, read_texts
from tests.support.hostile_texts import NASTY

often = settings(max_examples=settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".csv.gz", ".jsonl.gz")


def write(folder: Path, name: str, data: bytes | str) -> str:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def values(rows: Rows) -> list[dict[str, object]]:
    return [row.values for row in rows.rows]


def refusal(data: str, **options: str) -> str:
    with pytest.raises(WorkerError) as caught:
        read_rows(data, **options)
    return str(caught.value)


def test_a_json_lines_file_is_a_row_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '\ufeff{"text": "é", "n": 1}\r\n\n  \n{"m": {"k": [1]}}')
    rows = read_rows(path)
    assert values(rows) == [{"text": "é", "n": 1}, {"m": {"k": [1]}}]
    assert [row.where for row in rows.rows] == [f"{path}:1", f"{path}:4"]
    assert (rows.columns, rows.skipped) == (("text", "n", "m"), 0)


def test_a_json_file_is_a_list_of_objects(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", '[{"a": 1},\n {"a": 2}]')
    rows = read_rows(path)
    assert values(rows) == [{"a": 1}, {"a": 2}] and rows.rows[1].where == f"{path} row 2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1},\n', "a.json:2: broken JSON"),
        ('{"a": 1}\n{"a": 2}\n', "if each line is one JSON object, rename the file so that its name ends in .jsonl"),
        ('{"a": 1}', "not a list of objects"),
        ("[1]", "a.json row 1: not a JSON object: '1'"),
        ("[]", "no rows in"),
    ],
)
def test_json_that_is_not_a_list_of_objects_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(write(tmp_path, "a.json", text))


def test_a_csv_file_has_a_header_and_quotes_as_in_the_rfc(tmp_path: Path) -> None:
    text = '\ufefftext,label\r\n"a ""b"",\nc",1\r\n\r\n  \nd,"  "\n,\n'
    rows = read_rows(write(tmp_path, "a.csv", text))
    assert values(rows) == [
        {"text": 'a "b",\nc', "label": "1"},
        {"text": "d", "label": "  "},
        {"text": "", "label": ""},
    ]
    assert [row.where.rpartition(":")[2] for row in rows.rows] == ["2", "6", "7"]
    assert rows.columns == ("text", "label")


def test_a_tsv_file_is_split_at_tabs(tmp_path: Path) -> None:
    assert values(read_rows(write(tmp_path, "a.TSV", "a\tb\n1,5\t2\n"))) == [{"a": "1,5", "b": "2"}]


def test_one_column_is_enough_and_its_empty_text_a_row_if_quoted(tmp_path: Path) -> None:
    assert values(read_rows(write(tmp_path, "a.csv", 'text\nhello\n""\n\n'))) == [{"text": "hello"}, {"text": ""}]


def test_a_field_may_be_a_whole_document(tmp_path: Path) -> None:
    long = "x" * 300_000
    assert values(read_rows(write(tmp_path, "a.csv", f"t,u\n{long},1\n")))[0]["t"] == long


def test_gzip_is_read_through(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv.gz", gzip.compress(b"text\nhi\n"))
    assert values(read_rows(path)) == [{"text": "hi"}]
    assert read_texts(write(tmp_path, "b.txt.gz", gzip.compress(b"hello"))) == (["hello"], 0)
    assert "cannot read" in refusal(write(tmp_path, "c.csv.gz", gzip.compress(b"text\n" * 99)[:-9]))


BAD_ROWS = [
    (".jsonl", b'{"a": 1}\n{"a": 2\n{"a": 3}\n', 2, "broken JSON (Expecting ',' delimiter at column 8): '{\"a\": 2'"),
    (".jsonl", b'{"a": 1}\n[1]\n{"a": 3}\n', 2, "not a JSON object: '[1]'"),
    (".jsonl", b'{"a": 1}\n{"a": "\xff"}\n{"a": 3}\n', 2, 'not UTF-8 (byte 8): \'{"a": "\\\\xff"}\''),
    (".jsonl", b'{"a": 1}\n\0\0\0\n{"a": 3}\n', 2, "a NUL byte"),
    (".jsonl", b'{"a": 1}\n' + b"[" * 99_999 + b'\n{"a": 3}\n', 2, "nested too deeply"),
    (".jsonl", b'{"a": 1}\n{"a": "\\ud800"}\n{"a": 3}\n', 2, "unpaired surrogate"),
    (".jsonl", b'{"a": 1}\n{"a": ' + b"9" * 5000 + b'}\n{"a": 3}\n', 2, "broken JSON (Exceeds the limit"),
    (".csv", b"a,b\n1,2\n3\n4,5\n", 3, "1 field, but the header has 2: '3'"),
    (".csv", b"a,b\n1,2\n3,4,5\n4,5\n", 3, "3 fields, but the header has 2: '3,4,5'"),
    (".csv", b"a,b\n1,2\n3,\xff\n4,5\n", 3, "not UTF-8 (byte 3)"),
    (".csv", b"a,b\n1,2\n3,\0\n4,5\n", 3, "a NUL byte"),
    (".csv", b'a,b\n1,2\n3,"x"y\n4,5\n', 3, "',' expected after '\"'"),
    (".csv", b"a,b\n1,2\n3,x\ry\n4,5\n", 3, "a bare carriage return"),
]


@pytest.mark.parametrize(("suffix", "data", "line", "said"), BAD_ROWS)
def test_a_bad_row_is_named_or_counted_and_skipped(
    tmp_path: Path, suffix: str, data: bytes, line: int, said: str
) -> None:
    path = write(tmp_path, f"a{suffix}", data)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: ") and said in message and "on_bad_row=skip" in message
    assert message.isprintable() and len(message) < len(path) + 250
    rows = read_rows(path, on_bad_row="skip")
    assert len(rows.rows) == 2 and rows.skipped == 1


def test_a_quote_that_is_never_closed_is_named_where_it_opens_and_counted_by_its_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'a,b\n1,2\n3,"4\n5,6\n7,8\n')
    assert f"{path}:3: a quote opened here is never closed" in refusal(path)
    rows = read_rows(path, on_bad_row="skip")
    assert values(rows) == [{"a": "1", "b": "2"}] and rows.skipped == 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a,a\n1,2\n", "a.csv:1: the header is broken: column 'a' appears twice"),
        (b"a,\xff\n1,2\n", "a.csv:1: the header is broken: not UTF-8"),
        (b"a,b\n", "no rows in"),
        (b"", "no rows in"),
        (b"a,b\n1\n", "a.csv:2: 1 field"),
        ("a,b\n1,2\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
    ],
)
def test_a_csv_file_without_a_good_header_or_rows_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    assert said in refusal(write(tmp_path, "a.csv", data))


def test_nothing_but_bad_rows_is_refused_even_when_they_may_be_skipped(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, "a.jsonl", "x\ny\n"), on_bad_row="skip").endswith("a.jsonl: 2 bad rows skipped")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, "a.parquet", b"PAR1")
    assert refusal(path) == f"reading {path} needs pyarrow: pip install pyarrow"


def test_a_parquet_file_gives_its_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="an optional package, for parquet files only")
    from pyarrow import parquet

    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "n": [1, None]}), path)
    rows = read_rows(path)
    assert values(rows) == [{"text": "a", "n": 1}, {"text": "b", "n": None}]
    assert rows.rows[1].where == f"{path} row 2" and rows.columns == ("text", "n")
    whole = Path(path).read_bytes()
    for damaged in (b"", b"\0" * 50, whole[:-20], whole[:10] + b"\xff" * 40 + whole[50:]):
        message = refusal(write(tmp_path, "b.parquet", damaged))
        assert message.startswith("cannot read") and message.isprintable()


pieces = st.lists(
    st.sampled_from([b'"', b",", b"\t", b"\n", b"\r", b"{", b"}", b"[", b"]", b'{"a":', b"1", b"\\u", b"\\ud800",
                     b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b" ", b"a,b\n", b"null", b"\xc3\xa9", b"NaN"]),
    max_size=30,
).map(b"".join)  # fmt: skip


@often
@given(st.sampled_from(SUFFIXES), st.one_of(st.binary(max_size=100), pieces), st.booleans())
@example(".csv", b"\xff\xfe", False)
@example(".tsv", b'""\x01', False)
@example(".jsonl.gz", b"\x1f\x8b\x08\x08", True)
def test_any_bytes_are_rows_or_one_sentence(tmp_path: Path, suffix: str, data: bytes, packed: bool) -> None:
    whole = packed and suffix.endswith(".gz")
    path = write(tmp_path, f"a{suffix}", gzip.compress(data, 1) if whole else data)
    for choice in ("stop", "skip"):
        try:
            rows = read_rows(path, on_bad_row=choice)
        except WorkerError as error:
            assert str(error).isprintable() and path in str(error)
        else:
            assert rows.rows and (choice == "skip" or not rows.skipped)
            assert all(set(row.values) <= set(rows.columns) for row in rows.rows)
            json.dumps(values(rows), ensure_ascii=False).encode()  # text that a tokenizer takes


texts = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
    st.sampled_from(NASTY).map(lambda text: text.encode(errors="replace").decode()),
)


@often
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5), st.sampled_from((".csv", ".tsv", ".jsonl", ".json")))
def test_what_was_written_is_read(tmp_path: Path, table: list[tuple[str, str]], suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    rows = [{"x": first, "y": second} for first, second in table]
    with open(path, "w", newline="", encoding="utf-8") as file:
        if suffix in (".csv", ".tsv"):
            writer = csv.DictWriter(file, ["x", "y"], delimiter="," if suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
        elif suffix == ".json":
            json.dump(rows, file)
        else:
            file.writelines(json.dumps(row, ensure_ascii="x" in row["x"]) + "\n" for row in rows)
    assert values(read_rows(str(path))) == rows
