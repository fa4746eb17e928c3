"""The line below the output of a terminal, and where there is none."""

from __future__ import annotations

import io
import threading

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.terminal.ui import Ui
from tests.support.patience import until

ERASE = "\r\x1b[J"


class Stream(io.TextIOWrapper):
    """A stream in memory that may be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "40", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


def streams(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool = True, as_json: bool = False) -> tuple[Ui, Stream]:
    err = Stream(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stderr", err)
    return Ui("logs", as_json=as_json, out=Stream(is_terminal=is_terminal)), err


def test_the_line_stays_below_what_is_printed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ui, err = streams(monkeypatch)
    ui.status_lines("step 1/9")
    ui.status_lines("step 1/9")
    ui.note("requeued")
    ui.status_lines("step 2/9")
    ui.log_bytes(b"0: step 3\n")
    ui.status_lines("step 3/9")
    ui.error(RequestError("no"))
    assert err.text == (
        f"{ERASE}step 1/9{ERASE}clusterrun: requeued\n{ERASE}step 2/9{ERASE}{ERASE}step 3/9{ERASE}clusterrun: no\n"
    )


def test_a_long_line_is_cut_to_the_width_and_foreign_text_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    ui, err = streams(monkeypatch)
    ui.status_lines("\x1b[2J" + "x" * 100)
    shown = err.text.removeprefix(ERASE)
    assert len(shown) < 40 and "\x1b" not in shown


def test_several_lines_are_replaced_and_removed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    ui, err = streams(monkeypatch)
    ui.status_lines("0| 10%", "1| 20%", "step 1/9")
    ui.status_lines("1| 30%")
    ui.say("done")
    assert err.text == f"{ERASE}0| 10%\n1| 20%\nstep 1/9\r\x1b[2A\x1b[J1| 30%{ERASE}"


def test_of_many_lines_half_of_the_terminal_is_shown_and_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "12")
    ui, err = streams(monkeypatch)
    ui.status_lines(*(f"{rank}| 10%" for rank in range(64)), "step 1/9")
    shown = err.text.removeprefix(ERASE).split("\n")
    assert shown == ["0| 10%", "1| 10%", "2| 10%", "3| 10%", "… 60 more …", "step 1/9"]
    ui.status_lines()
    assert err.text.endswith("\r\x1b[5A\x1b[J")


def test_what_takes_long_is_shown_until_it_is_done_and_its_notes_stand_above(monkeypatch: pytest.MonkeyPatch) -> None:
    ui, err = streams(monkeypatch)
    with ui.working("submitting"):
        until(lambda: "submitting … 0:0" in err.text)
        ui.note("saved the code")
        until(lambda: "submitting … 0:0" in err.text.partition("saved the code")[2])
    assert f"{ERASE}clusterrun: saved the code\n{ERASE}submitting" in err.text and err.text.endswith(ERASE)
    shown = err.text
    with pytest.raises(RequestError), ui.working("failing"):
        raise RequestError("no")
    assert err.text == shown, "what is done within a second is not shown"


@pytest.mark.parametrize("how", ["a pipe", "JSON", "a dumb terminal"])
def test_there_is_no_line_where_nothing_can_be_redrawn(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    threads = threading.active_count()
    if how == "a dumb terminal":
        monkeypatch.setenv("TERM", "dumb")
    ui, err = streams(monkeypatch, is_terminal=how != "a pipe", as_json=how == "JSON")
    ui.status_lines("step 1/9")
    with ui.working("submitting"):
        assert threading.active_count() == threads
    assert err.text == ""
