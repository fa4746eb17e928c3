"""The table of docs/guides.md: 58 rows, each with what shows it, and no row names a test that does not exist."""

from __future__ import annotations

import ast

import pytest

from tests.guides import EXPECTED, Row, rows
from tests.support.folders import ROOT

ROWS = rows()


def test_there_is_a_row_for_everything_the_guides_do() -> None:
    assert list(ROWS) == list(range(1, 59))


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: str(row.number))
def test_a_row_is_shown_or_missing(row: Row) -> None:
    assert row.tests or row.missing or (row.on_lab and row.commands)
    for name in row.tests:
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_the_rows_of_the_lab_are_those_that_are_typed() -> None:
    assert {number for number, row in ROWS.items() if row.on_lab} == EXPECTED.keys()
