"""Whose turn it is, over recorded answers of Slurm: the line, holds, begin times, arrays, licenses, dependencies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.job import TERMINAL, JobId, JobStatus, Outcome
from clusterrun.base.units import format_duration
from clusterrun.scheduler.slurm.nodes import Node
from clusterrun.scheduler.slurm.reasons import Starts, find_reason
from clusterrun.scheduler.slurm.sprio import parse_priority
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.why.pending import dependencies, queue_position
from clusterrun.why.pending.facts import Finding
from tests.support.recorded_queue import NOW, asking, facts, judged

# -- turns -------------------------------------------------------------------------------------------------------------


def row(number: int, priority: int, reason: str = "Priority", **more: Any) -> Queued:
    usual: dict[str, Any] = {"state": "PENDING", "partitions": ("gpu",)}
    return Queued(id=str(number), raw=number, reason=reason, priority=priority, **usual | more)


def in_line(*rows: Queued) -> queue_position.Ahead | None:
    known = facts("7", reason=find_reason("Priority"), queue=rows)
    return queue_position.find_ahead(replace(known, job=known.job | {"JobId": "7", "Partition": "gpu"}))


def test_jobs_ahead_have_a_higher_priority_or_came_first() -> None:
    found = in_line(row(7, 50), row(3, 60), row(9, 70), row(5, 50), row(8, 50), row(4, 40))
    assert found is not None and found.jobs == ("9", "3", "5")


def test_jobs_that_wait_for_something_of_their_own_are_not_in_line() -> None:
    found = in_line(row(7, 50), row(3, 60, "Dependency"), row(4, 60, "QOSMaxJobsPerUserLimit"), row(5, 60, "Resources"))
    assert found is not None and (found.jobs, found.others) == (("5",), 2)


def test_running_jobs_and_other_partitions_are_not_ahead() -> None:
    other = row(3, 60)._replace(partitions=("low",))
    running = row(4, 60)._replace(state="RUNNING", reason="")
    found = in_line(row(7, 50), other, running, row(5, 60)._replace(partitions=("low", "gpu")))
    assert found is not None and found.jobs == ("5",)


def test_a_partition_of_a_higher_tier_on_the_same_nodes_goes_first() -> None:
    known = asking("7", Partition="low")
    mine, other = row(7, 50)._replace(partitions=("low",)), row(3, 1)
    found = queue_position.find_ahead(replace(known, reason=find_reason("Priority"), queue=(mine, other)))
    assert found is not None and found.elsewhere == (("gpu", 1),)
    assert "1 job in partition gpu, which has priority on the same nodes" in found.sentence("partition low")


def test_a_held_job_has_no_place_in_line() -> None:
    assert in_line(row(7, 0), row(3, 60)) is None


def test_a_job_in_no_line_is_given_no_count() -> None:
    assert judged("9").ahead is None and judged("21").ahead is None


def backfill_gap(*starts: int, free: int = 4, time_limit: str = "02:00:00", **asked: str) -> Finding:
    """A job of one node and two GPUs, behind jobs that are expected to start in so many seconds (0: not known)."""
    known = asking("7", Partition="gpu", NumNodes="1", TRES="cpu=1,node=1,gres/gpu=2", TimeLimit=time_limit, **asked)
    ahead = [row(n, 90 - n, start=int(NOW) + s if s else None) for n, s in enumerate(starts, 50)]
    here = Node(name="n1", partitions=("gpu",), state="MIXED", cpus=8, gpus=(("", 4),), gpus_used=(("", 4 - free),))
    queue = [row(int(known.job["JobId"]), 5), *ahead]
    return queue_position.backfill_gap(replace(known, reason=find_reason("Priority"), queue=queue, nodes=[here]))


def test_a_time_limit_that_fits_before_the_next_in_line() -> None:
    command = backfill_gap(3600, 1810).do[1]
    assert command.startswith("scontrol update JobId=7 TimeLimit=29  # minutes, so that the job ends before job 51 ")
    assert command.endswith(" is expected to start; you cannot raise the limit later")


@pytest.mark.parametrize(
    "found",
    [
        backfill_gap(1800, free=1),
        backfill_gap(0),
        backfill_gap(100),
        backfill_gap(1800, time_limit="00:20:00"),
        backfill_gap(1800, Features="h100&ib|x"),
        backfill_gap(),
    ],
    ids=["no room", "no plan", "no time", "short enough", "unknown features", "nobody ahead"],
)
def test_no_time_limit_is_named_that_would_not_help(found: Finding) -> None:
    assert found == Finding()


def test_who_holds_what_is_asked_for() -> None:
    held = {3: ("kim", 8), 4: ("root", 2), 5: ("kim", 4)}
    rows = [
        row(number, 5, "", state="RUNNING", user=user, left=60 * number, tres=(("gres/gpu", float(gpus)),))
        for number, (user, gpus) in held.items()
    ]
    found = queue_position.next_ends(facts("7", queue=rows))
    assert found.here == (
        "3 jobs running in partition gpu; first to end, by time limit: job 3 (kim) within 3:00, job 4 within 4:00, "
        "job 5 (kim) within 5:00",
        "in use: 12 GPUs by kim, 2 GPUs by this job's user",
    )


def test_what_a_priority_is_made_of() -> None:
    known = facts("7", reason=find_reason("Priority"), queue=[row(7, 500), row(3, 1500)],
                  priorities=parse_priority("7|500|1|0|499|0|0|0|0\n3|1500|1000.5|0|499|0|0|0|0\n"))  # fmt: skip
    assert queue_position.priority_parts(known).here == (
        "the job's priority is 500: fair share 499, age 1",
        "job 3, the first in line, has priority 1500: age 1000.5, fair share 499",
    )
    assert queue_position.priority_parts(replace(known, priorities=None)) == Finding()


def test_a_begin_time() -> None:
    found = judged("9")
    assert found.here[0].startswith("the job's earliest start time is ") and found.here[0].endswith(
        f"in {format_duration(1795260498 - NOW)}"
    )
    assert found.do == ("scontrol update JobId=9 StartTime=now",)


def test_a_requeue_explains_its_begin_time() -> None:
    found = queue_position.earliest_start(asking("9", Restarts="2"))
    assert "requeued (2 restarts)" in found.here[1]


def test_who_holds_it_and_who_can_release_it() -> None:
    user, admin = judged("10"), judged("16")
    assert user.do == ("scontrol release 10",) and user.starts is Starts.YOU
    assert admin.do == ("ask the administrators to release the job",) and admin.starts is Starts.ADMIN
    assert "users cannot release it" in admin.here[0]
    noted = queue_position.describe_hold(replace(asking("16", AdminComment="see ticket 5")))
    assert noted.here[1] == "administrators' comment: see ticket 5"


def test_an_arrays_throttle() -> None:
    found = judged("11")
    assert found.here == ("array 11 may run 1 task at a time (%1); 1 running: 11_1",)
    assert found.do[0].startswith("scontrol update JobId=11 ArrayTaskThrottle=2")


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_task_that_is_over_does_not_count_for_the_throttle(state: str) -> None:
    tasks = [Queued(id="11_1", raw=12, state="RUNNING"), Queued(id="11_2", raw=13, state=state)]
    assert "; 1 running: 11_1" in queue_position.array_throttle(facts("11", queue=tasks)).here[0]


def test_licenses_who_uses_them() -> None:
    queue = [row(7, 5, "Licenses", licenses=(("matlab", 2),)),
             Queued(id="3", raw=3, state="RUNNING", partitions=("gpu",), licenses=(("matlab", 1),))]  # fmt: skip
    licenses = [{"LicenseName": "matlab", "Total": "2", "Used": "1"}]
    found = queue_position.license_use(facts("7", reason=find_reason("Licenses"), queue=queue, licenses=licenses))
    assert found.here == ("the job requests 2 matlab licenses; 1 of 2 in use, by job 3",)
    assert queue_position.license_use(facts("7", queue=queue, licenses=[])).unseen == ("license matlab",)


# -- dependencies ------------------------------------------------------------------------------------------------------


def ended(number: str, state: str, outcome: Outcome) -> JobStatus:
    return JobStatus(id=JobId.parse(number), state=state, outcome=outcome)


def test_a_dependency_that_can_never_be_met() -> None:
    found = judged("18", past=[ended("17", "FAILED", Outcome.FAILED)], queue=[])
    assert found.here == (
        "afterok:17 waits for job 17 to succeed; that job is FAILED, so this condition can never be met",
    )
    assert found.do == ("scontrol update JobId=18 Dependency=", "clusterrun cancel 18")
    assert found.starts is Starts.NEVER and "will never start" in dict(found.facts())["means"][0]


@pytest.mark.parametrize(
    ("text", "never", "words"),
    [
        ("afterok:3(unfulfilled)", False, "is RUNNING, for at most "),
        ("afterany:5(unfulfilled)", False, "waits for job 5 to end; that job is RUNNING"),
        ("afternotok:99(unfulfilled)", False, "to fail; the state of that job is unknown"),
        ("afterok:99(failed)", True, "Slurm reports that this condition has failed"),
        ("afterok:17(unfulfilled)?afterok:3(unfulfilled)", False, "one of these"),
        ("afterok:17(unfulfilled),afterok:3(unfulfilled)", True, "all of these"),
        ("singleton(unfulfilled)", False, "all the user's earlier jobs with the same name"),
        ("afterok:11_*(unfulfilled)", False, "unfinished tasks"),
        ("aftersomething:3(unfulfilled)", False, "aftersomething:3; that job is RUNNING"),
    ],
)
def test_conditions(text: str, never: bool, words: str) -> None:
    past = [ended("17", "FAILED", Outcome.FAILED)]
    lines, bad = dependencies.describe_conditions(text, facts("18").queue, past)
    assert bad is never and any(words in line for line in lines), lines


def test_a_cancelled_job_fulfils_afternotok_and_breaks_afterok() -> None:
    past = [ended("17", "CANCELLED", Outcome.CANCELLED)]
    assert dependencies.describe_conditions("afternotok:17", [], past)[1] is False
    assert dependencies.describe_conditions("afterok:17", [], past)[1] is True


@given(st.text())
def test_no_dependency_breaks_it(text: str) -> None:
    dependencies.describe_conditions(text, [], [])
