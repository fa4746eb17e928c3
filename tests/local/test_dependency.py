"""When a local job may start: Slurm's words, and their order on real jobs."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import Refused
from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.scheduler.local.dependency import NEVER, WAITING, judge, parse

STATES = {
    "L1": ("PENDING", None),
    "L2": ("RUNNING", 5),
    "L3": ("COMPLETED", 5),
    "L4": ("FAILED", 5),
    "L5": ("CANCELLED", None),
    "L6": ("UNKNOWN", 5),
}


def status_of(id):
    if id not in STATES:
        return None
    state, started = STATES[id]
    return JobStatus(id=JobId(id), state=state, outcome=outcome_of(state), started=started)


MET = ""


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("", MET),
        ("after:L1", WAITING),
        ("after:L2", MET),
        ("after:L5", MET),  # a job that was cancelled counts as started: man sbatch
        ("afterany:L2", WAITING),
        ("afterany:L4", MET),
        ("afterany:L6", WAITING),
        ("afterok:L2", WAITING),
        ("afterok:L3", MET),
        ("afterok:L4", NEVER),
        ("afterok:L5", NEVER),
        ("afterok:L6", WAITING),
        ("afternotok:L3", NEVER),
        ("afternotok:L4", MET),
        ("afternotok:L1", WAITING),
        ("afterok:L3:L2", WAITING),
        ("afterok:L3,afterany:L4", MET),
        ("afterok:L2,afterok:L4", NEVER),
        ("afterok:L99", NEVER),  # its folder was removed
        ("afterany:L99", MET),
    ],
)
def test_verdicts(text, verdict):
    assert judge(parse(text), status_of) == verdict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("afterok:12", "'12' is not a local job"),
        ("afterok:L1+5", "'L1[+]5' is not a local job"),
        ("afterok", "does not name a job"),
        ("afterok:L1:", "'' is not a local job"),
        ("singleton", "does not support 'singleton'"),
        ("afterok:L1?afterany:L2", "is not a local job"),
    ],
)
def test_what_means_nothing_here_is_refused(text, message):
    with pytest.raises(Refused, match=message):
        parse(text)


def test_jobs_start_in_the_order_that_was_asked(bench):
    first = bench.submit("until [ -e go ]; do sleep 0.02; done; echo first >> order")
    second = bench.submit("echo second >> order; exit 1", dependency=f"afterok:{first}")
    third = bench.submit("echo third >> order", dependency=f"afternotok:{second}")
    never = bench.submit("echo never >> order", dependency=f"afterok:{second},afterany:{first}")
    last = bench.submit("echo last >> order", dependency=f"afterany:{second},afterok:{third}")
    started = bench.submit("echo > started", dependency=f"after:{first}")
    bench.wait(started, "COMPLETED")
    for id in (second, third, never, last):
        status = bench.status(id)
        assert (status.state, status.reason, status.started) == ("PENDING", "Dependency", None)
    (bench.work / "go").touch()
    bench.wait(last, "COMPLETED")
    assert (bench.work / "order").read_text().split() == ["first", "second", "third", "last"]
    bench.until(lambda: bench.status(never).reason == "DependencyNeverSatisfied")
    assert bench.status(never).state == "PENDING"  # as in Slurm, until somebody cancels it


def test_a_job_that_is_not_known_cannot_be_waited_for(bench):
    with pytest.raises(Refused, match="there is no local job L5"):
        bench.submit("true", dependency="afterok:L5")
    assert bench.scheduler.query().jobs == []


def test_a_job_that_may_not_wait_for_ever_is_cancelled(bench):
    failed = bench.submit("exit 1")
    never = bench.submit("true", dependency=f"afterok:{failed}", argv=("--kill-on-invalid-dep=yes",))
    status = bench.wait(never, "CANCELLED")
    assert (status.reason, status.started) == ("DependencyNeverSatisfied", None)
