"""`list`, `status` and `wait` over answers that a test sets: what is shown, and how often Slurm is asked."""

from __future__ import annotations

import json
import os
import re
import time
from pwd import getpwuid

import pytest

from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import training_progress
from clusterrun.run_folder.training_progress import TrainingProgress
from clusterrun.scheduler.slurm import cache
from clusterrun.scheduler.slurm.sacct import _SACCT
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.state import reconcile
from clusterrun.state.show import LIST_COLUMNS
from tests.support.command_desk import Desk
from tests.support.listed_jobs import SILENT, rows, run, run_row
from tests.support.patience import HUNG
from tests.support.rank_files import put_end, put_progress
from tests.support.run_records import attempt, claim, end, submitted, with_submission


@pytest.fixture
def store(desk: Desk) -> Store:
    return Store(desk.project, desk.state)


def trained(one: RunRecord) -> None:
    claim(one)
    folder = attempt(one)
    now = time.time()
    for rank in range(8):
        record = {
            "rank": rank,
            "node": "n1",
            "time": now - rank,
            "phase": "training",
            "step": 120 - (rank == 3),
            "steps": 1000,
            "interval": HUNG,
        }
        put_progress(folder, rank, record)
    row = {"step": 120, "time": now - 4, "loss": 2.34567, "tokens_per_second": 45_100.4}
    (one.run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")


def test_columns_are_chosen_by_their_names(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "7", "j": "mine"}))
    assert desk.type("list", "--columns", "state,JobID,name").out.splitlines() == [
        "STATE\tJOBID\tNAME",
        "RUNNING\t7\tmine",
    ]
    assert "did you mean progress?" in desk.type("list", "--columns", "jobid,progres").err
    assert desk.type("list", "--columns", "jobid", "--json").status == 2


def test_how_far_a_training_is_and_how_long_it_still_takes(desk: Desk, store: Store) -> None:
    one, now = run(store), time.time()
    trained(one)
    reached = TrainingProgress(125, now - 4, 1000, 9.0, warm_step=5, warm_step_at=now - 604)
    training_progress.write(run_record.newest_attempt(one) or one.run_dir, reached)
    desk.slurm.answer("squeue", rows(run_row(one, M="10:04", l="1:00:00")))
    said = desk.type("status", "101").out
    (age,) = re.findall(
        r"training  step 125/1000, 12 %, 1h 13m left, loss 2\.346, 45,100 tokens/s, (\d+) s ago\n", said
    )
    assert 4 <= int(age) <= time.time() - now + 4
    short = "the training will not finish before the time limit: 23m short; --total-time continues it in a next job"
    assert f"limit  {short}\n" in said
    (listed,) = desk.type("list").out.splitlines()[1:]
    assert "12 %, 1h 13m left" in listed.split("\t")
    (data,) = desk.type("list", "--json").data
    assert data["metrics"]["steps"] == 1000 and 4300 < data["seconds_left"] < 4400


def test_with_total_time_a_next_job_continues_what_does_not_finish(desk: Desk, store: Store) -> None:
    one, now = run(store, sources={"total-time": ("24:00:00", "--total-time")}), time.time()
    reached = TrainingProgress(125, now - 4, 1000, 9.0, warm_step=5, warm_step_at=now - 604)
    training_progress.write(attempt(one), reached)
    desk.slurm.answer("squeue", rows(run_row(one, M="10:04", l="1:00:00")))
    assert "23m short; a next job continues it\n" in desk.type("status", "101").out


def test_runs_and_other_jobs_in_one_table_by_one_squeue(desk: Desk, store: Store) -> None:
    one = run(store)
    trained(one)
    now = str(int(time.time()))
    desk.slurm.answer("squeue", rows(run_row(one), {"i": "7", "j": "theirs", "V": now}, {"i": "8", "T": "COMPLETED"}))
    said = desk.type("list")
    assert said.status == 0, said
    heading, ours, other = (line.split("\t") for line in said.out.splitlines())
    assert heading == [column.name for column in LIST_COLUMNS], "in a pipe too, as squeue does"
    assert len(ours) == len(other) == len(heading)
    assert ours[:3] == ["101", "train1", "RUNNING"] and ours[7:10] == ["120", "2.346", "45,100"]
    assert other[:3] == ["7", "theirs", "RUNNING"] and other[7] == ""
    data = desk.type("list", "--json").data
    assert [row["run_id"] for row in data] == [one.run_id, None]
    assert data[0]["metrics"]["step"] == 120 and data[1]["metrics"] is None
    assert [call[0] for call in desk.slurm.calls if call[0] != "scontrol"] == ["squeue", "squeue"]


def test_arrays_are_collapsed_or_by_task(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "5_[2-99%4]", "T": "PENDING"}, {"i": "5_0"}, {"i": "5_1"}))
    assert [line.split("\t")[0] for line in desk.type("list").out.splitlines()[1:]] == ["5_[0-1]", "5_[2-99%4]"]
    assert [line.split("\t")[0] for line in desk.type("list", "--expand").out.splitlines()[1:]] == [
        f"5_{task}" for task in range(100)
    ]
    data = desk.type("list", "--json").data
    assert [(row["job_id"], row["tasks"], row["task_count"]) for row in data] == [("5", "0-1", 2), ("5", "2-99%4", 98)]


def test_a_finished_run_is_asked_of_no_accounting_again(desk: Desk, store: Store) -> None:
    one = run(store)
    name = f"{one.name}.{one.submission.token[:8]}"
    cells = {"JobID": "101", "State": "FAILED", "ExitCode": "3:0", "End": str(int(time.time())), "JobName": name}
    desk.slurm.answer("sacct", SEP.join(cells.get(column, "1") for column in _SACCT) + "\n")
    (row,) = desk.type("list", "--all", "--json").data
    assert (row["state"], row["exit_status"]) == ("FAILED", 3) and desk.slurm.count("sacct") == 1
    for words in (["list"], ["list", "--all"], ["list", "--state", "F"], ["status", "101"], ["wait", "101"]):
        desk.type(*words)
    assert desk.slurm.count("sacct") == 1 and desk.slurm.count("squeue") == 6
    assert desk.type("list").out == "" and "\n101\ttrain1\tFAILED" in desk.type("list", "--state", "F").out


def test_a_finished_run_that_was_started_again_is_listed(desk: Desk, store: Store) -> None:
    one = run(store)
    claim(one)
    attempt(one, end=end(1))
    assert desk.type("list").out == ""
    assert desk.type("list").out == ""
    desk.slurm.answer("squeue", rows(run_row(one, o=f"{one.run_dir}/script.sh")))
    (row,) = desk.type("list", "--json").data
    assert (row["run_id"], row["state"]) == (one.run_id, "RUNNING")


def test_a_job_that_waits_has_not_started(desk: Desk) -> None:
    later = {"i": "7", "T": "PENDING", "S": str(int(time.time()) + 600)}
    desk.slurm.answer("squeue", rows({**later, "r": "Priority"}))
    said = desk.type("status", "7")
    assert "  started" not in said.out and re.search(
        r"^    start  Slurm expects the job to start at 20.*, in \d+ min$", said.out, re.M
    )
    assert desk.type("status", "7", "--json").data[0]["started"] is None
    desk.slurm.answer("squeue", rows({**later, "r": "JobHeldUser"}))
    assert "expects" not in desk.type("status", "7").out, "it starts when somebody releases it, and not then"


def test_a_silent_controller_changes_no_state(desk: Desk, store: Store) -> None:
    one, never_seen = run(store, 1), run(store, 2)
    desk.slurm.answer("squeue", rows(run_row(one), {"i": "7", "T": "PENDING", "r": "Priority"}))
    desk.type("list")
    desk.slurm.answer("squeue", **SILENT)
    said = desk.type("list", "--json")
    assert said.status == 0 and said.err.count("Unable to contact") == 1
    told = {row["job_id"]: row for row in said.data}
    assert {job: row["state"] for job, row in told.items()} == {"101": "RUNNING", "102": "UNKNOWN", "7": "PENDING"}
    assert time.time() - told["101"]["as_of"] < 60 and told["102"]["as_of"] is None
    said = desk.type("status", "101", "7")
    assert said.status == 75 and said.out.count("s ago: squeue: slurm_load_jobs error: Unable to contact") == 2
    assert "as of" in desk.type("list").out
    refused = desk.type("cancel", "101")
    assert refused.status == 3 and desk.slurm.count("scancel") == 0, "what may have changed is not cancelled"
    assert never_seen.submission.final is None


def test_what_was_last_known_is_kept_for_its_owner_alone(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "7"}))
    desk.type("list")
    (kept,) = (desk.state / "clusters").glob("*.squeue")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_an_answer_that_a_version_with_other_fields_has_cached_is_not_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.slurm.answer("squeue", rows({"i": "7"}))
    with monkeypatch.context() as other:
        other.setattr(cache, "_SUFFIX", ".other.squeue")
        desk.type("list")
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller", status=1)
    assert "7" not in desk.type("list").out.split()


def test_status_in_full(desk: Desk, store: Store) -> None:
    one, began = run(store), time.time()
    trained(one)
    desk.slurm.answer("squeue", rows(run_row(one, N="n[1-2]")))
    said = desk.type("status", "101")
    assert said.status == 0
    (age,) = re.findall(r"training  step 120, loss 2\.346, 45,100 tokens/s, (\d+) s ago\n", said.out)
    (heartbeat,) = re.findall(r"8 ranks training, last heartbeat (\d+) s ago", said.out)
    passed = time.time() - began
    assert 4 <= int(age) <= 4 + passed and 7 <= int(heartbeat) <= 7 + passed
    assert "next  clusterrun logs 101 -f" in said.out and "submitted  " in said.out
    (data,) = desk.type("status", "101", "--json").data
    assert len(data["ranks"]) == 8 and data["first_failure"] is None and data["metrics"]["loss"] == 2.34567


@pytest.mark.parametrize(("joined", "sources", "shown"), [
    (False, {}, True), (True, {}, False), (None, {}, False), (False, {"independent": (True, "--independent")}, False),
])  # fmt: skip
def test_status_shows_ranks_that_never_met(
    desk: Desk, store: Store, joined: bool | None, sources: dict, shown: bool
) -> None:
    one = submitted(store, cluster="desk", user=getpwuid(os.getuid()).pw_name, sources=sources)
    claim(one)
    folder = attempt(one, end=end(0))
    put_end(folder, 0, {"rank": 0, "status": 0, "any_joined_group": joined})
    said = desk.type("status", "101")
    assert ("group  no rank used a process group: the 8 ranks ran as separate programs" in said.out) == shown, said.out
    (data,) = desk.type("status", "101", "--json").data
    assert data["joined_group"] is joined and data["state"] == "COMPLETED"


OWN_WORLDS = {0: "a world of its own by torchrun, of 2 ranks", 5: "a world of its own by torchrun, of 2 ranks"}
INDEPENDENT = {"independent": (True, "--independent")}


@pytest.mark.parametrize(("worlds", "sources", "shown"), [
    (OWN_WORLDS, {}, True), ({0: OWN_WORLDS[0]}, {}, False), (OWN_WORLDS, INDEPENDENT, False),
    ({0: 1, 1: [2]}, {}, False),
])  # fmt: skip
def test_status_and_why_show_worlds_that_ranks_start_each(
    desk: Desk, store: Store, worlds: dict, sources: dict, shown: bool
) -> None:
    one = submitted(store, cluster="desk", user=getpwuid(os.getuid()).pw_name, sources=sources)
    claim(one)
    folder = attempt(one)
    for rank in range(8):
        put_progress(folder, rank, {"rank": rank, "time": time.time(), "own_world": worlds.get(rank)})
    line = f"not train together: 2 of 8 ranks {{}} started {OWN_WORLDS[0]}"
    desk.slurm.answer("squeue", rows(run_row(one, N="n[1-2]")))
    for verb in ("status", "why"):
        assert (f"the ranks do {line.format('have')}" in desk.type(verb, "101").out) == shown
    assert ("--launcher none" in desk.type("why", "101").out) == shown
    (data,) = desk.type("status", "101", "--json").data
    assert (data["ranks"][5]["own_world"] is not None) == (5 in worlds)
    (folder / "end.json").write_text(json.dumps(end(1)))
    desk.slurm.answer("squeue", rows())
    for verb in ("status", "why"):
        assert (f"the ranks did {line.format('had')}" in desk.type(verb, "101").out) == shown


def test_status_says_a_reason_in_words(desk: Desk, store: Store) -> None:
    one = run(store)
    desk.slurm.answer("squeue", rows(run_row(one, T="PENDING", r="Dependency", N="")))
    said = desk.type("status", "101")
    (line,) = [line for line in said.out.splitlines() if line.startswith("   reason")]
    assert line.startswith("   reason  Dependency: ") and "clusterrun why 101" in said.out
    (data,) = desk.type("status", "101", "--json").data
    assert data["reason"] == "Dependency" and data["reason_meaning"]
    desk.slurm.answer("squeue", rows(run_row(one, T="PENDING", r="Bogus\x1b[31m", N="")))
    assert "   reason  Bogus\\x1b[31m\n" in desk.type("status", "101").out


def test_odd_bytes_in_the_queue_harm_nobody(desk: Desk) -> None:
    path = desk.slurm.folder / "squeue.out"
    good = rows({"i": "7", "j": "x\x1b]0;t\x07|é"}).encode()
    path.write_bytes(b"\xff\xfe\x00 noise\n" + good.replace("é".encode(), b"\xff") + b"8" + b"\x1f" * 30 + b"\n\x1b[2J")
    (desk.slurm.folder / "squeue").write_text(f'#!/bin/sh\ncat "{path}"\n')
    said = desk.type("list")
    assert said.status == 0 and "\x1b" not in said.out and r"x\x1b]0;t\x07|\xff" in said.out


@pytest.mark.parametrize(
    "words", [["list", "--watch", "--json"], ["list", "--since", "x"], ["list", "--state", "a b"],
              ["status", "7", "--watch", "--json"], ["status", "7", "--watch", "--best", "loss"],
              ["status", "7", "--max"]],
)  # fmt: skip
def test_what_is_refused(desk: Desk, words: list[str]) -> None:
    said = desk.type(*words)
    assert said.status == 2 and desk.slurm.calls == []


def test_wait_for_a_job_of_another_tool(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "7", "T": "COMPLETED"}))
    assert desk.type("wait", "7").status == 0
    desk.slurm.answer("squeue", rows({"i": "7_1", "T": "COMPLETED"}, {"i": "7_2", "T": "FAILED"}))
    said = desk.type("wait", "7", "--json")
    assert said.status == 1 and [row["state"] for row in said.data] == ["COMPLETED", "FAILED"]


def test_figures_of_a_run_that_is_over_are_kept_with_its_end(desk: Desk, store: Store) -> None:
    one = run(store)
    trained(one)
    attempt(one, end=end(0))
    desk.type("list", "--all")
    (one.run_dir / "metrics.jsonl").unlink()
    (data,) = desk.type("list", "--all", "--json").data
    assert data["metrics"]["step"] == 120 and data["outcome"] == "done"
    damaged = with_submission(one, final={"figures": {"step": "x"}})
    assert reconcile.state_from_records(store, damaged, "").figures is None


def test_a_run_of_another_cluster_counts_until_its_own_records_show_its_end(desk: Desk) -> None:
    store = Store(desk.project, desk.state)
    ended, running = submitted(store, 1, cluster="other"), submitted(store, 2, cluster="other")
    claim(ended)
    claim(running)
    assert "not shown: 2 jobs on other clusters (other)" in desk.type("list").err
    attempt(ended, end=end())
    for _ in range(2):
        assert "not shown: 1 job on other clusters (other)" in desk.type("list").err
    assert "not shown: 2 jobs on other clusters (other)" in desk.type("list", "--all").err


def test_end_marks_that_a_file_system_shows_late_correct_a_failure(desk: Desk) -> None:
    run = submitted(Store(desk.project, desk.state), cluster="desk", nodes=2, workers_per_node=1)
    claim(run)
    folder = attempt(run, end=end(1, unmarked=1, time=int(time.time()) - 5))
    put_end(folder, 0, {"rank": 0, "status": 0})
    assert json.loads(desk.type("status", "101", "--json").out)["data"][0]["state"] == "FAILED"
    put_end(folder, 1, {"rank": 1, "status": 0})
    assert json.loads(desk.type("status", "101", "--json").out)["data"][0]["state"] == "COMPLETED"


def test_a_claim_that_cannot_be_read_is_not_absence(desk: Desk) -> None:
    run = submitted(Store(desk.project, desk.state), cluster="desk")
    (run.run_dir / "claims" / run.submission.token / "owner").mkdir(parents=True)  # no file, so not a claim either
    state = json.loads(desk.type("status", "101", "--json").out)["data"][0]
    assert state["state"] == "UNKNOWN" and "its records cannot be read" in state["reason"]


# -- one cluster -------------------------------------------------------------------------------------------------------


def test_the_jobs_of_one_cluster_at_hand_are_listed_with_those_of_other_tools(desk: Desk, store: Store) -> None:
    here = run(store)
    submitted(store, 2, cluster="far")
    desk.slurm.answer("squeue", rows(run_row(here), {"i": "7", "j": "theirs"}))
    said = desk.type("list", "--json", "--cluster", "desk")
    assert (sorted(row["job_id"] for row in said.data), said.err) == (["101", "7"], "")


def test_the_jobs_of_a_cluster_out_of_reach_are_listed_by_their_records(desk: Desk, store: Store) -> None:
    run(store)
    far, ended = submitted(store, 2, cluster="far"), submitted(store, 3, cluster="far")
    attempt(ended, end=end())
    said = desk.type("list", "--json", "--cluster", "far")
    assert [(row["job_id"], row["outcome"]) for row in said.data] == [(str(far.job_id), "unknown")]
    far_away = "cannot reach cluster far from this shell; showing its jobs from clusterrun's records"
    assert said.err == f"clusterrun: {far_away}\n"
    assert desk.slurm.count("squeue") == 0
    every = desk.type("list", "--all", "--json", "--cluster", "far").data
    assert [row["outcome"] for row in every] == ["unknown", "done"]
    desk.without_slurm()
    assert [row["job_id"] for row in desk.type("list", "--json", "--cluster", "far").data] == [str(far.job_id)]


def test_an_unknown_cluster_is_refused_with_the_known_ones(desk: Desk, store: Store) -> None:
    submitted(store, 2, cluster="far")
    for words in ([], ["--watch"]):
        said = desk.type("list", "--cluster", "frr", *words)
        assert (said.status, said.out) == (2, "")
        assert said.err == "clusterrun: unknown cluster 'frr'\n  hint: known clusters: desk, far, local\n"
    for words in (["far", "--all-clusters"], [""]):
        assert desk.type("list", "--cluster", *words).status == 2, words


def test_a_nul_in_an_answer_of_slurm_is_a_character_like_others(desk: Desk, store: Store) -> None:
    script = f"{desk.project}/.clusterrun/runs/20261121-000009-k3v7qa\0/script.sh"
    desk.slurm.answer("squeue", rows({"i": "7", "j": "a\0b", "o": script, "u": "me\0", "N": "n1\0"}))
    for words in (["list"], ["status", "7"], ["why", "7"], ["logs", "7"], ["cancel", "--all", "--yes"]):
        said = desk.type(*words)
        assert "unexpected error" not in said.err, (words, said)
        assert words != ["list"] or r"a\x00b" in said.out


def test_a_flood_of_words_of_slurm_is_cut(desk: Desk, store: Store) -> None:
    desk.slurm.answer("squeue", err="squeue: error: " + "x" * 100_000 + "\n", status=1)
    run(store)
    for words in (["list"], ["list", "--json"]):
        said = desk.type(*words)
        assert len(said.out + said.err) < 10_000, words


def test_a_user_who_has_no_name_on_this_machine_sees_the_list(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    assert desk.type("list").status == 0
