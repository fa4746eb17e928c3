"""`clusterrun logs`: what is asked and refused, and what is said beside the lines."""

from __future__ import annotations

import os
import pwd
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.cli import logfiles
from clusterrun.cli.follow import PATIENCE, StateNotes, format_attempts
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler.slurm.sacct import SEP
from clusterrun.state.reconcile import RunState
from clusterrun.terminal.ui import Ui
from tests.support.command_desk import Desk
from tests.support.run_records import attempt, claim, end, submitted

OUT = "0: loss 3\n1: loss 4\n2: loss 5\n3: loss 6\n"
START = {"ranks": [{"rank": r, "node": f"node{1 + r // 2}", "task": r} for r in range(4)], "time": 1_795_000_100}


@pytest.fixture
def run(desk: Desk) -> RunRecord:
    """A run of four ranks on two nodes that is over and left its logs, and a clock beside them."""
    run = submitted(Store(desk.project, desk.state), cluster="desk", workers_per_node=2)
    claim(run)
    folder = attempt(run, start=START, end=end())
    desk.write("logs/train_101.out", OUT)
    desk.write("logs/train_101.err", "1: careful\n")
    now = time.time()
    (folder / "log-clock").write_text(f"{now - 7200:.2f} 0 0\n{now - 60:.2f} {len(OUT) - 10} 0\n")
    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rank", "3-1"], "3-1 is backwards"),
        (["--rank", "x"], "is not a valid rank"),
        (["--rank", "4"], "no rank 4"),
        (["--since", "banana"], "not a valid time"),
        (["--grep", "a(b"], "--grep"),
        (["--exclude", "a(b"], "--exclude"),
        (["--node", "node9"], "no node node9"),
        (["--json", "-f"], "cannot be combined"),
        (["--json", "--raw"], "cannot be combined"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(desk: Desk, run: RunRecord, words: list[str], says: str) -> None:
    said = desk.type("logs", "101", *words)
    assert (said.status, said.out.strip() if "--json" not in words else "") == (2, "")
    if "--json" not in words:
        line, hint = said.err.splitlines()
        assert says in line and hint.strip().startswith("hint:")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--rank", "0-1,3", "--stream", "out"], "0: loss 3\n1: loss 4\n3: loss 6\n"),
        (["--rank", "2", "--rank", "0", "--stream", "out"], "0: loss 3\n2: loss 5\n"),
        (["--node", "node2", "--stream", "out"], "2: loss 5\n3: loss 6\n"),
        (["--grep", "loss [45]"], "1: loss 4\n2: loss 5\n"),
        (["--exclude", "loss [356]"], "1: loss 4\n1! careful\n"),
        (["--grep", "loss", "--exclude", "[45]$", "-n", "1"], "3: loss 6\n"),
        (["--exclude", "4", "--rank", "1", "--raw"], "1: careful\n"),
        (["-n", "1"], "1! careful\n"),
        (["--stream", "err"], "1! careful\n"),
        (["--since", "30m", "--stream", "out"], OUT),
        (["--since", "30s", "--stream", "out"], "3: loss 6\n"),
    ],
)
def test_lines_are_chosen(desk: Desk, run: RunRecord, words: list[str], shown: str) -> None:
    said = desk.type("logs", "101", *words)
    assert (said.status, said.err) == (0, "")
    assert said.out == shown


def test_reading_asks_slurm_nothing(desk: Desk, run: RunRecord) -> None:
    desk.type("logs", "101")
    assert desk.slurm.count("squeue") == desk.slurm.count("sacct") == 0


def test_json_tells_stream_rank_and_text(desk: Desk, run: RunRecord) -> None:
    assert desk.type("logs", "101", "--json", "--rank", "1").data == [
        {"stream": "out", "rank": 1, "text": "loss 4"},
        {"stream": "err", "rank": 1, "text": "careful"},
    ]


def test_since_without_a_clock_is_refused_with_what_to_use(desk: Desk, run: RunRecord) -> None:
    for clock in run.run_dir.glob("attempts/*/log-clock"):
        clock.unlink()
    said = desk.type("logs", "101", "--since", "10m")
    assert said.status == 2 and "no timestamps" in said.err and "-n 200" in said.err


def test_a_pipe_gets_the_bytes_of_the_log(desk: Desk, run: RunRecord) -> None:
    desk.write("logs/train_101.out", "0: \x1b[31mred\n")
    for words in ([], ["--raw"]):
        assert desk.type("logs", "101", "--stream", "out", *words).out == "0: \x1b[31mred\n"


def test_following_a_run_that_is_over_shows_all_and_ends_with_its_outcome(desk: Desk, run: RunRecord) -> None:
    said = desk.type("logs", "101", "-f", "--stream", "out")
    assert (said.status, said.out) == (0, OUT)
    assert "job 101: COMPLETED" in said.err
    assert desk.slurm.count("squeue") <= 1


def test_following_a_requeued_run_says_which_start_it_is(desk: Desk, run: RunRecord) -> None:
    attempt(run, end=end(143, due="NODE FAILURE", signal="TERM"))
    attempt(run, restart=1, end=end(restart=1))
    claim(run, restart=1)
    err = desk.type("logs", "101", "-f").err
    assert "the job is on attempt 1 (requeued after a node failure at " in err and err.count("attempt 1") == 1


def test_logs_that_come_long_after_the_end_are_waited_for(
    desk: Desk, run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = attempt(run, end=end(time=int(time.time())))
    (folder / "log-clock").unlink()
    text = {name: desk.project.joinpath("logs", name) for name in ("train_101.out", "train_101.err")}
    for path in text.values():
        path.rename(path.with_name(path.name + ".late"))
    note = Ui.note

    def come(ui: Ui, line: str) -> None:
        note(ui, line)
        if "waiting up to" in line:
            for path in text.values():
                path.with_name(path.name + ".late").rename(path)

    monkeypatch.setattr(Ui, "note", come)
    said = desk.type("logs", "101", "-f", "--stream", "out")
    assert (said.status, said.out) == (0, OUT)
    assert "waiting up to 75 s for its logs to appear" in said.err


def test_a_log_shorter_than_the_clock_saw_it_is_waited_for(desk: Desk, run: RunRecord) -> None:
    attempt(run, end=end(time=int(time.time())))
    log = desk.write("logs/train_101.out", OUT[:-10])
    os.utime(log, (1, 1))
    (folder,) = (run.run_dir / "attempts").iterdir()
    (folder / "log-clock").write_text(f"{time.time():.2f} {len(OUT)} 0\n")

    def append_rest() -> None:
        with log.open("a") as file:
            file.write(OUT[-10:])

    threading.Timer(4, append_rest).start()
    assert desk.type("logs", "101", "-f", "--stream", "out").out == OUT


def test_a_task_of_a_run_that_is_no_array_has_no_log(desk: Desk, run: RunRecord) -> None:
    for words in (["logs", "101_3"], ["logs", "-f", "101_3"]):
        said = desk.type(*words)
        assert said.status == 4 and "no such job: 101_3 (job 101 is not an array)" in said.err


def test_the_log_of_a_running_job_that_is_gone_is_not_said_to_come(desk: Desk) -> None:
    run = submitted(Store(desk.project, desk.state), cluster="desk")
    name = f"{run.name}.{run.submission.token[:8]}"
    desk.slurm.answer("squeue", squeue_row("101", "RUNNING").replace("theirs", name))
    said = desk.type("logs", "101")
    where = desk.project / "logs" / "train_101.out"
    assert (said.status, said.err) == (0, f"clusterrun: no log for job 101 (RUNNING): {where} does not exist\n")
    desk.slurm.answer("squeue", squeue_row("101", "PENDING", "Priority").replace("theirs", name))
    assert "no log yet: job 101 is PENDING (Priority)" in desk.type("logs", "101").err


class Told:
    """What is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_a_follower_is_told_once_that_the_log_is_not_there(tmp_path: Path) -> None:
    def job(state: str) -> RunState:
        return RunState(None, JobStatus(id=JobId("7"), state=state, outcome=outcome_of(state)))

    printed, log = Told(), tmp_path / "o.log"
    notes = StateNotes(cast("Ui", printed), JobId("7"))
    for now in range(60):
        notes.update([job("PENDING" if now < 30 else "RUNNING")], log, float(now))
        assert len(printed.notes) == 1 + (now >= 30 + PATIENCE), "a job opens its files a moment after it starts"
    assert printed.notes == ["job 7: PENDING", f"job 7 is RUNNING, but its log {log} does not exist yet; waiting"]
    quiet = Told()
    notes = StateNotes(cast("Ui", quiet), JobId("7"))
    for now in range(60):
        notes.update([job("RUNNING")], log if now < 2 else None, float(now))
    assert quiet.notes == []


def test_an_attempt_is_named_by_why_it_began(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("t.0.0", "t.0.1", "t.1.0", "t.2.0")]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "end.json").write_text('{"due": "JOB REQUEUE"}')
    (folders[2] / "end.json").write_text('{"due": "PREEMPTION", "time": "x"}')
    assert format_attempts(folders) == [
        "attempt 0, launch 1",
        "attempt 1 (requeued)",
        "attempt 2 (requeued after a preemption)",
    ]


# -- another tool's jobs -----------------------------------------------------------------------------------------------


def squeue_row(job: str, state: str = "COMPLETED", reason: str = "None") -> str:
    raw = job.partition("_")[0]
    cells = [job, raw, state, reason, "ann", "gpu", "node1", "1", "0:10", "1:00:00", "1795000000", "1795000010",
             "1795000020", "/home/ann/job.sh", "theirs"]  # fmt: skip
    return SEP.join(cells) + "\n"


def scontrol_block(job: str, out: Path, err: Path) -> str:
    raw, _, task = job.partition("_")
    array = f" ArrayJobId={raw} ArrayTaskId={task}" if task else ""
    return (
        f"JobId={int(raw) + int(task or 0)}{array} JobName=theirs\n   UserId=ann(1000) GroupId=ann(1000)\n"
        f"   JobState=COMPLETED Reason=None\n   StdErr={err}\n   StdIn=/dev/null\n   StdOut={out}\n\n"
    )


def theirs(desk: Desk, jobs: dict[str, str], state: str = "COMPLETED") -> None:
    """Jobs of another tool, each with one file of this text."""
    blocks, rows = "", ""
    for job, text in jobs.items():
        path = desk.write(f"theirs/{job}.log", text)
        blocks += scontrol_block(job, path, path)
        rows += squeue_row(job, state)
    desk.type("list")  # the cluster's facts come from scontrol too: they are kept from here on
    desk.slurm.answer("scontrol", blocks)
    desk.slurm.answer("squeue", rows)


def test_another_tools_job_is_read_once_where_both_streams_share_a_file(desk: Desk) -> None:
    theirs(desk, {"7": "hello\n"})
    said = desk.type("logs", "7")
    assert (said.status, said.out) == (0, "hello\n")


def test_its_err_cannot_be_told_apart_then(desk: Desk) -> None:
    theirs(desk, {"7": "hello\n"})
    assert "stdout and stderr to one file" in desk.type("logs", "7", "--stream", "err").err


def test_its_ranks_are_not_guessed(desk: Desk) -> None:
    theirs(desk, {"7": "hello\n"})
    assert "this log does not show which rank wrote each line" in desk.type("logs", "7", "--rank", "0").err
    theirs(desk, {"7": "0: hello\n1: you\n"})
    assert desk.type("logs", "7", "--rank", "1").out == "1: you\n"


def test_since_is_not_known_of_it(desk: Desk) -> None:
    theirs(desk, {"7": "hello\n"})
    said = desk.type("logs", "7", "--since", "10m")
    assert said.status == 2 and "no timestamps" in said.err


def test_an_array_is_shown_task_by_task_in_order(desk: Desk) -> None:
    theirs(desk, {"7_10": "ten\n", "7_2": "two\n"})
    assert desk.type("logs", "7").out == "7_2 two\n7_10 ten\n"
    assert desk.type("logs", "7_2").out == "two\n"
    assert [line["job_id"] for line in desk.type("logs", "7", "--json").data] == ["7_2", "7_10"]


def test_following_an_array_shows_each_task_and_counts_the_ends(desk: Desk) -> None:
    theirs(desk, {f"7_{n}": f"line of {n}\n" for n in range(50)})
    said = desk.type("logs", "7", "-f")
    assert said.status == 0 and "job 7: 50 COMPLETED" in said.err
    assert sorted(said.out.splitlines()) == sorted(f"7_{n} line of {n}" for n in range(50))


def test_a_job_whose_files_nobody_remembers_is_told_so(desk: Desk) -> None:
    theirs(desk, {"7": "hello\n"})
    desk.slurm.answer("scontrol", err="slurm_load_jobs error: Invalid job id specified", status=1)
    said = desk.type("logs", "7")
    assert said.status == 4 and "no longer knows the paths of its logs" in said.err
    assert "not submitted by" not in said.err, "its record may be another's, or gone"


def test_where_the_log_is_missing_is_said_at_the_end_too(desk: Desk) -> None:
    theirs(desk, {"7": ""}, "FAILED")
    (desk.project / "theirs" / "7.log").unlink()
    said = desk.type("logs", "-f", "7")
    assert said.status == 1 and f"no log for job 7: {desk.project}/theirs/7.log does not exist" in said.err


def test_whose_file_cannot_be_read_is_said(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("not root: no other user at hand")  # whose file it is cannot be changed then; CI is root
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "theirs.log").write_text("secret")
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        with pytest.raises(RequestError, match=r"theirs\.log of job 7 cannot be read: /\S+ belongs to root, and you"):
            logfiles.check_readable(closed / "theirs.log", JobId("7"))
    finally:
        os.seteuid(0)
