"""The local scheduler: what a job gets, how it ends, and what is said about it."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterrun.base.errors import Refused
from clusterrun.base.job import JobId, Outcome
from clusterrun.scheduler.local.client import LocalScheduler
from clusterrun.scheduler.local.jobfiles import end_record, read_job

# submits the script argv[2] with the state folder argv[1], prints the id
SUBMIT = """
import os, sys
from pathlib import Path
from clusterrun.scheduler import Submission
from clusterrun.scheduler.local.client import LocalScheduler
state, script, token = sys.argv[1:]
run = Path(script).parent
print(LocalScheduler(Path(state), os.environ, grace=1.0).submit(Submission(run_id="r", run_dir=run, token=token,
    script=Path(script), workdir=run, logs=run / "logs", env=dict(os.environ))), flush=True)
"""


def submit_command(bench, body):
    submission = bench.submission(body)
    return [sys.executable, "-c", SUBMIT, str(bench.state), str(submission.script), submission.token]


def test_a_job_gets_its_environment_folder_and_logs_and_completes(bench):
    body = 'pwd; echo "$CLUSTERRUN_LOCAL_JOB_ID $CLUSTERRUN_LOCAL_DEVICES $CLUSTERRUN_TOKEN"\n'
    body += 'echo "[$CUDA_VISIBLE_DEVICES] $MINE"\n'
    body += 'echo "[${CLUSTERRUN_SUPERVISOR-unset}]"; read -r line; echo "stdin $?"; echo problem >&2; umask'
    id = bench.submit(body, env={"MINE": "a b\nc"}, umask=0o027, nodes=2, time_limit=600)
    status = bench.wait(id, "COMPLETED")
    token = bench.tokens[0]
    lines = [str(bench.work), f"L1 cpu {token}", "[] a b", "c", "[unset]", "stdin 1", "0027"]
    assert bench.out(id).splitlines() == lines
    assert bench.out(id, "err") == "problem\n"
    assert (bench.logs / "train_L1.out").stat().st_mode & 0o777 == 0o640
    assert (status.id, status.outcome, status.exit_status, status.reason) == (JobId("L1"), Outcome.DONE, 0, "")
    assert (status.name, status.nodes, status.node_count) == (f"local.{token[:8]}", "local[0-1]", 2)
    assert (status.source, status.script, status.time_limit) == ("local", str(bench.folder / "run0/script.sh"), 600)
    assert status.submitted <= status.started <= status.ended
    assert status.elapsed == status.ended - status.started


@pytest.mark.parametrize(
    ("body", "exit_status", "reason", "outcome"),
    [
        ("exit 3", 3, "NonZeroExitCode", Outcome.FAILED),
        ("exit 85", 85, "NonZeroExitCode", Outcome.STOPPED),
        ("kill -9 $$", 137, "RaisedSignal:9(Killed)", Outcome.FAILED),
    ],
)
def test_the_exit_status_is_kept(bench, body, exit_status, reason, outcome):
    status = bench.wait(bench.submit(body), "FAILED")
    assert (status.exit_status, status.reason, status.outcome) == (exit_status, reason, outcome)


def test_a_running_job_shows_its_time(bench):
    id = bench.submit("echo > here; sleep 60")
    bench.wait_file("here")
    bench.until(lambda: (bench.status(id).elapsed or 0) >= 1)
    status = bench.status(id)
    assert (status.state, status.ended, status.exit_status) == ("RUNNING", None, None)


def test_what_the_script_leaves_behind_is_ended_with_it(bench):
    body = "setsid sleep 60 & env -i setsid sh -c 'trap \"\" TERM; echo $$ > left; sleep 60; sleep 60' &\n"
    id = bench.submit(body + "until [ -s left ]; do sleep 0.01; done")
    bench.wait(id, "COMPLETED")
    left = int(bench.wait_file("left"))
    assert not Path(f"/proc/{left}").exists()  # found by descent: it carries no token


def test_nothing_secret_is_written_down(bench):
    id = bench.submit("true", env={"HF_TOKEN": "hf_very_secret"})
    bench.wait(id, "COMPLETED")
    for path in (bench.local / str(id)).iterdir():
        assert b"hf_very_secret" not in path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
    for folder in (bench.local, bench.local / str(id)):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_names_and_values_that_are_not_utf8_arrive_as_they_are(bench):
    odd = os.fsdecode(b"caf\xe9")
    work = bench.folder / odd
    work.mkdir()
    id = bench.submit("echo $ODD; pwd", env={"ODD": odd, "LC_ALL": "C"}, workdir=work)
    bench.wait(id, "COMPLETED")
    assert (bench.logs / "train_L1.out").read_bytes() == b"caf\xe9\n" + os.fsencode(work) + b"\n"


def test_an_id_is_not_given_out_where_a_log_of_it_stands(bench):
    bench.logs.mkdir()
    (bench.logs / "train_L1.out").write_text("of a run whose state folder was lost\n")
    (bench.logs / "train_L2.err").symlink_to(bench.folder / "nothing")
    id = bench.submit("echo mine")
    bench.wait(id, "COMPLETED")
    assert (str(id), bench.out(id)) == ("L3", "mine\n")
    assert bench.out(JobId("L1")) == "of a run whose state folder was lost\n"


def test_links_and_pipes_in_the_place_of_a_log_are_refused(bench):
    first = bench.submit("until [ -e go ]; do sleep 0.02; done")
    waiting = [bench.submit("echo harm >&2", dependency=f"afterany:{first}") for _ in "23"]
    target = bench.folder / "precious"
    target.write_text("as it was")
    (bench.logs / "train_L2.err").symlink_to(target)
    os.mkfifo(bench.logs / "train_L3.out")
    (bench.work / "go").touch()
    for id, expected in zip(waiting, ("train_L2.err", "train_L3.out"), strict=True):
        status = bench.wait(id, "FAILED")
        assert expected in status.reason
        assert status.started is None
    assert target.read_text() == "as it was"


def test_a_working_folder_that_is_gone_fails_the_job(bench):
    status = bench.wait(bench.submit("true", workdir=bench.folder / "nowhere"), "FAILED")
    assert "No such file or directory" in status.reason


def test_the_current_folder_and_pythonpath_cannot_stand_in_for_our_code(bench, tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    (trap / "clusterrun").mkdir(parents=True)
    for name in ("clusterrun/__init__.py", "json.py", "select.py", "sitecustomize.py", "usercustomize.py"):
        (trap / name).write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nraise SystemExit('shadowed')\n")
    monkeypatch.chdir(trap)
    env = {"PYTHONPATH": str(trap), "PYTHONHOME": str(trap), "PYTHONSTARTUP": str(trap / "json.py")}
    bench.wait(bench.submit('echo "$PYTHONPATH"', env=env, workdir=trap), "COMPLETED")
    assert bench.out(JobId("L1")) == f"{trap}\n"
    assert not (tmp_path / "sprung").exists()


def test_a_job_outlives_its_terminal(bench):
    command = submit_command(bench, "until [ -e go ]; do sleep 0.05; done; echo went on")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    assert os.read(terminal, 100).strip() == b"L1"
    os.close(terminal)  # the hang-up
    os.waitpid(pid, 0)
    id = JobId("L1")
    os.kill(bench.state_of(id)["supervisor"][0], signal.SIGHUP)
    time.sleep(0.1)
    assert bench.status(id).state in ("PENDING", "RUNNING")
    (bench.folder / "run0/go").touch()
    bench.wait(id, "COMPLETED")
    assert (bench.folder / "run0/logs/train_L1.out").read_text() == "went on\n"


def test_signals_that_the_submitter_ignored_are_not_ignored_in_the_job(bench):
    command = submit_command(bench, "grep -E 'Sig(Blk|Ign)' /proc/self/status")
    shell = ["bash", "-c", "trap '' INT QUIT HUP TERM USR1; exec \"$@\"", "bash", *command]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == "L1\n"
    bench.wait(JobId("L1"), "COMPLETED")
    masks = (bench.folder / "run0/logs/train_L1.out").read_text().split()[1::2]
    # 32 and 33 belong to the C library, which lets nobody change what was inherited
    known = sum(1 << (number - 1) for number in signal.valid_signals())
    assert [int(mask, 16) & known for mask in masks] == [0, 0]


def test_twenty_submits_at_once_get_twenty_ids(bench):
    commands = [submit_command(bench, "true") for _ in range(20)]
    submitters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    ids = [JobId.parse(process.communicate()[0].strip()) for process in submitters]
    assert {str(id) for id in ids} == {f"L{n}" for n in range(1, 21)}
    for id in ids:
        bench.wait(id, "COMPLETED")
    assert len(bench.scheduler.query().jobs) == 20


def test_find_knows_a_job_by_its_token_even_after_its_end(bench):
    id = bench.submit("true")
    bench.submit("true")
    bench.wait(id)
    answer = bench.scheduler.find(bench.tokens[0])
    assert [status.id for status in answer.jobs] == [id]
    assert bench.scheduler.find("0" * 20).jobs == []
    assert bench.scheduler.find("0" * 20).complete


def test_a_folder_that_is_not_a_job_yet_or_ever(bench):
    id = bench.submit("true")
    bench.wait(id)
    half = bench.local / "L7"
    half.mkdir(mode=0o700)
    with (half / "job.json").open("w") as request:
        request.write((bench.local / "L1/job.json").read_text().replace(bench.tokens[0], "half"))
        request.flush()
        fcntl.flock(request, fcntl.LOCK_EX)  # as its submitter does
        assert bench.status(JobId("L7")).reason == "starting"
        answer = bench.scheduler.find("half")
        assert (answer.jobs, answer.complete) == ((), False)
        assert bench.scheduler.find(bench.tokens[0]).complete
    assert bench.scheduler.query([JobId("L7")]).jobs == []
    assert bench.scheduler.find("half").complete
    assert [str(status.id) for status in bench.scheduler.query().jobs] == ["L1"]
    assert str(bench.submit("true")) == "L8"  # its number is never given again


def test_unknown_ids_are_absent_and_the_answer_is_complete(bench):
    answer = bench.scheduler.query([JobId("L9"), JobId("12"), JobId("L1", task=3)])
    assert (answer.jobs, answer.complete) == ([], True)
    assert bench.scheduler.account([JobId("L9")], 0).complete
    assert (bench.scheduler.name, bench.scheduler.cluster) == ("local", "local")


def test_a_state_folder_that_cannot_be_written_is_said_in_one_line(bench, tmp_path):
    (tmp_path / "file").write_text("")
    scheduler = LocalScheduler(tmp_path / "file", os.environ)
    with pytest.raises(Refused, match="Not a directory"):
        scheduler.submit(bench.submission("true"))
    assert not scheduler.query().complete


def test_a_supervisor_that_does_not_start_is_a_refusal_with_its_words(bench, tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho this python is broken >&2; exit 1\n")
    broken.chmod(0o755)
    for executable, words in ((broken, "this python is broken"), (tmp_path / "none", "No such file")):
        monkeypatch.setattr(sys, "executable", str(executable))
        with pytest.raises(Refused) as caught:
            bench.submit("true")
        assert words in caught.value.detail
    assert bench.scheduler.query().jobs == []
    assert bench.scheduler.find(bench.tokens[0]).complete


def test_the_newest_launch_of_the_last_attempt_speaks_for_the_run(bench):
    id = bench.submit("true")
    bench.wait(id)
    job = read_job(bench.local / str(id))
    assert end_record(job) is None
    for attempt, text in (
        ("0.9", '{"status": 1}'),
        ("0.10", '{"status": 85}'),
        ("0.11", "{half"),
        ("x.1", '{"status": 2}'),
    ):
        folder = Path(job.run_dir) / "attempts" / f"{job.token}.{attempt}"
        folder.mkdir(parents=True)
        (folder / "end.json").write_text(text)
    assert end_record(job)[0] == 85
