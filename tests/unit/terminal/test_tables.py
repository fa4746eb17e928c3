"""Tables fit the terminal, whatever is in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterrun.state.show import LIST_COLUMNS
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import Column, as_html, cell_width, cut, filled, fit

COLUMNS = [Column("ID"), Column("NAME", least=4), Column("SPARE", leaves=1), Column("TIME", leaves=9), Column("WHY", 5)]
ROWS = [["1", "a-long-name", "gpu", "0:01", "Resources"], ["22", "b", "low", "0:02", ""]]


def test_as_wide_as_it_is() -> None:
    assert fit(COLUMNS, ROWS) == [
        "ID  NAME         SPARE  TIME  WHY",
        "1   a-long-name  gpu    0:01  Resources",
        "22  b            low    0:02",
    ]


def test_what_is_spare_leaves_before_a_name_is_cut() -> None:
    assert fit(COLUMNS, ROWS, 36)[0].split() == ["ID", "NAME", "TIME", "WHY"]
    assert fit(COLUMNS, ROWS, 36)[1] == "1   a-long-name  0:01  Resources"


def test_then_names_are_cut_then_the_rest_leaves() -> None:
    assert fit(COLUMNS, ROWS, 24) == ["ID  NAME     TIME  WHY", "1   a-long…  0:01  Reso…", "22  b        0:02"]
    assert fit(COLUMNS, ROWS, 15) == ["ID  NAME  WHY", "1   a-l…  Reso…", "22  b"]


def test_a_column_without_a_word_leaves_first() -> None:
    rows = [["1", "name", "gpu", "", "Resources"]]
    assert fit(COLUMNS, rows, 28) == ["ID  NAME  SPARE  WHY", "1   name  gpu    Resources"]


def test_wide_letters_take_two_cells() -> None:
    assert cell_width("日本") == 4 and cell_width("e\u0301") == 1
    assert cut("日本語", 4) == "日…" and cut("ab", 2) == "ab" and cut("abc", 0) == ""
    first, second = fit([Column("A"), Column("B")], [["日本", "x"], ["ab", "y"]])[1:]
    assert first == "日本  x" and second == "ab    y"


@given(
    st.lists(st.lists(st.text(max_size=40), min_size=len(LIST_COLUMNS), max_size=len(LIST_COLUMNS)), max_size=4),
    st.integers(1, 250),
)
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    safe = [[safe_line(cell) for cell in row] for row in rows]
    lines = fit(LIST_COLUMNS, safe, width)
    assert len(lines) == len(rows) + 1
    assert all(cell_width(line) <= width for line in lines)
    assert width < 80 or all(name in lines[0].split() for name in ("JOBID", "NAME", "STATE", "REASON"))


def test_a_notebook_table_escapes_markup_and_control_characters() -> None:
    html = as_html(("A", "B"), [("<b>1</b>", "x\x1b[2J\ny")])
    assert html == (
        "<table><tr><th>A</th><th>B</th></tr><tr><td>&lt;b&gt;1&lt;/b&gt;</td><td>x\\x1b[2J\\x0ay</td></tr></table>"
    )


def test_optional_columns_without_a_value_are_not_filled() -> None:
    columns = (Column("JOBID"), Column("LOSS", leaves=7), Column("STEP", leaves=6), Column("REASON", least=10))
    assert filled(columns, [["1", "", "", ""], ["2", "", "5", ""]]) == [0, 2, 3]
