"""Checks before a submission: what they say, and that no fault of a check stops a submission."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Task
from clusterrun.preflight import checks, patience
from clusterrun.submit.request import SubmitArgs
from tests.support.command_desk import Desk

JOB = ("--nodes", "2", "--gpus-per-node", "4", "--time", "12:00:00", "--", "train.py")
OK = "clusterrun: OK: 2 nodes x 4 GPUs x 12 h = 96 GPU-hours; Slurm expects the job to start now on node[1-2]\n"


def submit(desk: Desk, *words: str) -> tuple[int, str, int]:
    """The exit status, the notes, and how many jobs were submitted."""
    desk.slurm.answer("sbatch", "123\n")
    said = desk.type("submit", *words)
    return said.status, said.err, desk.slurm.count("sbatch")


def test_one_line_if_all_is_well(desk: Desk) -> None:
    assert submit(desk, *JOB) == (0, OK, 1)


def test_a_refusal_of_slurms_estimate_stops_the_submission(desk: Desk) -> None:
    desk.slurm.estimate("error: Batch job submission failed: Invalid feature specification")
    status, err, sent = submit(desk, *JOB)
    assert (status, sent) == (2, 0) and desk.files().keys() == {"train.py"}
    assert "Slurm would refuse this job: Batch job submission failed: Invalid feature specification" in err
    assert "  hint: see the features with" in err


def test_no_check_skips_all(desk: Desk) -> None:
    desk.slurm.estimate("error: Invalid feature specification")
    assert submit(desk, "--no-check", *JOB) == (0, "", 1)
    status, err, sent = submit(desk, "--no-check", "lm", "--set", "stepz=4")
    assert (status, err, sent) == (0, "", 2)


@pytest.mark.parametrize("name", ["scontrol", "sbatch"])
def test_a_slurm_that_hangs_blocks_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    desk.type("list")  # so that the cluster's facts are in the cache
    monkeypatch.setattr(checks, "LIMIT", 0.3)
    path = desk.slurm.folder / name
    real = path.with_name(f"real-{name}")
    path.rename(real)
    hangs = 'case "$*" in *--test-only*|*show*) exec /bin/sleep 1000;; esac'
    path.write_text(f'#!/bin/bash\n{hangs}\nexec -a {name} {real} "$@"\n')
    path.chmod(0o755)
    real.with_name(f"real-{name}.out").write_text("123\n")
    status, err, _ = submit(desk, *JOB)
    assert status == 0 and "OK" not in err, err
    (line,) = [line for line in err.splitlines() if "not checked" in line]
    no_limits = "the cluster's limits (could not get the list of nodes from Slurm)"
    what = no_limits if name == "scontrol" else "the estimated start ("
    assert line.startswith("clusterrun: not checked: ") and what in line, err


def test_sacctmgr_is_run_once_in_ten_minutes_and_again_before_a_refusal(desk: Desk) -> None:
    counts = []
    for estimate in ("", "", "error: Batch job submission failed: Invalid feature specification"):
        if estimate:
            desk.slurm.estimate(estimate)
        submit(desk, *JOB)
        counts.append(desk.slurm.count("sacctmgr"))
    assert counts == [2, 2, 4]


def test_an_answer_that_is_rubbish_blocks_nothing(desk: Desk) -> None:
    desk.slurm.answer("scontrol", "\x00NodeName==x\nPartitionName=\n\n  ReservationName", err="?", status=0)
    desk.slurm.answer("sacctmgr", "||||\n", status=0)
    status, err, sent = submit(desk, *JOB)
    assert (status, sent) == (0, 1), err


def test_a_local_job_has_its_settings_checked_and_no_queue(desk: Desk) -> None:
    said = desk.type("submit", "lm", "--scheduler", "local", "--dry-run", "--set", "stepz=4")
    assert said.status == 2 and "lm: unknown key 'stepz' (did you mean 'steps'?)" in said.err
    said = desk.type("submit", "lm", "--scheduler", "local", "--dry-run", "--set", "steps=4")
    assert said.status == 0 and "OK" not in said.err


def test_settings_that_fail_on_the_node_are_refused_here(desk: Desk) -> None:
    desk.write("rows.csv", "a,b\n1,2\n")
    refused = {
        "steps=abc": "steps must be a whole number, got 'abc'",
        "global_batch_size=5": "cannot be split evenly over 2 ranks",
        "data=no.jsonl": "no such file: no.jsonl",
        "data=rows.csv": "no column 'text' in rows.csv; columns: a, b",
        "push_to_hub=me/model": "HF_TOKEN is not set",
    }
    for setting, words in refused.items():
        said = desk.type("submit", "lm", "--nodes", "2", "--gpus-per-node", "1", "--set", setting)
        assert said.status == 2 and words in said.err and desk.slurm.count("sbatch") == 0, said
    desk.set(HF_TOKEN="hf_x")
    assert desk.type("submit", "lm", "--dry-run", "--set", "push_to_hub=me/model").status == 0


def test_what_is_learned_as_something_else_only_warns(desk: Desk) -> None:
    desk.write("rows.csv", "text,n,kind\none,1,a\ntwo,2,b\n")
    words = ("--set", "data=rows.csv", "--set", "target_cols=kind", "--set", 'text_cols=["text","n"]')
    said = desk.type("submit", "classify", "--dry-run", *words)
    assert said.status == 0, said
    assert "clusterrun: warning: classify: data: text column 'n' holds numbers, which are read as words" in said.err


def test_what_setup_may_provide_only_warns(desk: Desk) -> None:
    said = desk.type("submit", "lm", "--dry-run", "--setup", "cp /data/x.txt .", "--set", "data=x.txt")
    assert said.status == 0 and "warning: lm: data: no such file: x.txt" in said.err
    said = desk.type("submit", "lm", "--dry-run", "--setup", "true", "--set", "steps=abc")
    assert said.status == 2, "no setup mends a wrong value"


def test_a_python_that_cannot_check_says_so(desk: Desk) -> None:
    old = desk.write("old", '#!/bin/sh\ncase "$*" in *check-settings*) echo "SyntaxError: old" >&2; exit 1;; esac\n')
    old.chmod(0o755)
    status, err, sent = submit(desk, "lm", "--python", str(old))
    assert (status, sent) == (0, 1) and "not checked: settings (SyntaxError: old)" in err


@pytest.mark.parametrize("end", ["exit 1", "exit 134", "exec sleep 60"])
def test_an_answer_about_settings_counts_however_the_program_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(patience, "MOST", 4.0 if "sleep" in end else 20.0)
    monkeypatch.setattr(checks, "LIMIT", 4.0 if "sleep" in end else 20.0)
    answer = '{"wrong": "", "missing": ["data: set target_cols"], "doubts": []}'
    odd = desk.write(
        "odd", f"#!/bin/sh\ncase \"$*\" in *check-settings*) echo '{answer}'; echo late >&2; {end};; esac\n"
    )
    odd.chmod(0o755)
    status, err, sent = submit(desk, "lm", "--python", str(odd))
    assert (status, sent) == (2, 0) and "lm: data: set target_cols" in err and "not checked" not in err


def stand_in(desk: Desk, act: str) -> Path:
    """A Python that acts in another way when it is to check settings."""
    path = desk.write("slow", f'#!/bin/sh\ncase "$*" in *check-settings*) {act};; esac\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_python_that_starts_slowly_is_waited_for_with_a_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LIMIT", 0.2)
    monkeypatch.setattr(patience, "MOST", 60.0)
    slow, said = stand_in(desk, "while [ ! -e told ]; do sleep 0.05; done"), []

    def notify(line: str) -> None:
        said.append(line)
        desk.write("told", "")

    flags = {"python": Value(str(slow), "test"), "set": Value({"steps": "abc"}, "test")}
    cluster = Cluster(notify=notify)
    with pytest.raises(RequestError, match="steps must be a whole number"):
        cluster.check(cluster.plan(SubmitArgs(work=Task("lm"), flags=flags)))
    assert said == [f"waiting up to 60 s for {slow} to check the settings"]


def test_a_python_that_does_not_answer_is_waited_for_once_a_day(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LIMIT", 0.3)
    monkeypatch.setattr(patience, "MOST", 4.0)
    words = ("lm", "--dry-run", "--python", str(stand_in(desk, "exec sleep 1000")))
    waited = [("waiting up to" in desk.type("submit", *words).err) for _ in range(2)]
    assert waited == [True, False]
    assert "not checked: settings (" in desk.type("submit", *words).err
    for mark in (desk.state / "unanswered").iterdir():
        os.utime(mark, (0, 0))
    assert "waiting up to" in desk.type("submit", *words).err


def test_an_environment_that_answers_again_has_the_full_time_again(tmp_path: Path) -> None:
    slow = patience.Patience(tmp_path, "python", 2.0)
    slow.gave_up()
    again = patience.Patience(tmp_path, "python", 2.0)
    assert (slow.seconds, again.seconds) == (patience.MOST, 2.0)
    assert patience.Patience(tmp_path, "another", 2.0).seconds == patience.MOST
    again.answered()
    assert patience.Patience(tmp_path, "python", 2.0).seconds == patience.MOST


def test_the_answers_about_a_sweep_that_came_before_the_limit_count(desk: Desk) -> None:
    answer = '{"wrong": "", "missing": [], "doubts": []}'
    odd = desk.write("odd", f"#!/bin/sh\ncase \"$*\" in *check-settings*) echo '{answer}'; exit 1;; esac\n")
    odd.chmod(0o755)
    said = desk.type("sweep", "lm", "--grid", "seed=0..2", "--dry-run", "--python", str(odd))
    assert said.status == 0 and "not checked: the settings of 1 task" in said.err


def test_a_syntax_error_in_the_script_is_found_by_the_jobs_python(desk: Desk) -> None:
    desk.write("bad.py", "import os\nif True print(1)\n")
    status, err, sent = submit(desk, "--gpus-per-node", "1", "--", "bad.py")
    assert (status, sent) == (2, 0) and "bad.py:2: " in err


def test_a_log_folder_that_cannot_be_written_is_named(desk: Desk) -> None:
    desk.write("logs", "a file\n")
    said = desk.type("submit", "--dry-run", *JOB)
    assert said.status == 2 and f"cannot store records and logs in {desk.project}/logs: not a folder" in said.err
