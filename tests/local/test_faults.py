"""What is said of a local job, and what can still be done, when its supervisor, its machine or its disk failed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.base.errors import Ambiguous, Refused
from clusterrun.base.job import JobId, Outcome
from clusterrun.scheduler.local import client, jobfiles
from clusterrun.scheduler.local.processes import members
from clusterrun.system.processes import clock

OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


def kill_supervisor(bench, id):
    os.kill(bench.state_of(id)["supervisor"][0], signal.SIGKILL)


def running(bench, body, first=""):
    id = bench.submit(f"{first}\necho > here\n{body}")
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
    saves = "trap 'until [ -e go ]; do sleep 0.05; done; exit 0' TERM"
    id = running(bench, "while :; do sleep 0.05; done", first=saves)
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
    id = running(bench, "wait", first="trap '' TERM; setsid sleep 300 & setsid sleep 300 &")
    kill_supervisor(bench, id)
    bench.wait(id, "COMPLETING")
    os.kill(bench.state_of(id)["script"][0], signal.SIGKILL)
    assert "`clusterrun cancel L1` kills the 2 remaining processes" in bench.wait(id, "NODE_FAIL").reason
    (answer,) = bench.scheduler.cancel([id])
    assert (answer.done, answer.detail) == (True, "the job's supervisor was gone; killed 2 remaining processes")
    assert bench.status(id).state == "CANCELLED"
    (answer,) = bench.scheduler.cancel([id])
    assert (answer.done, answer.detail) == (False, "the job had already ended: CANCELLED")


def test_another_boot_means_that_the_job_is_gone_unless_it_had_ended(bench):
    id = running(bench, "exec sleep 300")
    kill_supervisor(bench, id)
    bench.until(lambda: not members(bench.tokens[0]))
    bench.change_state(id, boot=OTHER_BOOT)
    status = bench.status(id)
    assert (status.state, status.reason) == ("NODE_FAIL", "the machine was restarted")
    assert (status.ended, status.elapsed) == (None, None)  # nobody saw it
    (answer,) = bench.scheduler.cancel([id])
    assert not answer.done
    assert "the machine was restarted" in answer.detail
    write_end(bench, id, 0)
    assert bench.status(id).state == "COMPLETED"


def test_a_job_of_another_machine_is_neither_judged_nor_cancelled(bench):
    id = running(bench, "sleep 300")
    real = bench.state_of(id)
    bench.change_state(id, boot=OTHER_BOOT, host="elsewhere")
    status = bench.status(id)
    reason = "running on elsewhere; the job's processes are not visible from here"
    assert (status.state, status.reason, status.outcome) == ("UNKNOWN", reason, Outcome.UNKNOWN)
    (answer,) = bench.scheduler.cancel([id])
    assert (answer.done, answer.detail) == (False, f"the job cannot be cancelled now: UNKNOWN ({reason})")
    bench.change_state(id, boot=OTHER_BOOT, host="elsewhere", state="COMPLETED")
    assert bench.status(id).state == "COMPLETED"
    bench.change_state(id, **real)
    assert bench.status(id).state == "RUNNING"


def test_a_reused_pid_is_neither_signalled_nor_taken_for_the_script(bench):
    id = running(bench, "exec sleep 300")
    real = bench.state_of(id)["supervisor"]
    with subprocess.Popen(["sleep", "300"]) as stranger:
        bench.change_state(id, supervisor=[stranger.pid, 1], script=[stranger.pid, 1])
        (answer,) = bench.scheduler.cancel([id])
        assert not answer.done
        assert stranger.poll() is None
        os.kill(real[0], signal.SIGKILL)
        bench.until(lambda: not members(bench.tokens[0]))
        assert bench.status(id).state == "NODE_FAIL"
        stranger.kill()


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
    for text in ("", "[]", "{}", '{"supervisor": [1, 1]}', "\0" * 40):
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
        ("job.json", {"submitted": "yesterday"}),
        ("job.json", {"nodes": 10**400}),
        ("state.json", {"state": ["RUNNING"]}),
        ("state.json", {"devices": "01"}),
        ("state.json", {"ended": "late"}),
        ("state.json", {"supervisor": ["1", 1]}),
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
        assert bench.scheduler.query([id]).jobs == []
        assert bench.scheduler.find(submission.token) == ([], True, "", (), 0, False)
        (answer,) = bench.scheduler.cancel([id])
        assert answer.detail == "there is no local job L1"
    else:
        assert bench.wait(id, "COMPLETED").exit_status == 0
        assert [status.id for status in bench.scheduler.find(submission.token).jobs] == [id]


def test_a_supervisor_that_was_killed_before_its_first_word_leaves_no_job(bench, monkeypatch):
    slow = bench.folder / "python"
    slow.write_text("#!/bin/bash\nexec sleep 300\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(client, "START_TIMEOUT", 0.5)
    with pytest.raises(Ambiguous):
        bench.submit("echo > ran")
    id = JobId("L1")
    assert bench.status(id).reason == "starting"
    answer = bench.scheduler.find(bench.tokens[0])
    assert (answer.jobs, answer.complete, answer.note) == ((), False, "still starting: job L1")
    os.kill(supervisor_of(bench, id), signal.SIGKILL)
    bench.until(lambda: bench.scheduler.find(bench.tokens[0]).complete)
    assert bench.scheduler.query([id]).jobs == []


def supervisor_of(bench, id):
    """The process that keeps the job's request open."""
    request = bench.local / str(id) / "job.json"
    for path in Path("/proc").glob("[0-9]*/fd/0"):
        with contextlib.suppress(OSError):
            if path.readlink() == request:
                return int(path.parts[2])
    raise AssertionError


def test_a_last_word_between_two_looks_is_not_taken_for_a_death(bench, monkeypatch):
    id = bench.submit("true")
    bench.wait(id, "COMPLETED")
    last = bench.state_of(id)
    bench.change_state(id, state="RUNNING")

    def ends_meanwhile(folder):
        bench.change_state(id, state=last["state"])
        return False

    monkeypatch.setattr(jobfiles, "is_supervised", ends_meanwhile)
    assert bench.status(id).state == "COMPLETED"
    bench.change_state(id, state="RUNNING")
    (answer,) = bench.scheduler.cancel([id])
    assert answer.detail == "the job had already ended: COMPLETED"


def test_a_state_folder_without_locks_is_refused(bench, monkeypatch):
    def no_locks(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(Refused, match=f"cannot write {bench.local}: the file system has no locks") as caught:
        bench.submit("true")
    assert "local disk" in caught.value.hint
    assert [*bench.local.iterdir()] == []


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
