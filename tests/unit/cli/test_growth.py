"""What a command opens does not grow with the runs that have ended and that nobody asked for."""

from __future__ import annotations

import os
from dataclasses import replace
from pwd import getpwuid

import pytest

from clusterrun.records.store import Store
from clusterrun.scheduler.local import jobfiles
from clusterrun.system.processes import boot_id, host_name
from tests.support.command_desk import Desk
from tests.support.listed_jobs import rows, run, run_row
from tests.support.opened import Opened
from tests.support.run_records import submitted

ME = getpwuid(os.getuid()).pw_name
FINAL = {"state": "COMPLETED", "exit_status": 0, "ended": 1_795_000_900, "figures": None}


def end_runs(store: Store, numbers: range, state: str = "COMPLETED") -> None:
    for number in numbers:
        one = submitted(store, number, cluster="desk", user=ME, name=f"old{number % 3}")
        store.save_submission(one, replace(one.submission, final={**FINAL, "state": state}))


def end_local_run(desk: Desk, number: int, *, seen: bool = True) -> None:
    """A local run whose job has ended; its end was ``seen`` by a command, or not yet."""
    store = Store(desk.project, desk.state)
    one = submitted(store, number, f"L{number}", scheduler="local", cluster="local", name=f"here{number}")
    if seen:
        store.save_submission(one, replace(one.submission, final=FINAL))
    folder, request = jobfiles.create(desk.state / "local", jobfiles.Job(
        token=one.submission.token, run_dir=str(one.run_dir),
        script=str(one.script), workdir=str(desk.project), logs=str(one.logs), umask=0o22, nodes=1, tasks_per_node=1,
        gpus_per_node=0, time_limit=None, dependency="", submitted=one.at, grace=1.0,
    ))  # fmt: skip
    request.close()
    assert folder.name == f"L{number}"
    jobfiles.write_state(folder, jobfiles.State(
        supervisor=(1, 1), host=host_name(), boot=boot_id(), state="COMPLETED", exit_status=0
    ))  # fmt: skip


def opened_by(desk: Desk, words: str) -> list[str]:
    desk.type(*words.split())  # modules are loaded, and runs that have ended are added to the index
    with Opened() as opened:
        desk.type(*words.split())
    return opened.names


@pytest.mark.parametrize("words", [
    "list", "list --json", "list --state PENDING", "list --name train*", "status", "status last", "status train900",
    "status 1000", "status 77", "status nobody", "why", "why train900", "logs -n 1", "wait 77", "resume train900",
    "cancel --all --dry-run", "cancel --name old* --dry-run", "cancel last --dry-run", "resubmit last --dry-run",
    "free", "list --cluster elsewhere", "submit --dry-run --after train900 -- train.py", "diff train900 1000",
])  # fmt: skip
def test_a_command_opens_no_more_files_for_more_ended_runs(desk: Desk, words: str) -> None:
    store = Store(desk.project, desk.state)
    (desk.project / "train.py").write_text("pass\n")
    end_runs(store, range(1, 4))
    active = run(store, 900)
    desk.slurm.answer("squeue", rows(run_row(active, u=ME)))
    few = opened_by(desk, words)
    end_runs(store, range(4, 24))
    many = opened_by(desk, words)
    assert len(many) <= len(few), sorted(set(many) - set(few))


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED"])
def test_a_list_of_all_runs_opens_no_file_of_a_run_that_ended_long_ago(desk: Desk, state: str) -> None:
    store = Store(desk.project, desk.state)
    desk.slurm.answer("squeue", rows())
    end_runs(store, range(1, 4), state)
    few = opened_by(desk, "list --all")
    end_runs(store, range(4, 24), state)
    assert len(opened_by(desk, "list --all")) <= len(few)


@pytest.mark.parametrize("words", ["status old2", "status 102", "resume old2"])
def test_an_ended_run_is_found_without_the_others(desk: Desk, words: str) -> None:
    store = Store(desk.project, desk.state)
    end_runs(store, range(1, 4))
    few = opened_by(desk, words)
    end_runs(store, range(4, 24))
    assert len(opened_by(desk, words)) <= len(few)


@pytest.mark.parametrize("words", ["status here9", "status last", "list"])
def test_a_local_job_is_found_without_older_ones(desk: Desk, words: str) -> None:
    for older in range(1, 9):
        end_local_run(desk, older)
    desk.type("list")
    end_local_run(desk, 9, seen=False)
    with Opened() as opened:
        assert desk.type(*words.split()).status == 0
    assert [number for number in range(1, 10) if desk.state / "local" / f"L{number}" in opened] == [9]
