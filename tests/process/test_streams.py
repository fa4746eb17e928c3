"""The command line where its standard streams are closed, full, or speak no Unicode."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.terminal.ui import Ui
from tests.support.command_desk import Desk
from tests.support.folders import ROOT
from tests.support.patience import HUNG


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """What a line of shell says, with CR standing for the program."""
    line = line.replace("CR", f"'{sys.executable}' -m clusterrun")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=HUNG)


@pytest.mark.parametrize("words", ["list", "list --json", "status 99", "--help", "render", "cancel --all --yes"])
def test_a_closed_stream_changes_nothing(desk: Desk, words: str) -> None:
    status, said = (done := shell(f"CR {words}")).returncode, done.stderr
    for closed in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
        done = shell(f"CR {words} {closed}")
        assert done.returncode == status, (closed, done.stderr)
        assert done.stderr == ("" if "2>" in closed else said), closed


@pytest.mark.parametrize("words", ["render", "render --json", "--help"])
def test_a_full_disk_is_a_line_and_no_failed_job(desk: Desk, words: str) -> None:
    done = shell(f"CR {words} >/dev/full")
    assert done.returncode == 75
    line, hint = done.stderr.splitlines()
    assert line == "clusterrun: cannot write the output: No space left on device" and "hint: " in hint


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_log_reaches_a_terminal_of_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(written, "iso8859-1"))
    Ui("logs").log_bytes("0| Größe 数\n".encode())
    assert written.getvalue() == "0| Größe \\u6570\n".encode("latin-1")


def test_a_dumb_terminal_gets_no_bold_head(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(written, "utf-8"))
    for term, bold in {"xterm": True, "dumb": False}.items():
        monkeypatch.setenv("TERM", term)
        monkeypatch.delenv("NO_COLOR", raising=False)
        Ui("list").table(["JOBID"], [["1"]])
        sys.stdout.flush()
        assert (b"\x1b[" in written.getvalue()) == bold
        written.seek(0)
        written.truncate()


def test_a_low_terminal_shows_the_head_and_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(written, "utf-8"))
    monkeypatch.setenv("LINES", "6")
    drawn = Ui("list").screen(["JOBID", *map(str, range(20)), "Slurm is silent"], 0)
    lines = written.getvalue().decode().removeprefix("\r\x1b[J").splitlines()
    assert lines == ["JOBID", "… 18 more lines …", "18", "19", "Slurm is silent"] and drawn == 5


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_sign_that_the_encoding_lacks_is_an_escape(desk: Desk, encoding: str) -> None:
    desk.write("logs/x_7.err", "ModuleNotFoundError: No module named '数'\n")
    said = desk.process("why", "--logs", "logs", env={"PYTHONIOENCODING": encoding})
    assert "unexpected error" not in said.err and r"No module named '\u6570'" in said.out


def test_ctrl_c_while_it_starts_is_no_traceback(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    root = ROOT
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"}
    done = subprocess.run([sys.executable, "-m", "clusterrun", "list"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
