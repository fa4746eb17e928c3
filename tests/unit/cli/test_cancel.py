"""`cancel`: what is meant by what is typed, and no more than that."""

from __future__ import annotations

import io
import json
import os
import resource
import sys
from dataclasses import replace
from pwd import getpwuid

import pytest

from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from tests.support.command_desk import Desk
from tests.support.listed_jobs import rows, run_row
from tests.support.run_records import attempt, claim, end, submitted

ME = getpwuid(os.getuid()).pw_name


@pytest.fixture
def run(desk: Desk) -> RunRecord:
    """A run that Slurm tells to be running."""
    run = submitted(Store(desk.project, desk.state), cluster="desk", user=ME)
    desk.slurm.answer("squeue", rows(run_row(run, u=ME)))
    return run


@pytest.mark.parametrize("part", ["101_3", "101+1"])
def test_a_part_of_a_run_that_has_none_cancels_nothing(desk: Desk, run: RunRecord, part: str) -> None:
    said = desk.type("cancel", part)
    assert said.status == 4 and said.err.splitlines()[0].startswith(f"clusterrun: no such job: {part} (job 101 ")
    assert desk.slurm.count("scancel") == 0
    assert desk.type("cancel", "101").out == "Cancelled 101\n"


def test_a_job_that_is_typed_twice_is_cancelled_once(desk: Desk, run: RunRecord) -> None:
    assert desk.type("cancel", "101", run.run_id, "101").out == "Cancelled 101\n"


def test_cancel_of_an_ended_job_whose_run_goes_on_names_the_job_to_cancel(desk: Desk) -> None:
    run = submitted(Store(desk.project, desk.state), cluster="desk", user=ME)
    claim(run)
    attempt(run, end=end(1))
    again = replace(run.submission, token="bbcdefgh22345672", job_id="102", at=run.at + 5, final=None)
    submissions.write(run.run_dir, again)
    both = replace(run, submissions=(run.submission, again))
    desk.slurm.answer("squeue", rows(run_row(both, u=ME)))
    said = desk.type("cancel", "101")
    assert said.out.startswith("Not cancelled 101: already ended") and said.status == 0, said
    assert "clusterrun cancel 102" in said.err and desk.slurm.count("scancel") == 0


@pytest.mark.parametrize("word", ["R", "running", "PD,R"])
def test_states_are_typed_as_for_list(desk: Desk, run: RunRecord, word: str) -> None:
    assert "would cancel 1 job;" in desk.type("cancel", "--state", word, "--dry-run").err
    assert "no matching active jobs" in desk.type("cancel", "--state", "PD", "--dry-run").err


def test_a_dry_run_counts_what_a_cancel_would_cancel(desk: Desk, run: RunRecord) -> None:
    claim(run)
    attempt(run, end=end())
    desk.slurm.answer("squeue", rows({"i": "7", "u": "mallory"}))
    assert "would cancel 0 jobs;" in desk.type("cancel", "7", "101", "--dry-run").err


class Keyboard(io.StringIO):
    """A terminal on which something was typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "count"), [("n\n", 0), ("\n", 0), ("y\n", 1)])
def test_who_says_no_is_told_that_nothing_was_cancelled(
    desk: Desk, run: RunRecord, monkeypatch: pytest.MonkeyPatch, typed: str, count: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    said = desk.type("cancel", "--all")
    assert (said.status, desk.slurm.count("scancel")) == (0, count)
    assert ("nothing was cancelled" in said.err) == (count == 0)


def cancel_asked(run: RunRecord) -> int:
    found = run_record.load(run.run_dir)
    assert found is not None
    return found.submission.cancel_asked


def test_a_cancel_is_recorded_before_it_is_sent(desk: Desk, run: RunRecord) -> None:
    record = run.run_dir / "submissions" / f"{run.submission.token}.json"
    scancel = desk.slurm.folder / "scancel"
    scancel.write_text(f"#!/bin/sh\n/bin/cp {record} {desk.slurm.folder}/seen\n: >{desk.slurm.folder}/squeue.out\n")
    assert desk.type("cancel", "101").status == 0
    assert json.loads((desk.slurm.folder / "seen").read_text())["cancel_asked"] == cancel_asked(run) > 0


@pytest.mark.parametrize("error", ["scancel: error: Kill job error on job id 101: Access denied", "Unable to contact"])
def test_a_cancel_that_slurm_refuses_is_not_recorded(desk: Desk, run: RunRecord, error: str) -> None:
    desk.slurm.answer("scancel", err=f"{error}\n", status=1)
    assert desk.type("cancel", "101").status == 3
    assert cancel_asked(run) == 0


def test_a_job_that_may_run_where_slurm_does_not_show_it_is_no_success(desk: Desk, run: RunRecord) -> None:
    claim(run)
    desk.slurm.answer("squeue", rows())
    said = desk.type("cancel", "101")
    assert said.status == 75 and said.out.startswith("Not cancelled 101"), said


def test_a_job_that_slurm_still_shows_after_the_cancel_is_not_cancelled(desk: Desk, run: RunRecord) -> None:
    (desk.slurm.folder / "scancel").write_text("#!/bin/sh\n")  # it succeeds, and nothing changes
    said = desk.type("cancel", "101")
    assert (said.status, said.out) == (3, "Not cancelled 101: Slurm shows job 101 as RUNNING\n")


@pytest.mark.usefixtures("run")
def test_a_cancel_that_slurm_does_not_confirm_is_no_success(desk: Desk) -> None:
    squeue = desk.slurm.folder / "squeue"
    (desk.slurm.folder / "scancel").write_text(f"#!/bin/sh\nprintf '#!/bin/sh\\nexit 1\\n' >{squeue}\n")
    said = desk.type("cancel", "101")
    assert said.status == 75 and said.out.startswith("Not confirmed 101: Slurm did not confirm that it has ended"), said


def test_an_ended_job_is_no_success_while_slurm_is_silent(desk: Desk, run: RunRecord) -> None:
    claim(run)
    attempt(run, end=end())
    desk.slurm.answer("squeue", err="squeue: error: Unable to contact slurm controller\n", status=1)
    assert desk.type("cancel", "101").status == 75  # it may be in the queue again


def test_with_nothing_to_cancel_no_table_is_printed(desk: Desk) -> None:
    said = desk.type("cancel", "--all", "--yes")
    assert (said.status, said.out, said.err) == (0, "", "clusterrun: no matching active jobs\n")


def test_a_requeued_run_whose_end_was_recorded_is_found_by_cancel_as_by_list(desk: Desk, run: RunRecord) -> None:
    desk.slurm.answer("squeue", rows(run_row(run, u=ME, T="FAILED")))
    desk.type("status", "101")
    desk.slurm.answer("squeue", rows(run_row(run, u=ME, T="PENDING", o=str(run.script))))
    assert desk.type("cancel", "--all", "--yes").out == "Cancelled 101\n"  # `list` would remove the end first


def test_a_record_that_cannot_be_written_hides_no_cancel(desk: Desk, run: RunRecord) -> None:
    other = submitted(Store(desk.project, desk.state), 2, cluster="desk", user=ME)
    desk.slurm.answer("squeue", rows(run_row(run, u=ME), run_row(other, u=ME, T="PENDING")))
    (desk.slurm.folder / "calls").symlink_to("/dev/null")
    (desk.slurm.folder / "scancel").write_text(f"#!/bin/sh\n: >{desk.slurm.folder}/squeue.out\n")
    said = desk.process("cancel", "101", "102", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    assert said.status == 0, said
    assert [line.partition(": ")[0] for line in said.out.splitlines()] == ["Cancelled 101", "Cancelled 102"]
    assert said.out.count("cannot be written") == 2 and "Traceback" not in said.err


def test_a_component_of_another_tools_job_is_cancelled_alone(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "12+0", "u": ME}, {"i": "12+1", "u": ME}))
    assert desk.type("cancel", "12+1").out == "Cancelled 12+1\n"
    assert [call[2:] for call in desk.slurm.calls if call[0] == "scancel"] == [["12+1"]]
