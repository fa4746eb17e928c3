"""The words that name a job: its name, `last`, or no word at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from pwd import getpwuid

import pytest

from clusterrun.base.job import JobId, log_paths
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.support.command_desk import Desk, refused
from tests.support.listed_jobs import rows, run, run_row
from tests.support.run_records import attempt, claim, end, make_run, submitted
from tests.unit.cli.test_cancel import Keyboard

ME = getpwuid(os.getuid()).pw_name


@pytest.fixture
def runs(desk: Desk) -> list[RunRecord]:
    """Three active runs: train1, train2 and train3 with the jobs 101 to 103."""
    store = Store(desk.project, desk.state)
    found = [run(store, number) for number in (1, 2, 3)]
    desk.slurm.answer("squeue", rows(*(run_row(one, u=ME) for one in found), {"i": "7", "j": "theirs.sh", "u": ME}))
    return found


def shown(desk: Desk, *words: str) -> list[str]:
    said = desk.type("status", *words, "--json")
    assert said.status == 0, said.err
    return [one["job_id"] for one in said.data]


@pytest.mark.parametrize(("words", "ids"), [
    ([], ["103"]), (["last"], ["103"]), (["train1"], ["101"]), (["train2", "101", "last"], ["102", "101", "103"]),
    (["theirs.sh"], ["7"]),
])  # fmt: skip
@pytest.mark.usefixtures("runs")
def test_a_job_is_found_by_its_name(desk: Desk, words: list[str], ids: list[str]) -> None:
    assert shown(desk, *words) == ids


@pytest.mark.parametrize("verb", ["status", "why", "wait", "logs", "cancel", "check", "resume"])
@pytest.mark.usefixtures("runs")
def test_an_unknown_name_is_refused_by_every_verb(desk: Desk, verb: str) -> None:
    message, hint = refused(desk, verb, "trian2", status=4, calls=True)
    assert "no job is named trian2" in message and "train2" in hint


@pytest.mark.parametrize("word", ["", "12x", "../x", "*", "\x1b[2J", "123_", "-"])
@pytest.mark.usefixtures("runs")
def test_a_mistyped_id_is_no_name(desk: Desk, word: str) -> None:
    message, _ = refused(desk, "status", "--", word)
    assert "not a job id" in message


def test_of_several_jobs_with_a_name_the_newest_is_meant(desk: Desk) -> None:
    store = Store(desk.project, desk.state)
    found = [run(store, number) for number in (1, 2)]
    desk.slurm.answer("squeue", rows(*(run_row(one, u=ME) for one in found)))
    for one in found:
        record = one.run_dir / "record.json"
        record.write_text(record.read_text().replace(f'"name": "{one.name}"', '"name": "lm"'))
    said = desk.type("status", "lm")
    assert said.err == "clusterrun: 2 jobs are named lm; using the newest, 102 (older: 101)\n"


def test_the_last_job_is_that_of_this_folder(
    desk: Desk, runs: list[RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert shown(desk, "train2") == ["102"]
    message, _ = refused(desk, "status", "last", status=4, calls=True)
    assert f"no job was submitted from {other}" in message
    later = run(Store(other, desk.state), 1)
    assert later.name == "train1" and shown(desk, "train1") == [str(later.job_id)]


def test_several_external_jobs_with_a_name_are_not_chosen_from(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "7", "j": "a.sh", "u": ME}, {"i": "8", "j": "a.sh", "u": ME}))
    message, _ = refused(desk, "cancel", "a.sh", calls=True)
    assert "2 jobs are named a.sh: 7, 8" in message


@pytest.mark.parametrize(("typed", "count"), [("n\n", 0), ("y\n", 1)])
@pytest.mark.usefixtures("runs")
def test_cancel_without_a_job_asks_for_the_last_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, count: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    said = desk.type("cancel")
    assert said.status == 0 and "103" in said.out and "101" not in said.out
    assert desk.slurm.count("scancel") == count


@pytest.mark.usefixtures("runs")
def test_cancel_without_a_job_and_a_terminal_is_refused(desk: Desk) -> None:
    said = desk.type("cancel")
    assert said.status == 2 and "refusing to cancel 1 job without confirmation" in said.err
    assert desk.slurm.count("scancel") == 0


def test_cancel_asks_nothing_for_a_job_that_has_ended(desk: Desk) -> None:
    done = run(Store(desk.project, desk.state))
    claim(done)
    attempt(done, end=end())
    said = desk.type("cancel")
    assert said.status == 0 and said.out.startswith("Not cancelled 101: ")


def test_the_job_of_the_name_is_meant_and_not_another_of_that_number(desk: Desk) -> None:
    store = Store(desk.project, desk.state)
    for number, name in ((1, "old"), (2, "new")):
        one = submitted(store, number, "101", cluster="desk", user=ME, name=name)
    desk.slurm.answer("squeue", rows(run_row(one, u=ME)))
    desk.type("cancel", "old")
    assert desk.slurm.count("scancel") == 0
    assert desk.type("cancel", "new").out == "Cancelled 101\n"


def test_the_name_of_an_array_of_another_tool_means_all_its_tasks(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "9_1", "j": "arr", "u": ME}, {"i": "9_2", "j": "arr", "u": ME}))
    assert {one["job_id"] for one in desk.type("cancel", "arr", "--dry-run", "--json").data} == {"9_1", "9_2"}


def test_a_check_is_not_the_last_job(desk: Desk, runs: list[RunRecord]) -> None:
    submitted(Store(desk.project, desk.state), 4, cluster="desk", user=ME, name="check", what="check")
    assert shown(desk) == ["103"]


@pytest.mark.parametrize("name", ["last", "123", "L1", "20261121-034501-k3v7qa"])
def test_a_job_name_that_no_command_could_find_is_refused(desk: Desk, name: str) -> None:
    message, _ = refused(desk, "submit", "--job-name", name, "--", "train.py")
    assert f"--job-name {name!r} is reserved" in message


@pytest.fixture
def named(desk: Desk) -> list[RunRecord]:
    """Runs of one name: 101 and 102 are active, 103 has ended."""
    store = Store(desk.project, desk.state)
    found = [submitted(store, number, cluster="desk", user=ME, name="lm") for number in (1, 2, 3)]
    claim(found[2])
    attempt(found[2], end=end(3))
    desk.slurm.answer("squeue", rows(run_row(found[0], u=ME), run_row(found[1], u=ME, T="PENDING")))
    return found


@pytest.mark.parametrize("verb", [("cancel", "lm"), ("exec", "lm", "--", "true"), ("wait", "lm"), ("logs", "lm", "-f")])
@pytest.mark.usefixtures("named")
def test_of_several_active_jobs_with_a_name_none_is_guessed(desk: Desk, verb: tuple[str, ...]) -> None:
    said = desk.type(*verb)
    assert (said.status, said.out) == (2, "")
    assert said.err == "clusterrun: 2 jobs are named lm: 101, 102\n  hint: give one of these ids\n"
    assert desk.slurm.count("scancel") == 0


def test_on_a_terminal_the_user_chooses_one_of_them(
    desk: Desk, named: list[RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard("102\n"))
    said = desk.type("cancel", "lm")
    assert said.out == "Cancelled 102\n" and "Which one (101, 102)" in said.err


@pytest.mark.parametrize("word", ["lm", "last"])
def test_an_active_job_is_meant_before_a_newer_one_that_has_ended(
    desk: Desk, named: list[RunRecord], word: str
) -> None:
    desk.slurm.answer("squeue", rows(run_row(named[1], u=ME)))
    assert shown(desk, word) == ["103"]
    assert desk.type("cancel", word).out == "Cancelled 102\n"


def test_last_says_which_job_it_means_if_a_later_one_has_ended(desk: Desk, named: list[RunRecord]) -> None:
    assert "last: job 103 is not active; using job 102 (lm)" in desk.type("cancel", "last", "--dry-run").err


@pytest.mark.parametrize("words", [("wait", "last"), ("wait",), ("logs", "-f")])
def test_wait_and_logs_follow_the_newest_submission_even_if_it_has_ended(
    desk: Desk, named: list[RunRecord], words: tuple[str, ...]
) -> None:
    """Submit, then wait for the last: the new job may have ended by then, while an older one is still running."""
    folder = desk.slurm.folder
    (folder / "squeue").write_text(f"#!/bin/sh\ncd {folder}; cat squeue.out; : >squeue.out\n")  # the older ends later
    desk.slurm.answer("squeue", rows(run_row(named[1], u=ME)))
    out, _ = log_paths(named[2].logs, JobId.parse("103"))
    out.parent.mkdir(exist_ok=True)
    out.write_text("")
    said = desk.type(*words)
    assert said.status == 1 and "last: job 103 (lm)" in said.err and "job 103: FAILED" in said.err


@pytest.fixture
def doubtful(desk: Desk) -> RunRecord:
    """A run whose submission was interrupted, newer than the active job 101 of the same name."""
    store = Store(desk.project, desk.state)
    older = submitted(store, 1, cluster="desk", user=ME, name="lm")
    desk.slurm.answer("squeue", rows(run_row(older, u=ME)))
    run = make_run(desk.project, 2, cluster="desk", user=ME, name="lm")
    store.stage(run, {"version": 1}, "#!/bin/bash\n")
    return run


@pytest.mark.parametrize("words", [("last", "--yes"), ("--yes",)])
def test_no_older_job_stands_for_the_last_one_while_its_submission_is_in_doubt(
    desk: Desk, doubtful: RunRecord, words: tuple[str, ...]
) -> None:
    said = desk.type("cancel", *words)
    assert said.out.startswith(f"Cancelled {doubtful.run_id}: the run was never submitted")
    assert desk.slurm.count("scancel") == 0


def test_a_name_may_mean_a_run_whose_submission_is_in_doubt(desk: Desk, doubtful: RunRecord) -> None:
    said = desk.type("cancel", "lm")
    assert said.status == 2 and f"2 jobs are named lm: 101, {doubtful.run_id}" in said.err
    assert desk.slurm.count("scancel") == 0


@pytest.mark.usefixtures("named")
def test_a_name_without_an_active_job_means_the_newest(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows())
    assert desk.type("wait", "lm").err.count("job 103: FAILED") == 1
