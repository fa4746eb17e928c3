"""What is said of a local job, and what can still be done, when its supervisor, its machine or its disk failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from clusterrun.base.errors import Refused
from clusterrun.base.job import JobId, Outcome
from clusterrun.scheduler.local.jobfiles import clock
from clusterrun.scheduler.local.processes import Identity, Life, members

OTHER_BOOT = {"boot": "00000000-0000-0000-0000-000000000000"}


def kill_supervisor(bench, id):
    os.kill(bench.state_of(id)["supervisor"]["pid"], signal.SIGKILL)


def running(bench, body):
    id = bench.submit(f"echo > here\n{body}")
    bench.wait_file("here")
    bench.wait(id, "RUNNING")
    return id


def write_end(bench, id, status):
    job = json.loads((bench.local / str(id) / "job.json").read_text())
    folder = bench.folder / "run0" / "attempts" / f"{job['token']}.0.0"
    folder.mkdir(parents=True)
    (folder / "end.json").write_text(json.dumps({"status": status}))


def test_a_killed_supervisor_takes_its_script_along(bench):
    id = running(bench, "while :; do sleep 0.05; done")
    kill_supervisor(bench, id)
    status = bench.wait(id, "NODE_FAIL")
    bench.until(lambda: not members(bench.tokens[0]))
    status = bench.status(id)
    assert (status.reason, status.outcome) == ("the job's supervisor was killed", Outcome.FAILED)
    (answer,) = bench.scheduler.cancel([id])
    assert (answer.done, answer.detail) == (
        False,
        "the job had already ended: NODE_FAIL (the job's supervisor was killed)",
    )


def test_a_script_that_still_saves_is_not_called_over(bench):
    id = running(bench, "trap 'until [ -e go ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done")
    kill_supervisor(bench, id)
    status = bench.wait(id, "COMPLETING")
    assert (status.outcome, status.reason) == (
        Outcome.RUNNING,
        "the job's supervisor was killed; the script is being terminated",
    )
    write_end(bench, id, 85)
    (bench.work / "go").touch()
    status = bench.wait(id, "FAILED")
    assert (status.exit_status, status.outcome) == (85, Outcome.STOPPED)
    assert status.ended >= status.started


def test_cancel_ends_what_a_killed_supervisor_left(bench):
    id = running(bench, "trap '' TERM; setsid sleep 300 & setsid sleep 300 & wait")
    kill_supervisor(bench, id)
    bench.wait(id, "COMPLETING")
    os.kill(bench.state_of(id)["script_pid"], signal.SIGKILL)
    assert "`clusterrun cancel L1` kills the 2 remaining processes" in bench.wait(id, "NODE_FAIL").reason
    (answer,) = bench.scheduler.cancel([id])
    assert (answer.done, answer.detail) == (True, "the job's supervisor was gone; killed 2 remaining processes")
    assert bench.status(id).state == "CANCELLED"
    (answer,) = bench.scheduler.cancel([id])
    assert (answer.done, answer.detail) == (False, "the job had already ended: CANCELLED")


def test_another_boot_means_that_the_job_is_gone_unless_it_had_ended(bench):
    id = running(bench, "sleep 300")
    real = bench.state_of(id)["supervisor"]
    bench.unlock(id, locks=False)
    bench.change_state(id, supervisor=OTHER_BOOT)
    status = bench.status(id)
    assert (status.state, status.reason) == ("NODE_FAIL", "the machine was restarted")
    assert (status.ended, status.elapsed) == (None, None)  # nobody saw it
    (answer,) = bench.scheduler.cancel([id])
    assert not answer.done
    assert "the machine was restarted" in answer.detail
    write_end(bench, id, 0)
    assert bench.status(id).state == "COMPLETED"
    bench.change_state(id, supervisor=real)
    assert bench.status(id).state == "RUNNING"


def test_a_job_of_another_machine_or_container_is_not_judged_from_here(bench):
    id = running(bench, "sleep 300")
    real = bench.state_of(id)["supervisor"]
    bench.unlock(id, locks=False)
    for change, place in (
        (OTHER_BOOT | {"host": "elsewhere"}, "on elsewhere"),
        ({"namespace": "pid:[1]"}, f"in another container on {real['host']}"),
    ):
        bench.change_state(id, supervisor=change)
        status = bench.status(id)
        reason = f"running {place}; the job's processes are not visible from here"
        assert (status.state, status.reason, status.outcome) == ("UNKNOWN", reason, Outcome.UNKNOWN)
        bench.change_state(id, supervisor=real)
    bench.change_state(id, state="COMPLETED", supervisor={"host": "elsewhere"})
    assert bench.status(id).state == "COMPLETED"
    bench.change_state(id, state="RUNNING", supervisor=real)


def test_a_reused_pid_is_not_taken_for_the_supervisor(bench):
    id = running(bench, "sleep 300")
    real = bench.state_of(id)
    mine = Identity.mine()
    bench.unlock(id, locks=False)
    bench.change_state(id, supervisor={"pid": mine.pid, "start": mine.start - 1}, script_start=1)
    assert bench.status(id).state == "NODE_FAIL"
    assert mine.life(bench.local / "none") is Life.ALIVE
    bench.change_state(id, supervisor=real["supervisor"], script_start=real["script_start"])


def test_a_clock_that_was_set_back_does_not_turn_time_around(bench):
    id = running(bench, "until [ -e go ]; do sleep 0.05; done")
    started = 4_000_000_000  # the epoch second that a wrong clock showed at the start
    bench.change_state(id, started=started, started_clock=clock() - 100)
    assert 100 <= bench.status(id).elapsed <= 220
    (bench.work / "go").touch()
    status = bench.wait(id, "COMPLETED")
    assert status.elapsed == status.ended - status.started


def test_a_state_that_cannot_be_written_does_not_stop_the_job(bench):
    id = running(bench, "until [ -e go ]; do sleep 0.05; done; echo finished")
    state = bench.local / str(id) / "state.json"
    kept = state.read_bytes()
    state.unlink()
    state.mkdir()  # what a full disk does: the replacement fails
    (bench.work / "go").touch()
    log = bench.local / str(id) / "supervisor.log"
    bench.until(lambda: "cannot write the state COMPLETED" in log.read_text())
    assert bench.status(id).state == "UNKNOWN"
    assert bench.out(id) == "finished\n"
    state.rmdir()
    state.write_bytes(kept)
    assert bench.wait(id, "COMPLETED").exit_status == 0


def test_files_that_cannot_be_understood_are_said_to_be_so(bench):
    id = bench.submit("true")
    bench.wait(id)
    folder = bench.local / str(id)
    kept = (folder / "state.json").read_text()
    for text in ("", "[]", "{}", '{"supervisor": {"pid": 1}}', "\0" * 40):
        (folder / "state.json").write_text(text)
        status = bench.status(id)
        assert (status.state, status.outcome) == ("UNKNOWN", Outcome.UNKNOWN)
        assert status.reason in ("state.json is damaged", "state.json cannot be read")
        (answer,) = bench.scheduler.cancel([id])
        assert status.reason in answer.detail
    newer = json.loads(kept) | {"from_a_newer_version": 1}
    (folder / "state.json").write_text(json.dumps(newer))
    assert bench.status(id).state == "COMPLETED"
    (folder / "job.json").write_text("{")
    assert bench.status(JobId("L1")).reason == "job.json cannot be read"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("job.json", {"dependency": 5}),
        ("job.json", {"id": "L7"}),
        ("job.json", {"submitted": "yesterday"}),
        ("job.json", {"nodes": 10**400}),
        ("state.json", {"state": ["RUNNING"]}),
        ("state.json", {"devices": "01"}),
        ("state.json", {"ended": "late"}),
        ("state.json", {"supervisor": {"pid": "1"}}),
        ("state.json", {"supervisor": "me"}),
    ],
)
def test_a_record_with_a_wrong_type_is_one_line_and_the_others_are_shown(bench, file, change):
    first, second = bench.submit("true"), bench.submit("true")
    bench.wait(first)
    bench.wait(second)
    path = bench.local / "L1" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    one, other = bench.scheduler.query().jobs
    assert (one.state, other.state) == ("UNKNOWN", "COMPLETED")
    assert file in one.reason


def test_a_number_that_is_too_large_is_not_known(bench):
    id = bench.submit("true")
    bench.wait(id)
    path = bench.local / "L1" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ended": 1e300}))
    status = bench.status(id)
    assert (status.state, status.ended) == ("COMPLETED", None)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large", "linked folder"])
def test_what_is_no_small_plain_file_of_mine_is_not_read(bench, kind):
    id = bench.submit("true")
    bench.wait(id)
    folder = bench.local / "L1"
    path = folder / "state.json"
    kept = path.rename(bench.folder / "kept.json")
    if kind == "link":
        path.symlink_to(kept)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.write_text(kept.read_text() + " " * 2_000_000)
    else:
        kept.rename(path)
        folder.symlink_to(folder.rename(bench.folder / "away"))
    assert bench.status(id).state == "UNKNOWN"
    assert len(bench.scheduler.query().jobs) == 1


# submits as test_local.py does, and dies as by kill -9 where argv[4] says
SUBMIT_AND_DIE = """
import os, sys
from pathlib import Path
from clusterrun.system import shell
from clusterrun.scheduler import Submission
from clusterrun.scheduler.local import client as local
state, script, token, where = sys.argv[1:]
run = Path(script).parent
if where == "before the supervisor":
    shell.start = lambda *args, **more: os._exit(9)
else:
    local.select.select = lambda *args: os._exit(9)
local.LocalScheduler(Path(state), os.environ, grace=1.0).submit(Submission(run_id="r", run_dir=run, token=token,
    script=Path(script), workdir=run, logs=run / "logs", env=dict(os.environ)))
"""


@pytest.mark.parametrize("where", ["before the supervisor", "before its first word"])
def test_a_submit_that_was_killed_halfway_leaves_a_job_or_none(bench, where):
    submission = bench.submission("echo > ran")
    argv = [sys.executable, "-c", SUBMIT_AND_DIE, str(bench.state), str(submission.script), submission.token, where]
    assert subprocess.run(argv).returncode == 9
    id = JobId("L1")
    if where == "before the supervisor":
        assert bench.status(id).reason == "starting"
        assert not bench.scheduler.find(submission.token).complete  # somebody who looks now must look again
        os.utime(bench.local / "L1", (1, 1))
        assert bench.scheduler.query([id]).jobs == []
        assert bench.scheduler.find(submission.token).complete
        (answer,) = bench.scheduler.cancel([id])
        assert answer.detail == "there is no local job L1"
    else:
        assert bench.wait(id, "COMPLETED").exit_status == 0
        assert [status.id for status in bench.scheduler.find(submission.token).jobs] == [id]


def test_a_start_that_comes_too_late_does_not_begin_the_job(bench, monkeypatch):
    late = bench.folder / "python"  # a machine that was asleep between the submit and the supervisor's first look
    late.write_text(f'#!/bin/bash\ntouch -d "1 hour ago" {bench.local}/L1\nexec {sys.executable} "$@"\n')
    late.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(late))
    with pytest.raises(Refused, match="exited before the job started") as caught:
        bench.submit("echo > ran")
    assert "has no job to start" in caught.value.detail
    assert not (bench.work / "ran").exists()


def test_a_last_word_between_two_looks_is_not_taken_for_a_death(bench, monkeypatch):
    id = bench.submit("true")
    bench.wait(id, "COMPLETED")
    last = bench.state_of(id)
    bench.change_state(id, state="RUNNING")

    def ends_meanwhile(identity, alive):
        bench.change_state(id, state=last["state"])
        return Life.GONE

    monkeypatch.setattr(Identity, "life", ends_meanwhile)
    assert bench.status(id).state == "COMPLETED"
    bench.change_state(id, state="RUNNING")
    (answer,) = bench.scheduler.cancel([id])
    assert answer.detail == "the job had already ended: COMPLETED"


@pytest.mark.parametrize("how", ["writable", "link"])
def test_a_folder_of_jobs_that_another_user_could_have_filled_is_not_believed(bench, how):
    id = bench.submit("true")
    bench.wait(id)
    if how == "writable":
        bench.local.chmod(0o707)
    else:
        bench.local.symlink_to(bench.local.rename(bench.folder / "away"))
    why = "other users have write access (chmod o-w)" if how == "writable" else "not a folder"
    said = f"cannot read {bench.local}: {why}"
    for answer in (bench.scheduler.query(), bench.scheduler.query([id]), bench.scheduler.find(bench.tokens[0])):
        assert (answer.jobs, answer.complete, answer.note) == ((), False, said)
    with pytest.raises(Refused, match="cannot write"):
        bench.submit("true")
