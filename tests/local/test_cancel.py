"""Ending local jobs: by a cancel, by the time limit, and what is said where there is nothing to end."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

from clusterrun.base.job import JobId
from clusterrun.scheduler.local.client import LocalScheduler
from tests.support.patience import HUNG

# What the rendered script does at TERM: wait for its step, then write the end. The step's status comes by a file, as
# bash (5.2) forgets the status of a child that ends while a trap interrupts `wait`, and answers -1 from then on: seen.
POLITE = """
trap : TERM
(
    trap '' TERM
    (trap 'echo saved; exit 85' TERM; echo > here; while :; do sleep 0.05; done)
    echo $? > step
) & step=$!
while kill -0 $step 2>/dev/null; do wait $step; done
echo "recorded $(<step)"; exit 143
"""
# a grandchild that ignores TERM, and one that leaves the session and drops its environment
STUBBORN = """
bash -c 'trap "" TERM; sleep 300 & sleep 300' &
env -i setsid bash -c 'trap "" TERM HUP; sleep 300; sleep 300' &
setsid sleep 300 &
echo > here
"""


def cancel(bench, id):
    (answer,) = bench.scheduler.cancel([id])
    assert answer.id == id
    return answer


def test_a_running_job_may_write_its_end(bench):
    id = bench.submit(POLITE)
    bench.wait_file("here")
    assert cancel(bench, id).done
    assert bench.out(id) == "saved\nrecorded 85\n"
    status = bench.status(id)
    assert (status.state, status.exit_status) == ("CANCELLED", 143)


def test_processes_that_ignore_term_or_leave_the_session_are_ended(bench):
    bench.set_grace(1.0)
    id = bench.submit("trap '' TERM\n" + STUBBORN + "wait")
    bench.wait_file("here")
    begin = time.monotonic()
    assert cancel(bench, id).done
    assert time.monotonic() - begin >= 1.0
    status = bench.status(id)
    assert (status.state, status.exit_status) == ("CANCELLED", 137)
    assert bench.close() == []


def test_a_stopped_job_is_ended_too(bench):
    id = bench.submit("trap 'echo woken; exit 1' TERM; echo > here; while :; do sleep 0.05; done")
    bench.wait_file("here")
    bench.wait(id, "RUNNING")
    os.killpg(bench.state_of(id)["script"][0], signal.SIGSTOP)
    assert cancel(bench, id).done
    assert bench.out(id) == "woken\n"


def test_a_pending_job_is_cancelled_at_once_and_never_starts(bench):
    first = bench.submit("sleep 300")
    second = bench.submit("echo ran > ran", dependency=f"afterany:{first}")
    assert cancel(bench, second).done
    status = bench.status(second)
    assert (status.state, status.started, status.exit_status, status.elapsed) == ("CANCELLED", None, None, None)
    cancel(bench, first)
    assert not (bench.work / "ran").exists()


def test_several_jobs_are_cancelled_together(bench):
    """Each has TERM before the others have ended: it waits for their files, and would be killed for it otherwise."""
    body = """
        end() {
            echo > "term$CLUSTERRUN_LOCAL_JOB_ID"
            until [ -e termL1 ] && [ -e termL2 ] && [ -e termL3 ]; do sleep 0.05; done
            exit 3
        }
        trap end TERM
        echo > "here$CLUSTERRUN_LOCAL_JOB_ID"
        while :; do sleep 0.05; done
    """
    scheduler = LocalScheduler(bench.state, os.environ, grace=60.0)
    ids = [scheduler.submit(bench.submission(body)) for _ in "123"]
    for id in ids:
        bench.wait_file(f"here{id}")
    assert [answer.done for answer in scheduler.cancel(ids)] == [True] * 3
    assert [bench.status(id).exit_status for id in ids] == [3] * 3


def test_nothing_to_cancel_is_said_as_it_is(bench):
    id = bench.submit("exit 2")
    bench.wait(id, "FAILED")
    assert cancel(bench, id).detail == "the job had already ended: FAILED (NonZeroExitCode)"
    for unknown in (JobId("L99"), JobId("123"), JobId("L1", task=2)):
        answer = cancel(bench, unknown)
        assert (answer.done, answer.detail) == (False, f"there is no local job {unknown}")
    assert bench.scheduler.cancel([]) == []


def test_the_time_limit_ends_a_job_that_may_save_first(bench):
    id = bench.submit(POLITE, time_limit=10)
    status = bench.wait(id, "TIMEOUT")
    assert (status.reason, status.exit_status) == ("TimeLimit", 143)
    assert bench.out(id) == "saved\nrecorded 85\n"
    assert 10 <= status.elapsed <= HUNG


def test_the_time_limit_ends_a_stubborn_job_too(bench):
    bench.set_grace(1.0)
    id = bench.submit("trap '' TERM\n" + STUBBORN + "while :; do sleep 0.1; done", time_limit=10)
    assert bench.wait(id, "TIMEOUT").exit_status == 137
    assert bench.close() == []


SUBMIT = """
import os, sys
from pathlib import Path
from clusterrun.system import shell
from clusterrun.scheduler import Submission
from clusterrun.scheduler.local.client import LocalScheduler
from tests.support.patience import HUNG
state, script, token = sys.argv[1:]
run = Path(script).parent
LocalScheduler(Path(state), os.environ, grace=1.0).submit(Submission(run_id="r", run_dir=run, token=token,
    script=Path(script), workdir=Path.cwd(), logs=run, env=shell.scrub(os.environ)[0]))
"""


def test_a_job_that_another_job_submitted_is_not_ended_with_it(bench):
    inner = bench.submission("echo > inner; sleep 300")
    (bench.work / "submit.py").write_text(SUBMIT)
    outer = bench.submit(f"{sys.executable} submit.py {bench.state} {inner.script} {inner.token}")
    bench.wait(outer, "COMPLETED")
    bench.wait_file("inner")
    id = JobId("L2")
    assert bench.wait(id, "RUNNING").script == str(inner.script)
    assert Path(f"/proc/{bench.state_of(id)['script'][0]}").exists()
    assert cancel(bench, id).done


def test_a_job_whose_end_cannot_be_written_is_cancelled_all_the_same(bench):
    bench.set_grace(1.0)
    id = bench.submit("echo > here; exec sleep 300")
    bench.wait_file("here")
    bench.wait(id, "RUNNING")
    supervisor = bench.state_of(id)["supervisor"][0]
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # as on a full disk
    answer = cancel(bench, id)
    assert answer.done and "its processes have ended, but its state in" in answer.detail
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    bench.wait(id, "CANCELLED")
