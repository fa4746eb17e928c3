"""When a job goes back into the queue, with stand-ins for Slurm's commands: their answers decide."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.run_folder.claims import JobIdentity
from clusterrun.run_folder.rank_records import RankSlot
from clusterrun.worker.job import requeue, spares, supervisor
from tests.support.patience import HUNG
from tests.support.slurm_stand_ins import Slurm

TOKEN = "abcdefgh22345672"

pytestmark = pytest.mark.usefixtures("signals_as_before")


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "HURRY_S", HUNG)


@pytest.fixture
def make_job(tmp_path: Path, slurm: Slurm) -> Callable[..., supervisor.Job]:
    def make(*words: str, **files: Any) -> supervisor.Job:
        options, _ = supervisor.parse([*words, "--", "task", "lm"])
        job = supervisor.Job(options, 0o022)
        job.requeue = requeue.Requeue(job)
        job.identity, job.token = JobIdentity("lab", "5", "", 0), TOKEN
        job.run_dir = tmp_path / ".clusterrun" / "runs" / "r"
        job.attempt_dir = job.run_dir / "attempts" / f"{TOKEN}.0.0"
        job.attempt_dir.mkdir(parents=True)
        for name, content in files.items():
            (job.attempt_dir / name.replace("_", "-")).write_text(json.dumps(content))
        return job

    return make


CHAIN = ("--total-time", "3600", "--requeue", "--no-helper-job")
STOPPED = {"reason": "the time limit", "step": 7}


def in_seconds(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))


def test_a_task_that_stopped_before_its_limit_goes_back_into_the_queue(
    make_job: Callable[..., supervisor.Job], slurm: Slurm
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    assert job.requeue.after(85, came=False) == 85
    assert slurm.calls == ["scontrol requeue 5"] and job.due == "JOB REQUEUE"
    record = json.loads((job.attempt_dir / "requeue.json").read_text())
    assert (record["why"], record["successor"]) == ("the time limit is near", "")


def test_a_helper_job_is_submitted_after_the_requeue(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    job = make_job(*CHAIN[:3], stopped=STOPPED)
    job.requeue.after(85, came=False)
    again, helper = slurm.calls
    assert helper.startswith("sbatch --parsable --job-name=clusterrun-start-5 --begin=now+6 --time=1")
    assert "--partition=gpu" in helper and "account" not in helper and again == "scontrol requeue 5"


@pytest.mark.parametrize("reason", ["SIGUSR2", "a STOP file", "SIGTERM"])
def test_a_task_that_was_asked_to_stop_stays_stopped(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, reason: str
) -> None:
    job = make_job(*CHAIN, stopped={"reason": reason})
    assert job.requeue.after(85, came=False) == 85
    assert slurm.calls == [] and not job.due


@pytest.mark.parametrize(("fields", "calls"), [
    ({"JobState": "COMPLETING"}, []),  # scancel
    ({"JobState": "COMPLETING", "Reason": "TimeLimit"}, ["scontrol requeue 5"]),
    ({"JobState": "COMPLETING", "PreemptTime": "2026-11-23T05:00:00"}, ["scontrol requeue 5"]),
    ({"JobState": "COMPLETING", "PreemptTime": "2026-11-23T05:00:00", "EndTime": "2026-11-23T05:00:00"},
     ["scontrol requeue 5"]),
    ({"JobState": "COMPLETING", "PreemptTime": "2026-11-23T05:00:00", "EndTime": "2026-11-23T05:00:02"}, []),  # scancel
    ({"JobState": "COMPLETING", "PreemptTime": "2026-11-23T05:00:00", "Restarts": "1"}, []),  # Slurm requeues it
])  # fmt: skip
def test_sigterm_is_told_apart_by_slurms_reason(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, fields: dict[str, str], calls: list[str]
) -> None:
    job = make_job(*CHAIN)
    slurm.show(**fields)
    job.requeue.on_term()
    assert job.requeue.after(143, came=True) == 143
    assert slurm.calls == calls


def test_a_job_that_ended_meanwhile_is_left_alone(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    slurm.show(JobState="COMPLETING")  # cancelled while its ranks were ending
    assert job.requeue.after(85, came=False) == 85
    assert slurm.calls == []


def test_a_limit_that_comes_just_as_the_ranks_stop_is_a_limit(
    make_job: Callable[..., supervisor.Job], slurm: Slurm
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    slurm.show(JobState="COMPLETING", Reason="TimeLimit")
    assert job.requeue.after(85, came=False) == 85
    assert slurm.calls == ["scontrol requeue 5"]


def write_launch(job: supervisor.Job, restart: int, *, ago: float, lasted: float | None = None) -> Path:
    """Record the launch of one start of the job: when it began, and if it is over, its end."""
    folder = job.run_dir / "attempts" / f"{TOKEN}.{restart}.0"
    folder.mkdir(exist_ok=True)
    began = time.time() - ago
    end = {} if lasted is None else {"ended": began + lasted}
    (folder / "launch.json").write_text(json.dumps({"began": began, **end}))
    return folder


def test_a_touched_file_changes_no_total_time(make_job: Callable[..., supervisor.Job]) -> None:
    job = make_job(*CHAIN)
    job.identity = JobIdentity("lab", "5", "", 1)
    first = write_launch(job, 0, ago=900, lasted=600)
    write_launch(job, 1, ago=200)
    for at in (time.time() - 86400, time.time()):
        for path in (first / "log-start", first / "launch.json", job.run_dir):
            path.touch()
            os.utime(path, (at, at))
        assert 800 <= job.requeue.used_seconds < 860


def test_a_start_without_an_end_lasted_to_its_last_heartbeat(make_job: Callable[..., supervisor.Job]) -> None:
    job = make_job(*CHAIN)
    job.identity = JobIdentity("lab", "5", "", 1)
    RankSlot(write_launch(job, 0, ago=5000), 0, 0).write_progress({"time": time.time() - 4700})
    write_launch(job, 1, ago=200)
    assert 500 <= job.requeue.used_seconds < 560


def test_a_job_is_requeued_also_while_its_folder_cannot_be_read(
    make_job: Callable[..., supervisor.Job], slurm: Slurm
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    job.run_dir = job.run_dir / ("x" * 300)  # ENAMETOOLONG stands for ESTALE and EIO of a shared file system
    assert job.requeue.after(85, came=False) == 85
    assert slurm.calls == ["scontrol requeue 5"]


def test_a_number_without_end_in_the_record_of_a_start_does_not_count(make_job: Callable[..., supervisor.Job]) -> None:
    job = make_job(*CHAIN)
    (job.attempt_dir / "launch.json").write_text('{"version": 1, "began": 1' + "0" * 400 + "}")
    assert job.requeue.used_seconds == 0


def test_the_total_time_ends_the_chain(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    write_launch(job, 0, ago=3700)
    assert 3690 < job.requeue.used_seconds < 3800
    assert job.requeue.after(85, came=False) == 85 and slurm.calls == []


def test_a_script_that_the_warning_ended_is_not_done_when_the_total_time_is_used_up(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make_job(*CHAIN, "--signal", "TERM@300")
    job.records = {}, {0: {"signals": ["SIGTERM"]}}
    write_launch(job, 0, ago=3700)
    slurm.show(EndTime=in_seconds(200))
    assert job.requeue.after(0, came=False) == 85 and slurm.calls == []
    assert "the total time (--total-time) is used up" in capfd.readouterr().err


def test_starts_that_end_at_once_end_the_chain(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    job.identity = JobIdentity("lab", "5", "", 2)
    for restart in range(3):
        write_launch(job, restart, ago=5, lasted=1)
    assert job.requeue.after(85, came=False) == 85 and slurm.calls == []


def test_the_ranks_stop_at_the_end_of_the_total_time(make_job: Callable[..., supervisor.Job]) -> None:
    job, now = make_job(*CHAIN), time.time()
    assert job.requeue.end_time(str(int(now + 60))) == str(int(now + 60))
    assert abs(int(job.requeue.end_time(str(int(now + 7200)))) - now - 3600) < 5


@pytest.mark.parametrize(("seconds", "status", "got", "again"), [
    (200, 0, "SIGTERM", True), (200, 143, "SIGTERM", True), (900, 0, "SIGTERM", False), (200, 1, "SIGTERM", False),
    (200, 0, "SIGUSR1", False),
])  # fmt: skip
def test_a_script_that_the_warning_ended_goes_back_into_the_queue(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, seconds: int, status: int, got: str, again: bool
) -> None:
    job = make_job(*CHAIN, "--signal", "TERM@300")
    job.records = {}, {0: {"signals": [got]}}
    slurm.show(EndTime=in_seconds(seconds))
    assert job.requeue.after(status, came=False) == (85 if again else status)
    assert slurm.calls == ["scontrol requeue 5"] * again


def test_a_job_that_must_not_be_requeued_is_allowed_to_first(
    make_job: Callable[..., supervisor.Job], slurm: Slurm
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    slurm.refuse("Requested operation is presently disabled for job 5")
    job.requeue.after(85, came=False)
    assert slurm.calls == ["scontrol requeue 5", "scontrol update JobId=5 Requeue=1", "scontrol requeue 5"]


def test_a_silent_controller_is_asked_again(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    slurm.refuse("slurm_requeue error: Unable to contact slurm controller (connect failure)")
    job.requeue.after(85, came=False)
    assert slurm.calls == ["scontrol requeue 5"] * 2 and job.due


def record(job: supervisor.Job, cancel_asked: int = 0) -> None:
    (job.run_dir / "submissions").mkdir()
    known = {"version": 1, "token": TOKEN, "state": "accepted", "job_id": "5", "cluster": "lab", "at": 1_795_000_000,
             "cancel_asked": cancel_asked}  # fmt: skip
    (job.run_dir / "submissions" / f"{TOKEN}.json").write_text(json.dumps(known))
    (job.run_dir / "spec.json").write_text(json.dumps({"workdir": "/", "sbatch_args": ["--switches=1"]}))
    (job.run_dir / "script.sh").write_text(
        f'#SBATCH --job-name="lm.{TOKEN[:8]}"\n#SBATCH --dependency="afterok:1"\nexport CLUSTERRUN_TOKEN={TOKEN}\n'
        "CR_OPTIONS=(--total-time 3600 --shared)\n"
    )


def test_where_requeueing_is_refused_a_successor_continues_the_run(
    make_job: Callable[..., supervisor.Job], slurm: Slurm
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    record(job)
    write_launch(job, 0, ago=1000)
    slurm.refuse(*["Requested operation is presently disabled"] * 2)
    assert job.requeue.after(85, came=False) == 85 and not job.due
    (file,) = [f for f in (job.run_dir / "submissions").iterdir() if f.stem != TOKEN]
    new = json.loads(file.read_text())
    assert (new["state"], new["job_id"], new["token"], new["cluster"]) == ("accepted", "77", file.stem, "lab")
    script = job.run_dir / new["script"]
    assert slurm.calls[-1] == f"sbatch --parsable --dependency=afterany:5 --switches=1 -- {script}"
    *lines, options = script.read_text().splitlines()
    assert lines == [f'#SBATCH --job-name="lm.{file.stem[:8]}"', f"export CLUSTERRUN_TOKEN={file.stem}"]
    assert 2500 < int(options.split()[1]) <= 2600, options


def test_a_refused_successor_leaves_no_submission(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    record(job)
    before = sorted(job.run_dir.rglob("*"))
    slurm.refuse(*["Requested operation is presently disabled"] * 2)
    (slurm.folder / "sbatch.no").write_text("sbatch: error: Batch job submission failed: Invalid account\n")
    assert job.requeue.after(85, came=False) == 85
    assert sorted(job.run_dir.rglob("*")) == before
    assert "Invalid account; run `clusterrun resume 5` to continue" in capfd.readouterr().err


def test_a_successor_that_slurm_does_not_confirm_is_named_so(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    record(job)
    slurm.refuse(*["Requested operation is presently disabled"] * 2)
    (slurm.folder / "sbatch.no").write_text("sbatch: error: Batch job submission failed: Socket timed out\n")
    job.requeue.after(85, came=False)
    assert "a job to continue the run was submitted, but not confirmed by Slurm" in capfd.readouterr().err
    states = {json.loads(file.read_text())["state"] for file in (job.run_dir / "submissions").iterdir()}
    assert "submitting" in states  # clusterrun status looks the job up


def test_a_lost_node_is_excluded_after_the_requeue(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    job = make_job(*CHAIN)
    slurm.show(excluded="n7")
    assert job.requeue.leave("node n2 is lost", exclude="n2", evidence="no heartbeat for 60 s", start_soon=False)
    assert slurm.calls == ["scontrol requeue 5", "scontrol update JobId=5 ExcNodeList=n7,n2"]
    kept = json.loads((job.attempt_dir / "requeue.json").read_text())
    assert (kept["exclude"], kept["evidence"], kept["cluster"]) == ("n2", "no heartbeat for 60 s", "lab")


def test_without_the_options_nothing_is_asked(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    (slurm.folder / "show").unlink()
    assert make_job(stopped=STOPPED).requeue.after(85, came=False) == 85
    assert slurm.calls == []


def test_a_lost_node_that_nothing_replaces_sends_the_job_elsewhere(
    make_job: Callable[..., supervisor.Job], slurm: Slurm
) -> None:
    for words, again in (((), False), (("--requeue", "--no-helper-job"), True)):
        job = make_job(*words, hang={"cause": "node n2 does not respond", "lost_nodes": ["n2"]})
        (job.attempt_dir / "hang").rename(job.attempt_dir / "hang.json")
        assert spares.find_lost_nodes(job, lambda: False) == {"n2"}
        assert spares.requeue_without(job, job.requeue, {"n2"}) is again
        if not again:
            shutil.rmtree(job.attempt_dir)
    assert slurm.calls == ["scontrol requeue 5", "scontrol update JobId=5 ExcNodeList=n2"]
    record = json.loads((job.attempt_dir / "requeue.json").read_text())
    assert (record["exclude"], record["evidence"]) == ("n2", "node n2 does not respond")
    assert job.requeue.after(124, came=False) == 85, "the job is not requeued twice"


def test_a_lost_node_is_replaced_if_there_are_restarts_and_spare_nodes(
    make_job: Callable[..., supervisor.Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spares.batch_host, "node_names", lambda: ["n1", "n2", "n3"])
    for number, (words, expected) in enumerate({
        ("--nodes", "2", "--max-restarts", "1"): True,
        ("--nodes", "2"): False,
        ("--nodes", "3", "--max-restarts", "1"): False,
    }.items()):  # fmt: skip
        job = make_job(*words)
        job.attempt_dir.rename(tmp_path / str(number))
        assert spares.can_replace(job, {"n2"}) is expected, words


def test_after_a_silence_no_successor_is_submitted(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "HURRY_S", 1.0)
    slurm.refuse(*["slurm_load_jobs error: Unable to contact slurm controller"] * 40)
    job = make_job(*CHAIN, stopped=STOPPED)
    assert job.requeue.after(85, came=False) == 85
    assert {call.partition(" ")[0] for call in slurm.calls} == {"scontrol"}, "the job may be in the queue"


def test_a_cancelled_job_is_not_requeued_for_a_lost_node(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    slurm.show(JobState="COMPLETING")
    job = make_job("--requeue")
    assert not spares.requeue_without(job, job.requeue, {"n2"}) and slurm.calls == []


def test_a_job_that_its_user_cancelled_in_the_grace_time_is_not_requeued(
    make_job: Callable[..., supervisor.Job], slurm: Slurm
) -> None:
    job = make_job(*CHAIN)
    record(job, cancel_asked=int(time.time()) - 60)
    slurm.show(JobState="COMPLETING", PreemptTime="2026-11-23T05:00:00")
    job.requeue.on_term()
    assert job.requeue.after(143, came=True) == 143
    assert slurm.calls == [] and not job.due


def test_a_cancel_that_comes_with_the_requeue_is_sent_again(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(*CHAIN, stopped=STOPPED)
    monkeypatch.setattr(requeue, "is_cancelled", lambda run_dir, token: slurm.calls != [])
    assert job.requeue.after(85, came=False) == 85
    assert slurm.calls == ["scontrol requeue 5", "scancel 5"] and not job.due


def test_a_new_launch_waits_for_the_controller(
    make_job: Callable[..., supervisor.Job], slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "CONTROLLER_PAUSE_S", 0.05)
    job, allowed = make_job("--max-restarts", "1"), []
    (slurm.folder / "away").touch()
    termination = SimpleNamespace(allow=lambda may_raise=True: allowed.append(may_raise))
    waiting = threading.Thread(target=job.requeue.await_controller, args=(termination,))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive() and allowed == [True], "SIGTERM may end the wait"
    (slurm.folder / "away").unlink()
    waiting.join(HUNG)
    assert not waiting.is_alive() and allowed == [True, False]


def test_a_cancel_that_did_not_come_through_is_forgotten(make_job: Callable[..., supervisor.Job], slurm: Slurm) -> None:
    job = make_job(*CHAIN)
    record(job, cancel_asked=int(time.time()) - 2 * 86400)
    slurm.show(JobState="COMPLETING", PreemptTime="2026-11-23T05:00:00")
    job.requeue.on_term()
    job.requeue.after(143, came=True)
    assert job.runs_again and "scontrol requeue 5" in slurm.calls
