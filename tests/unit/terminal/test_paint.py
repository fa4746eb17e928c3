"""Colours by state, and where there are none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.terminal.paint import Colours, has_colours, paint

RESET = "\x1b[0m"


@pytest.mark.parametrize(("line", "painted"), [
    ("5  train  RUNNING  1:00", f"5  train  \x1b[36mRUNNING{RESET}  1:00"),
    ("5  train  FAILED   1:00", f"5  train  \x1b[31mFAILED{RESET}   1:00"),
    ("    state  COMPLETED", f"    state  \x1b[32mCOMPLETED{RESET}"),
    ("     next  clusterrun why 5", f"     next  \x1b[1mclusterrun why 5{RESET}"),
    ("  hint: clusterrun list", f"  hint: \x1b[1mclusterrun list{RESET}"),
    ("5  FAILED-run  PENDING  x", f"5  FAILED-run  \x1b[33mPENDING{RESET}  x"),
    ("clusterrun: job 5: TIMEOUT (failed)", f"clusterrun: job 5: \x1b[31mTIMEOUT{RESET} (failed)"),
    ("5\ttrain\tRUNNING\t1:00", f"5\ttrain\t\x1b[36mRUNNING{RESET}\t1:00"),
    ("done after 3:10:00", f"\x1b[32mdone{RESET} after 3:10:00"),
    ("failed: no module", f"\x1b[31mfailed{RESET}: no module"),
    ("gpu  12  of 40  3 idle, 2 down", f"gpu  12  of 40  3 \x1b[32midle{RESET}, 2 \x1b[31mdown{RESET}"),
    ("  n7  drained  bad fan", f"  n7  \x1b[31mdrained{RESET}  bad fan"),
    ("       do  scontrol release 5", f"       do  \x1b[1mscontrol release 5{RESET}"),
    ("failed jobs are idle", "failed jobs are idle"),
    ("the job FAILED, as clusterrun says", "the job FAILED, as clusterrun says"),
    ("", ""),
])  # fmt: skip
def test_a_state_and_a_command_to_paste_are_coloured(line: str, painted: str) -> None:
    assert paint(line) == painted


@given(st.text(st.characters(exclude_characters="\x1b")))
def test_colours_change_no_letter(line: str) -> None:
    assert re.sub(r"\x1b\[\d+m", "", paint(line)) == line


@pytest.mark.parametrize(("environ", "is_terminal", "coloured"), [
    ({"TERM": "xterm"}, True, True), ({"TERM": "xterm"}, False, False), ({"TERM": "dumb"}, True, False),
    ({}, True, False), ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
    ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
])  # fmt: skip
def test_colours_are_for_terminals_that_have_them(environ: dict[str, str], is_terminal: bool, coloured: bool) -> None:
    assert has_colours(environ, is_terminal=is_terminal) is coloured


@pytest.mark.parametrize(("chosen", "is_terminal", "coloured"), [("always", False, True), ("never", True, False)])
def test_what_the_user_chose_wins(
    monkeypatch: pytest.MonkeyPatch, chosen: str, is_terminal: bool, coloured: bool
) -> None:
    monkeypatch.setattr(Colours, "chosen", chosen)
    environ = {"TERM": "xterm", "NO_COLOR": "1"} if coloured else {"TERM": "xterm"}
    assert has_colours(environ, is_terminal=is_terminal) is coloured
