"""A failed job whose nodes are held: Slurm calls it RUNNING, `status` and `why` name its failure."""

from __future__ import annotations

import os
import time
from pathlib import Path
from pwd import getpwuid

import pytest

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.support.command_desk import Desk
from tests.support.listed_jobs import rows, run_row
from tests.support.run_records import attempt, claim, end, submitted

ME = getpwuid(os.getuid()).pw_name
SHELL = "srun --jobid=101 --overlap --nodelist=n2 --pty bash"


@pytest.fixture
def run(desk: Desk) -> RunRecord:
    """A run whose rank 3 has failed, and whose nodes are held for an hour."""
    run = submitted(Store(desk.project, desk.state), cluster="desk", user=ME)
    claim(run)
    failure = {"rank": 3, "node": "n2", "status": 7, "error": "ValueError: no data"}
    attempt(run, end=end(7), hold={"until": int(time.time()) + 3600, "shell": SHELL}, first_failure=failure)
    desk.slurm.answer("squeue", rows(run_row(run, u=ME)))
    return run


def test_status_and_why_name_the_failure_and_the_shell(desk: Desk, run: RunRecord) -> None:
    status = desk.type("status", "101").out
    assert "RUNNING" in status and "     held  until " in status and SHELL in status
    why = desk.type("why", "101").out
    assert "ValueError: no data" in why and SHELL in why


@pytest.mark.parametrize(("word", "shown"), [("CANCELLED", "FAILED"), ("TIMEOUT", "FAILED"), ("FAILED", "FAILED")])
def test_what_ends_the_hold_is_not_how_the_job_ended(desk: Desk, run: RunRecord, word: str, shown: str) -> None:
    desk.slurm.answer("squeue", rows(run_row(run, u=ME, T=word)))
    (state,) = desk.type("status", "101", "--json").data
    assert (state["state"], state["outcome"], state["exit_status"]) == (shown, "failed", 7)
    assert "held" not in desk.type("status", "101").out


@pytest.mark.parametrize("until", [0, 2**62, -(2**62), "x", None])
def test_a_damaged_record_holds_nothing(desk: Desk, run: RunRecord, until: object) -> None:
    attempt(run, hold={"until": until})
    said = desk.type("status", "101")
    assert said.status == 0 and "held" not in said.out


def test_a_run_folder_of_another_job_is_not_held(desk: Desk, run: RunRecord, tmp_path: Path) -> None:
    other = submitted(Store(desk.project, desk.state), 2, cluster="desk", user=ME)
    desk.slurm.answer("squeue", rows(run_row(other, u=ME)))
    assert "held" not in desk.type("status", "102").out
