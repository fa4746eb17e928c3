"""`report` and `list --html`: which file is written, what is refused, and the curves in a terminal."""

from __future__ import annotations

import json
import os
import time
import tomllib
from pathlib import Path

import pytest

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.support.command_desk import Desk, refused
from tests.support.listed_jobs import rows, run_row
from tests.support.reported_runs import make_run
from tests.support.run_records import submitted


def ended_run(desk: Desk, number: int = 1) -> RunRecord:
    desk.slurm.answer("squeue")
    return make_run(Store(desk.project, desk.state), number)


def test_the_page_is_written_into_this_folder_and_named_by_its_job(desk: Desk) -> None:
    ended_run(desk)
    said = desk.type("report", "101")
    assert (said.status, said.out) == (0, "report-101.html\n"), said
    page = (desk.project / "report-101.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "FAILED" in page
    mode = (desk.project / "report-101.html").stat().st_mode & 0o777
    assert mode == 0o666 & ~_umask()


def _umask() -> int:
    umask = os.umask(0o022)
    os.umask(umask)
    return umask


def test_the_page_can_go_to_another_file_or_to_standard_output(desk: Desk, tmp_path: Path) -> None:
    ended_run(desk)
    assert desk.type("report", "101", "-o", str(tmp_path / "a.html")).out == f"{tmp_path}/a.html\n"
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    before = desk.files()
    assert desk.process("report", "101", "-o", "-").out.startswith("<!DOCTYPE html>")
    assert desk.files() == before


def test_a_link_in_place_of_the_page_is_replaced_not_followed(desk: Desk) -> None:
    ended_run(desk)
    mine = desk.write("mine.txt", "keep")
    (desk.project / "report-101.html").symlink_to(mine)
    assert desk.type("report", "101").status == 0
    assert mine.read_text() == "keep" and not (desk.project / "report-101.html").is_symlink()


def test_json_has_the_data_of_the_page(desk: Desk) -> None:
    for number in (1, 2):
        ended_run(desk, number)
    found = desk.type("report", "101", "102", "--json").data
    assert [run["handle"] for run in found["runs"]] == ["101", "102"]
    first = found["runs"][0]
    assert first["curves"]["loss"][0][0] == 1 and len(first["timeline"]["ranks"]) == 4
    assert first["cause"]["kind"] == "exception" and first["options"][0].keys() == {"name", "value", "source"}
    assert found["difference"].keys() == {"options", "files", "code", "environment", "metrics"}
    assert not [name for name in desk.files() if name.endswith(".html")]


def test_the_curves_of_two_runs_stand_over_each_other_in_the_terminal(desk: Desk) -> None:
    for number in (1, 2):
        ended_run(desk, number)
    desk.set(COLUMNS="80")
    lines = desk.type("report", "101", "102", "--terminal").out.splitlines()
    assert lines[0].startswith("101  train1  FAILED  failed")
    titles = [line for line in lines if "⠤ 101 train1" in line]
    assert [line.split("   ")[0] for line in titles] == ["Loss", "Learning rate", "Tokens/s"]
    assert titles[1].endswith("⠤ 101 train1   x 102 train2")
    below = [line.split() for line in lines if line.split()[-1:] == ["150"]]
    assert below == [["25", "50", "75", "100", "125", "150"]] * 3
    assert max(map(len, lines)) <= 80 and "\x1b" not in "".join(lines)


def test_a_job_that_is_typed_twice_is_reported_once(desk: Desk) -> None:
    ended_run(desk)
    assert desk.type("report", "101", "train1").out == "report-101.html\n"


def test_plots_need_plotext(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_run(desk)
    monkeypatch.setattr("clusterrun.terminal.plot.can_plot", lambda: False)
    said = desk.type("report", "101", "--terminal")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    needed = next(one.partition(";")[0] for one in project["dependencies"] if one.startswith("plotext"))
    assert said.status == 2 and f"pip install '{needed}'" in said.err


def test_a_run_that_logged_nothing_has_a_page_and_no_plot(desk: Desk) -> None:
    run = submitted(Store(desk.project, desk.state), 1, cluster="desk")
    desk.slurm.answer("squeue", rows(run_row(run, T="PENDING", r="Priority")))
    assert desk.type("report", "101").status == 0
    assert "waiting: Priority" in (desk.project / "report-101.html").read_text()
    said = desk.type("report", "101", "--terminal")
    assert said.status == 0 and "no loss, learning rate or speed was logged" in said.err


def test_what_cannot_be_reported_is_refused_in_a_line(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "55"}))
    assert "-o" in refused(desk, "report", "55", "-o", "x.html", "--terminal")[0]
    message, hint = refused(desk, "report", "55", status=4, calls=True)
    assert message == "job 55 was not submitted by clusterrun" and "clusterrun status" in hint


def test_a_pipe_or_a_device_is_not_replaced_by_the_page(desk: Desk, tmp_path: Path) -> None:
    ended_run(desk)
    os.mkfifo(tmp_path / "pipe")
    message, hint = refused(desk, "report", "101", "-o", str(tmp_path / "pipe"), calls=True)
    assert "no file" in message and "standard output" in hint
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_cannot_be_written_is_named(desk: Desk) -> None:
    ended_run(desk)
    said = desk.type("report", "101", "-o", "no/such/folder.html")
    assert (said.status, said.err.splitlines()[0]) == (
        2, "clusterrun: cannot write no/such/folder.html: No such file or directory")  # fmt: skip


def test_list_writes_its_table_as_a_page_with_the_columns_that_have_cells(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "55", "j": "a<b", "V": str(int(time.time()) - 60)}))
    assert desk.type("list", "--html").out == "jobs.html\n"
    page = (desk.project / "jobs.html").read_text()
    assert '<td>55</td><td>a&lt;b</td><td class="busy">RUNNING</td>' in page and "RESTARTS" not in page
    assert desk.type("list", "--columns", "state,jobid", "--html", "some.html").out == "some.html\n"
    assert '<th scope="col">STATE</th><th scope="col">JOBID</th></tr>' in (desk.project / "some.html").read_text()


def test_list_writes_no_page_without_jobs_or_beside_json(desk: Desk) -> None:
    desk.slurm.answer("squeue")
    assert "no active jobs" in desk.type("list", "--html").err
    assert "--html" in refused(desk, "list", "--html", "--watch", calls=True)[0]
    assert json.dumps(sorted(desk.files())) == json.dumps(["train.py"])
