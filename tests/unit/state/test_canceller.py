"""Who cancelled a job: every command says the same, and accounting is asked once."""

from __future__ import annotations

import os
import time
from pwd import getpwuid

import pytest

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler.slurm.sacct import _SACCT
from clusterrun.scheduler.slurm.values import SEP
from tests.support.command_desk import Desk
from tests.support.listed_jobs import rows, run, run_row

ME = getpwuid(os.getuid()).pw_name


@pytest.fixture
def cancelled(desk: Desk) -> RunRecord:
    """A run that Slurm shows as cancelled, and its row in accounting."""
    one = run(Store(desk.project, desk.state))
    ended = str(int(time.time()))
    desk.slurm.answer("squeue", rows(run_row(one, u=ME, T="CANCELLED", r="Resources", e=ended)))
    name = f"{one.name}.{one.submission.token[:8]}"
    known = {"JobID": "101", "JobIDRaw": "101", "State": f"CANCELLED by {os.getuid()}", "ExitCode": "0:15", "User": ME,
             "JobName": name, "End": ended}  # fmt: skip
    desk.slurm.answer("sacct", SEP.join(known.get(column, "1") for column in _SACCT) + "\n")
    return one


@pytest.mark.usefixtures("cancelled")
def test_every_command_names_the_same_canceller(desk: Desk) -> None:
    who = f"cancelled by {ME} (you)"
    assert f"reason  {who}\n" in desk.type("status", "101").out
    assert f"cancelled after 1:00: the job was {who}\n" in desk.type("status", "101").out
    assert f"cause  the job was {who}\n" in desk.type("why", "101").out
    assert desk.type("list", "--all").out.splitlines()[-1].endswith(f"\t{who}")
    assert desk.type("wait", "101").err == f"clusterrun: job 101: CANCELLED\nclusterrun: the job was {who}\n"
    assert f"the job was {who}\n" in desk.type("logs", "101", "-f").err
    assert desk.slurm.count("sacct") == 1
    desk.slurm.answer("squeue", rows())  # Slurm has forgotten it
    assert f"reason  {who}\n" in desk.type("status", "101").out


def test_a_cancel_of_ours_is_named_as_such_whatever_accounting_has(desk: Desk, cancelled: RunRecord) -> None:
    desk.slurm.answer("squeue", rows(run_row(cancelled, u=ME, T="PENDING")))
    desk.type("cancel", "101")
    for words in (("status", "101"), ("why", "101"), ("list", "--all")):
        assert "cancelled by `clusterrun cancel`" in desk.type(*words).out


@pytest.mark.usefixtures("cancelled")
def test_accounting_that_is_late_is_asked_again(desk: Desk) -> None:
    row = (desk.slurm.folder / "sacct.out").read_text()
    desk.slurm.answer("sacct")
    assert "cancelled by" not in desk.type("status", "101").out
    desk.slurm.answer("sacct", row)
    assert f"cancelled by {ME} (you)" in desk.type("status", "101").out
