"""Why a job waits: how few questions are asked and what becomes of those without an answer; a job that runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from clusterrun.base.errors import CommandError
from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.base.units import first_few, format_duration, format_time_and_offset, plural
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.reasons import Starts
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.state.reconcile import RunState
from clusterrun.system.shell import Completed
from clusterrun.why import pending
from clusterrun.why.pending import running_job
from clusterrun.why.pending.queries import query_facts
from tests.support.recorded_queue import NOW, recorded, status

# -- asking ------------------------------------------------------------------------------------------------------------


ANSWERS = {
    "squeue": "squeue-whole",
    "show partition": "show-partitions",
    "show node": "show-nodes",
    "reservation": "show-reservations",
    "license": "show-licenses",
}


class Controller:
    """Slurm's commands as recorded; those in `silent` hang, those in `refusing` say no, those in `gone` find no
    slurmctld, `also` has other answers."""

    def __init__(
        self, silent: Sequence[str] = (), refusing: Sequence[str] = (), also: Mapping[str, str] | None = None,
        gone: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.silent, self.refusing, self.gone, self.also = silent, refusing, gone, also or {}
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], **_: object) -> Completed:
        text = " ".join(argv)
        self.asked.append(text)
        if any(word in text for word in self.silent):
            raise CommandError(argv, status=None, timed_out=True)
        if any(word in text for word in self.refusing):
            return Completed(1, "", "slurm_load error: Access/permission denied\n")
        if any(word in text for word in self.gone):
            return Completed(1, "", "slurm_load error: Unable to contact slurm controller (connect failure)\n")
        if any(word in text for word in self.also):
            return Completed(0, next(answer for word, answer in self.also.items() if word in text), "")
        if "show job" in text:
            blocks = recorded("show-jobs").split("\n\n")
            return Completed(0, next(b for b in blocks if f"JobId={argv[-1]} " in b), "")
        if "assoc_mgr" in text:
            return Completed(0, recorded("show-qos") + recorded("show-assoc"), "")
        name = next((name for word, name in ANSWERS.items() if word in text), "")
        return Completed(0, recorded(name) if name else "", "")


def slurm(controller: Controller, accounting: bool = True) -> SlurmScheduler:
    return SlurmScheduler(ClusterFacts("lab", accounting=accounting, gpus=True), {}, run=controller)


@pytest.mark.parametrize(
    ("reason", "calls"),
    [("Resources", 5), ("Priority", 6), ("BeginTime", 3), ("QOSMaxGRESPerUser", 5), ("AssocGrpCpuLimit", 5),
     ("Dependency", 4), ("Licenses", 4), ("", 5), ("Sunspots", 5)],
)  # fmt: skip
def test_few_questions_are_asked(reason: str, calls: int) -> None:
    controller = Controller()
    query_facts(slurm(controller), replace(status("18"), reason=reason), NOW)
    assert len(controller.asked) <= calls, controller.asked


def test_a_job_that_slurm_has_not_looked_at_yet() -> None:
    fresh = replace(status("7"), reason="", source="squeue")
    found = pending.explain(slurm(Controller()), RunState(None, fresh), NOW)
    assert "has not considered it yet" in found.meaning and found.starts is Starts.ALONE
    told = replace(fresh, source="sacct")
    found = pending.explain(slurm(Controller()), RunState(None, told), NOW)
    assert (
        found.reason is None
        and "the job's state in the queue (only accounting shows the job, and accounting may lag behind)"
        in found.unseen
    )


def test_a_silent_command_hides_no_other() -> None:
    controller = Controller(silent=["squeue"], refusing=["assoc_mgr"])
    found = pending.explain(slurm(controller), RunState(None, status("21")), NOW)
    assert "the queue (squeue: timed out)" in " ".join(found.unseen)
    assert any("the limits (scontrol: slurm_load error: Access/permission denied)" in line for line in found.unseen)
    assert found.reason is not None and found.do


def test_nothing_answers_and_it_still_says_what_the_reason_means() -> None:
    found = pending.explain(slurm(Controller(silent=["s"])), RunState(None, status("22")), NOW)
    assert found.reason is not None and found.reason.word == "ReqNodeNotAvail"
    assert len(found.unseen) >= 5


def test_a_controller_that_cannot_be_reached_is_not_asked_again() -> None:
    controller = Controller(gone=["show partition"])
    facts = query_facts(slurm(controller), status("21"), NOW)
    assert len(controller.asked) == 3, "those at its side, which were asked at the same time"
    assert "Unable to contact slurm controller" in facts.unseen[0]
    assert facts.unseen[1:] == tuple(
        f"{what} (skipped: Slurm did not respond to an earlier query)"
        for what in ("the user's accounts and QOS", "the limits")
    )


def test_accounting_is_asked_about_jobs_that_have_left_the_queue() -> None:
    cells = [
        "17",
        "17",
        "FAILED",
        "1:0",
        "root",
        "gpu",
        "node1",
        "1",
        "1",
        "60",
        "1795257600",
        "1795257601",
        "1795257602",
        "x",
    ]
    controller = Controller(also={"squeue": "", "sacct": SEP.join(cells) + "\n"})
    found = pending.explain(slurm(controller), RunState(None, status("18")), NOW)
    assert found.here == (
        "afterok:17 waits for job 17 to succeed; that job is FAILED, so this condition can never be met",
    )
    assert sum(call.startswith("sacct") for call in controller.asked) == 1


def test_without_accounting_it_is_said_that_they_were_not_seen() -> None:
    controller = Controller(also={"squeue": ""})
    found = pending.explain(slurm(controller, accounting=False), RunState(None, status("18")), NOW)
    assert found.unseen == ("the end states of jobs that are no longer in the queue (this cluster has no accounting)",)
    assert "Slurm reports that this condition has failed" in found.here[0]


def test_a_limit_is_looked_for_up_the_tree_of_accounts() -> None:
    child = recorded("show-assoc").replace("cpu=2(2)", "cpu=N(2)").replace("=root(1)", "=top(7)")
    above = recorded("show-assoc").replace("Account=chem", "Account=top")
    controller = Controller(also={"assoc_mgr": child + above})
    found = pending.explain(slurm(controller), RunState(None, replace(status("5"), reason="AssocGrpCpuLimit")), NOW)
    assert found.here[0] == "account top allows 2 cpu (GrpTRES); 2 cpu in use"


def test_the_limits_of_where_it_could_be_moved_come_in_the_same_question() -> None:
    for job in (status("21"), replace(status("5"), reason="AssocGrpCpuLimit")):
        controller = Controller(also={"sacctmgr": "physics||normal,tight,short|\nchem||big|\nbio||normal|\n"})
        query_facts(slurm(controller), job, NOW)
        (asked,) = [call for call in controller.asked if "assoc_mgr" in call]
        assert asked.endswith("flags=assoc,qos users=root")


# -- a running job -----------------------------------------------------------------------------------------------------


def rank(number: int, ago: float = 1.0, **more: Any) -> RankProgress:
    return RankProgress(rank=number, node=f"node{number // 2}", time=NOW - ago, interval=5.0, phase="training", **more)


def test_ranks_that_all_write() -> None:
    lines = running_job.describe_training(Metrics(step=120, time=NOW - 3, loss=2.5), [rank(0), rank(1)], 2, NOW, "5")
    assert lines == ["last recorded step: 120, loss 2.5, 0:03 ago", "2 of 2 ranks responding"]


def test_a_silent_rank_is_named_with_its_node_and_its_last_word() -> None:
    lines = running_job.describe_training(
        Metrics(step=9), [rank(0), rank(1), rank(2, 200, step=7), rank(3)], 4, NOW, "5"
    )
    assert lines[1] == "rank 2 on node1: no heartbeat for 3:20 (last phase: training, step 7)"


def test_many_silent_ranks_are_folded() -> None:
    lines = running_job.describe_training(None, [rank(n, 99) for n in range(12)], 12, NOW, "5")
    assert lines[-1] == "also no heartbeat from ranks 4-11 on node[2-5]"


def test_a_rank_that_was_never_heard_of() -> None:
    lines = running_job.describe_training(None, [rank(0), rank(3)], 4, NOW, "5")
    assert "no heartbeat from ranks 1-2 (of 4 ranks)" in lines


def test_a_rank_that_writes_but_does_not_move() -> None:
    lines = running_job.describe_training(None, [rank(0, stepped=NOW - 5), rank(1, stepped=NOW - 900)], 2, NOW, "5")
    shown = "`clusterrun why 5 --stacks` shows where"
    assert lines[-1] == f"rank 1 is alive but stuck: no new step or collective for 15:00; {shown}"


def test_ranks_that_have_not_moved_for_a_while_have_the_way_to_see_where_they_are() -> None:
    moved = [rank(n, advanced=NOW - 100 + n)._replace(phase="script") for n in range(2)]
    lines = running_job.describe_training(None, moved, 2, NOW, "5")
    shown = "no new step or collective for 1:39: `clusterrun why 5 --stacks` shows where"
    assert lines[-1] == f"2 of 2 ranks responding; {shown}"
    lines = running_job.describe_training(None, [moved[0], rank(1, advanced=NOW - 3)], 2, NOW, "5")
    assert lines[-1] == "2 of 2 ranks responding"


def test_a_users_own_script_has_no_steps_of_ours() -> None:
    ranks = [rank(n)._replace(phase="script") for n in range(2)]
    assert running_job.describe_training(None, ranks, 2, NOW, "5")[0] == "no step recorded yet"


def test_no_records_is_said_not_guessed() -> None:
    assert running_job.describe_training(None, [], 4, NOW, "5") == [
        "the ranks have not recorded any step or progress yet"
    ]
    assert "cannot be detected" in running_job.describe_training(Metrics(step=1), [], 4, NOW, "5")[-1]


def test_other_states_have_their_sentence() -> None:
    job = JobStatus(id=JobId("3"), state="COMPLETING", outcome=Outcome.RUNNING, started=int(NOW) - 60, nodes="node1")
    lines = running_job.describe_running(job, None, NOW)
    assert lines[0].startswith("COMPLETING since ") and "the job is ending" in lines[1]
    assert lines[-1] == "this job has no clusterrun record, so its training progress is unknown", (
        "a record may have been removed"
    )
    assert (
        "does not recognize the state MELTING"
        in running_job.describe_running(replace(job, state="MELTING"), None, NOW)[1]
    )


# -- words -------------------------------------------------------------------------------------------------------------


def test_words() -> None:
    durations = [format_duration(seconds) for seconds in (5, 65, 3665, 90061, None)]
    assert durations == ["0:05", "1:05", "1:01:05", "1-01:01:01", "an unknown time"]
    assert plural(1, "node") == "1 node" and plural(0, "node") == "0 nodes"
    assert first_few(["a", "b", "c"], 2) == "a, b and 1 more"
    now = time.time()
    assert format_time_and_offset(now + 61, now).endswith(", in 1:01") and format_time_and_offset(
        now - 3, now
    ).endswith(", 0:03 ago")
