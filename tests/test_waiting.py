"""Why a job waits: evidence as pure functions over recorded answers of Slurm 22.05.8, and the few questions asked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun import shell, waiting
from clusterrun.errors import CommandError
from clusterrun.job import JobId, JobStatus, Outcome
from clusterrun.progress import Metrics, RankProgress
from clusterrun.reasons import Starts, explain
from clusterrun.scheduler.slurm import ClusterFacts, SlurmScheduler
from clusterrun.scheduler.slurm_limits import Holder, parse_limits
from clusterrun.scheduler.slurm_nodes import parse_nodes
from clusterrun.scheduler.slurm_priority import parse_priority
from clusterrun.scheduler.slurm_queue import Queued, parse_queue
from clusterrun.scheduler.slurm_show import parse_show
from clusterrun.scheduler.slurm_text import SEP
from clusterrun.shell import Completed
from clusterrun.states import RunState
from clusterrun.survey import Association
from clusterrun.waiting import dependencies, limits, places, turns, underway
from clusterrun.waiting.asking import ask
from clusterrun.waiting.facts import Facts
from clusterrun.waiting.found import Found
from clusterrun.waiting.words import clock, moment, several, some

DATA = Path(__file__).parent / "data" / "slurm"
NOW = 1795257870.0  # when the answers were recorded


def recorded(name: str) -> str:
    return shell._text((DATA / f"why-{name}.txt").read_bytes())


@cache
def whole() -> Facts:
    """Everything that was recorded, seen from no job."""
    return Facts(
        id="",
        reason=None,
        now=NOW,
        queue=parse_queue(recorded("squeue-whole")),
        partitions=parse_show(recorded("show-partitions")),
        nodes=parse_nodes(recorded("show-nodes")),
        reservations=parse_show(recorded("show-reservations")),
        licenses=parse_show(recorded("show-licenses")),
        holders=parse_limits(recorded("show-qos")) + parse_limits(recorded("show-assoc")),
        past=[],
    )


@cache
def request(number: str) -> dict[str, str]:
    """What a job asks for; of an array, of its waiting tasks."""
    blocks = [b for b in parse_show(recorded("show-jobs")) if b["JobId"] == number]
    return next((b for b in blocks if b["JobState"] == "PENDING"), blocks[0])


def facts(number: str, **changes: Any) -> Facts:
    """Everything that was recorded, seen from one job."""
    asked = request(number)
    return replace(whole(), **{"id": number, "reason": explain(asked["Reason"]), "job": asked, **changes})


def status(number: str, reason: str = "") -> JobStatus:
    said = reason or facts(number).job["Reason"]
    return JobStatus(id=JobId.parse(number), state="PENDING", outcome=Outcome.RUNNING, reason=said)


def judged(number: str, **changes: Any) -> waiting.Waiting:
    return waiting.judge(facts(number, **changes), status(number))


def asking(number: str, **request: str) -> Facts:
    """A recorded job that asks for something else."""
    known = facts(number)
    return replace(known, job=known.job | request)


# -- limits --------------------------------------------------------------------------------------------------------


def test_a_users_limit_in_a_qos_its_use_and_its_holders() -> None:
    here = judged("21").here
    assert here[0] == "QOS tight, for each user, allows 2 gres/gpu (MaxTRESPerUser); 2 gres/gpu in use"
    assert here[1] == "this job asks for 4 gres/gpu"
    assert here[2].startswith("held by job 3 (2 gres/gpu, at most ")


def test_the_other_qos_of_the_user_are_where_it_can_go() -> None:
    rows = [Association("physics", "", ("normal", "tight"), ""), Association("chem", "", ("big",), "")]
    assert judged("21", associations=rows).do == (
        "wait for those jobs, or move it:", "scontrol update JobId=21 QOS=normal"
    )  # fmt: skip
    moved = limits.evidence(replace(facts("5", associations=rows), reason=explain("AssocGrpCpuLimit")))
    assert moved.do[-1] == "scontrol update JobId=5 Account=physics"
    assert "QOS=NAME" in judged("21", associations=[]).do[0]


def test_an_accounts_limit() -> None:
    found = limits.evidence(replace(facts("5"), reason=explain("AssocGrpCpuLimit")))
    assert found.here[0] == "account chem allows 2 cpu (GrpTRES); 2 cpu in use"
    assert found.here[1] == "this job asks for 2 cpu"


def qos(field: str, value: str) -> list[Holder]:
    return [Holder(kind="qos", qos="tight", values={field: value})]


@pytest.mark.parametrize(
    "reason, field, value, line, command",
    [
        ("QOSMaxWallDurationPerJobLimit", "MaxWallPJ", "60",
         "QOS tight, for each job, allows 1:00:00 (MaxWallDurationPerJob)",
         "scontrol update JobId=21 TimeLimit=1:00:00"),
        ("QOSMaxCpuMinutesPerJobLimit", "MaxTRESMinsPJ", "cpu=600",
         "QOS tight, for each job, allows 600 minutes of cpu (MaxTRESMinsPerJob)",
         "scontrol update JobId=21 TimeLimit=10:00:00"),
        ("QOSMaxMemoryPerJob", "MaxTRESPJ", "cpu=8,mem=2048",
         "QOS tight, for each job, allows 2G mem (MaxTRESPerJob)", None),
        ("QOSMinCpuNotSatisfied", "MinTRESPJ", "cpu=4",
         "QOS tight, for each job, demands at least 4 cpu (MinTRESPerJob)", None),
        ("QOSGrpJobsLimit", "GrpJobs", "1(1)", "QOS tight allows 1 running job (GrpJobs); 1 running job in use", None),
        ("QOSGrpGRESRunMinutes", "GrpTRESRunMins", "gres/gpu=100(90)",
         "QOS tight allows 100 minutes of gres/gpu (GrpTRESRunMins); 90 minutes of gres/gpu in use", None),
    ],
)  # fmt: skip
def test_each_kind_of_limit(reason: str, field: str, value: str, line: str, command: str | None) -> None:
    found = limits.evidence(replace(facts("21"), reason=explain(reason), holders=qos(field, value)))
    assert found.here[0] == line
    assert found.do == ((command,) if command else ())


def test_of_several_bounds_that_which_stops_the_job_is_told() -> None:
    rows = [Holder(kind="qos", qos=name, values={"GrpTRES": value}) for name, value in
            (("tight", "gres/gpu=64(2)"), ("part", "gres/gpu=4(2)"))]  # fmt: skip
    found = limits.evidence(replace(facts("21"), reason=explain("QOSGrpGRES"), holders=rows))
    assert [line for line in found.here if line.startswith("QOS")] == [
        "QOS part allows 4 gres/gpu (GrpTRES); 2 gres/gpu in use"
    ]


def test_a_limit_that_is_not_shown_is_said_to_be_unseen() -> None:
    asked = replace(facts("21"), holders=[])
    assert limits.evidence(asked).unseen == ("a MaxTRESPerUser on QOS tight: none is shown to you there",)
    assert limits.evidence(replace(asked, holders=None)).unseen == ("the limit MaxTRESPerUser of its qos",)


# -- nodes and partitions ------------------------------------------------------------------------------------------


def test_a_node_that_is_asked_for_and_drained() -> None:
    found = judged("22")
    assert found.here[0] == "it asks for node2"
    assert any(line.startswith("node2 is draining: bad fan [left = 2], by root, ") for line in found.here)
    assert found.do[0] == "scontrol update JobId=22 ReqNodeList="


def test_a_reservation_that_comes_and_a_time_limit_that_ends_before_it() -> None:
    found = judged("7")
    assert found.here[0].startswith("reservation maint (MAINT,SPEC_NODES) begins at ")
    assert "1 node: node1" in found.here[0]
    minutes = (1795260600 - int(NOW)) // 60 - 1
    assert found.do[0].startswith(f"scontrol update JobId=7 TimeLimit={minutes} ")


def test_what_is_asked_against_what_is_free() -> None:
    found = places.room(facts("7"))
    assert found.here[0] == (
        "it asks for 2 nodes, 8 GPUs, 2 CPUs, 3.91G of memory; free now in partition gpu: 16 of 32 CPUs, 4 of 8 GPUs"
    )
    assert found.here[1] == "1 node of 2 has room for it now (node1); it needs 2"


def test_gpus_are_known_where_they_are_not_accounted() -> None:
    found = places.room(asking("7", TRES="cpu=2,mem=4000M,node=2", TresPerNode="gres:gpu:a100:4"))
    assert found.here[0].startswith("it asks for 2 nodes, 8 GPUs, 2 CPUs")


def test_a_time_limit_beyond_the_partitions() -> None:
    found = judged("15")
    assert found.here[0] == "partition tiny allows 30:00; this job asks for 1:00:00"
    assert found.here[1] == "allowed in gpu, low"
    assert found.do == ("scontrol update JobId=15 TimeLimit=30:00", "scontrol update JobId=15 Partition=gpu")
    assert found.starts is Starts.YOU


def test_more_nodes_than_the_partition_takes() -> None:
    found = judged("14")
    assert found.here[0] == "partition tiny allows 1 node for a job; this job asks for 2"
    assert found.do[0] == "scontrol update JobId=14 NumNodes=1" and found.starts is Starts.YOU


def test_a_node_limit_that_comes_of_nodes_that_are_out_passes_by_itself() -> None:
    known = replace(asking("22", Reason="PartitionNodeLimit"), reason=explain("PartitionNodeLimit"))
    found = waiting.judge(known, status("22", "PartitionNodeLimit"))
    assert found.starts is Starts.ALONE
    assert any("bad fan" in line for line in found.here)


def test_a_partition_that_is_down() -> None:
    down = [p | ({"State": "DOWN"} if p["PartitionName"] == "gpu" else {}) for p in facts("6").partitions or ()]
    found = places.rules(replace(facts("6"), partitions=down))
    assert found.here[0] == "partition gpu is DOWN"
    assert found.do == ("scontrol update JobId=6 Partition=low",)


# -- turns ---------------------------------------------------------------------------------------------------------


def row(number: int, priority: int, reason: str = "Priority", **more: Any) -> Queued:
    return Queued(
        id=str(number), raw=number, state="PENDING", reason=reason, partitions=("gpu",), priority=priority, **more
    )


def in_line(*rows: Queued) -> turns.Ahead | None:
    known = facts("7", reason=explain("Priority"), queue=rows)
    return turns.ahead(replace(known, job=known.job | {"JobId": "7", "Partition": "gpu"}))


def test_jobs_ahead_have_a_higher_priority_or_came_first() -> None:
    found = in_line(row(7, 50), row(3, 60), row(9, 70), row(5, 50), row(8, 50), row(4, 40))
    assert found is not None and found.jobs == ("9", "3", "5")


def test_jobs_that_wait_for_something_of_their_own_are_not_in_line() -> None:
    found = in_line(row(7, 50), row(3, 60, "Dependency"), row(4, 60, "QOSMaxJobsPerUserLimit"), row(5, 60, "Resources"))
    assert found is not None and (found.jobs, found.others) == (("5",), 2)


def test_running_jobs_and_other_partitions_are_not_ahead() -> None:
    other = replace(row(3, 60), partitions=("low",))
    running = replace(row(4, 60), state="RUNNING", reason="")
    found = in_line(row(7, 50), other, running, replace(row(5, 60), partitions=("low", "gpu")))
    assert found is not None and found.jobs == ("5",)


def test_a_partition_of_a_higher_tier_on_the_same_nodes_goes_first() -> None:
    known = asking("7", Partition="low")
    mine, other = replace(row(7, 50), partitions=("low",)), row(3, 1)
    found = turns.ahead(replace(known, reason=explain("Priority"), queue=(mine, other)))
    assert found is not None and found.elsewhere == (("gpu", 1),)
    assert "1 job of partition gpu, which goes first on the same nodes" in found.sentence(("low",))


def test_a_held_job_has_no_place_in_line() -> None:
    assert in_line(row(7, 0), row(3, 60)) is None


def test_a_job_in_no_line_is_given_no_count() -> None:
    assert judged("9").ahead is None and judged("21").ahead is None


def test_what_a_priority_is_made_of() -> None:
    known = facts("7", reason=explain("Priority"), queue=[row(7, 500), row(3, 1500)],
                  priorities=parse_priority("7|500|1|0|499|0|0|0|0\n3|1500|1000.5|0|499|0|0|0|0\n"))  # fmt: skip
    assert turns.parts(known).here == (
        "its priority is 500: fair share 499, age 1",
        "job 3, the first in line, has 1500: age 1000.5, fair share 499",
    )
    assert turns.parts(replace(known, priorities=None)) == Found()


def test_a_begin_time() -> None:
    found = judged("9")
    assert found.here[0].startswith("it may start from ") and found.here[0].endswith(f"in {clock(1795260498 - NOW)}")
    assert found.do == ("scontrol update JobId=9 StartTime=now",)


def test_a_requeue_explains_its_begin_time() -> None:
    found = turns.begin(asking("9", Restarts="2"))
    assert "put back into the queue (2 restarts)" in found.here[1]


def test_who_holds_it_and_who_can_release_it() -> None:
    user, admin = judged("10"), judged("16")
    assert user.do == ("scontrol release 10",) and user.starts is Starts.YOU
    assert admin.do == ("ask the administrators to release it",) and admin.starts is Starts.ADMIN
    assert "refused to users" in admin.here[0]
    noted = turns.hold(replace(asking("16", AdminComment="see ticket 5")))
    assert noted.here[1] == "the administrators' note: see ticket 5"


def test_an_arrays_throttle() -> None:
    found = judged("11")
    assert found.here == ("%1 allows 1 task of array 11 at a time; 1 running: 11_1",)
    assert found.do[0].startswith("scontrol update JobId=11 ArrayTaskThrottle=2")


def test_licenses_who_uses_them() -> None:
    queue = [row(7, 5, "Licenses", licenses=(("matlab", 2),)),
             Queued(id="3", raw=3, state="RUNNING", partitions=("gpu",), licenses=(("matlab", 1),))]  # fmt: skip
    licenses = [{"LicenseName": "matlab", "Total": "2", "Used": "1"}]
    found = turns.licenses(facts("7", reason=explain("Licenses"), queue=queue, licenses=licenses))
    assert found.here == ("it asks for 2 matlab; 1 of 2 in use, by 3",)
    assert turns.licenses(facts("7", queue=queue, licenses=[])).unseen == ("license matlab",)


# -- dependencies --------------------------------------------------------------------------------------------------


def ended(number: str, state: str, outcome: Outcome) -> JobStatus:
    return JobStatus(id=JobId.parse(number), state=state, outcome=outcome)


def test_a_dependency_that_can_never_be_met() -> None:
    found = judged("18", past=[ended("17", "FAILED", Outcome.FAILED)], queue=[])
    assert found.here == ("afterok:17 waits for job 17 to end well, and it is FAILED: this can never be met",)
    assert found.do == ("scontrol update JobId=18 Dependency=", "clusterrun cancel 18")
    assert found.starts is Starts.NEVER and "never starts" in dict(found.facts())["means"][0]


@pytest.mark.parametrize(
    "text, never, words",
    [
        ("afterok:3(unfulfilled)", False, "is RUNNING, at most "),
        ("afterany:5(unfulfilled)", False, "waits for job 5 to end; it is RUNNING"),
        ("afternotok:99(unfulfilled)", False, "to fail; how that job stands could not be seen"),
        ("afterok:99(failed)", True, "Slurm says that this has failed"),
        ("afterok:17(unfulfilled)?afterok:3(unfulfilled)", False, "one of these"),
        ("afterok:17(unfulfilled),afterok:3(unfulfilled)", True, "all of these"),
        ("singleton(unfulfilled)", False, "no other job of yours with its name"),
        ("afterok:11_*(unfulfilled)", False, "tasks that are not over"),
        ("aftersomething:3(unfulfilled)", False, "aftersomething:3; it is RUNNING"),
    ],
)
def test_conditions(text: str, never: bool, words: str) -> None:
    past = [ended("17", "FAILED", Outcome.FAILED)]
    lines, bad = dependencies.sentences(text, facts("18").queue, past)
    assert bad is never and any(words in line for line in lines), lines


def test_a_cancelled_job_fulfils_afternotok_and_breaks_afterok() -> None:
    past = [ended("17", "CANCELLED", Outcome.CANCELLED)]
    assert dependencies.sentences("afternotok:17", [], past)[1] is False
    assert dependencies.sentences("afterok:17", [], past)[1] is True


@given(st.text())
def test_no_dependency_breaks_it(text: str) -> None:
    dependencies.sentences(text, [], [])


# -- the whole -----------------------------------------------------------------------------------------------------


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    found = waiting.judge(replace(facts("7"), reason=None), status("7", "Sun[31mspots"))
    shown = dict(found.facts())
    assert shown["reason"] == ("Sun[31mspots",) and "does not know this reason" in shown["means"][0]
    assert found.json()["word"] is None and found.json()["starts"] is None


def test_nothing_seen_is_said_and_the_reason_still_explained() -> None:
    blind = Facts(id="7", reason=explain("Resources"), now=NOW, unseen=("the queue (squeue: no answer)",))
    found = waiting.judge(blind, status("7", "Resources"))
    assert "next in line" in found.meaning and found.do
    assert "the queue (squeue: no answer)" in found.unseen and "the partition's nodes" in found.unseen


@pytest.mark.parametrize("number", ["6", "7", "9", "10", "11", "14", "15", "16", "18", "21", "22"])
def test_every_job_of_a_real_queue_is_explained(number: str) -> None:
    found = judged(number)
    assert found.reason is not None and found.here and found.do, found.lines()
    assert not any(word in line for line in found.lines() for word in ("None", "{", "Found("))


@pytest.mark.parametrize("lost", ["queue", "partitions", "nodes", "reservations", "licenses", "holders", "past"])
def test_each_answer_may_be_missing(lost: str) -> None:
    for number in ("6", "7", "9", "11", "14", "15", "18", "21", "22"):
        judged(number, **{lost: None})


@given(st.dictionaries(st.sampled_from(sorted(facts("22").job)), st.text(max_size=30)))
def test_no_request_breaks_it(changes: dict[str, str]) -> None:
    for number in ("22", "21", "18", "9", "14"):
        waiting.judge(asking(number, **changes), status(number))


def test_an_estimate_and_the_nodes_it_names() -> None:
    start = waiting.judge(asking("7", StartTime=str(int(NOW) + 90), SchedNodeList="node1"), status("7"))
    assert dict(start.facts())["start"][0].endswith("in 1:30 on node1")
    assert "so it is due" in waiting.judge(asking("7", StartTime=str(int(NOW) - 90)), status("7")).start_line
    assert dict(judged("22").facts())["start"] == ("Slurm has no estimate",)


# -- asking --------------------------------------------------------------------------------------------------------


ANSWERS = {
    "squeue": "squeue-whole",
    "show partition": "show-partitions",
    "show node": "show-nodes",
    "reservation": "show-reservations",
    "license": "show-licenses",
    "flags=qos": "show-qos",
    "flags=assoc": "show-assoc",
}


class Controller:
    """Slurm's commands as recorded; those in `silent` hang, those in `refusing` say no, `also` has other answers."""

    def __init__(
        self, silent: Sequence[str] = (), refusing: Sequence[str] = (), also: Mapping[str, str] | None = None
    ) -> None:
        self.silent, self.refusing, self.also = silent, refusing, also or {}
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], **_: object) -> Completed:
        text = " ".join(argv)
        self.asked.append(text)
        if any(word in text for word in self.silent):
            raise CommandError(argv, status=None, timed_out=True)
        if any(word in text for word in self.refusing):
            return Completed(1, "", "slurm_load error: Access/permission denied\n")
        if any(word in text for word in self.also):
            return Completed(0, next(answer for word, answer in self.also.items() if word in text), "")
        if "show job" in text:
            blocks = recorded("show-jobs").split("\n\n")
            return Completed(0, next(b for b in blocks if f"JobId={argv[-1]} " in b), "")
        name = next((name for word, name in ANSWERS.items() if word in text), "")
        return Completed(0, recorded(name) if name else "", "")


def slurm(controller: Controller, accounting: bool = True) -> SlurmScheduler:
    return SlurmScheduler(ClusterFacts("lab", accounting=accounting, gpus=True), {}, run=controller)


@pytest.mark.parametrize(
    "reason, calls",
    [("Resources", 5), ("Priority", 6), ("BeginTime", 3), ("QOSMaxGRESPerUser", 5), ("AssocGrpCpuLimit", 5),
     ("Dependency", 4), ("Licenses", 4), ("", 5), ("Sunspots", 5)],
)  # fmt: skip
def test_few_questions_are_asked(reason: str, calls: int) -> None:
    controller = Controller()
    ask(slurm(controller), replace(status("18"), reason=reason), NOW)
    assert len(controller.asked) <= calls, controller.asked


def test_a_silent_command_hides_no_other() -> None:
    controller = Controller(silent=["squeue"], refusing=["assoc_mgr"])
    found = waiting.explain(slurm(controller), RunState(None, status("21")), NOW)
    assert "the queue (squeue: did not answer in time)" in " ".join(found.unseen).replace("squeue: squeue:", "squeue:")
    assert any("the limits (scontrol: slurm_load error: Access/permission denied)" in line for line in found.unseen)
    assert found.reason is not None and found.do


def test_nothing_answers_and_it_still_says_what_the_reason_means() -> None:
    found = waiting.explain(slurm(Controller(silent=["s"])), RunState(None, status("22")), NOW)
    assert found.reason is not None and found.reason.word == "ReqNodeNotAvail"
    assert len(found.unseen) >= 5


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
    found = waiting.explain(slurm(controller), RunState(None, status("18")), NOW)
    assert found.here == ("afterok:17 waits for job 17 to end well, and it is FAILED: this can never be met",)
    assert sum(call.startswith("sacct") for call in controller.asked) == 1


def test_without_accounting_it_is_said_that_they_were_not_seen() -> None:
    controller = Controller(also={"squeue": ""})
    found = waiting.explain(slurm(controller, accounting=False), RunState(None, status("18")), NOW)
    assert found.unseen == ("how jobs ended that have left the queue (this cluster keeps no accounts)",)
    assert "Slurm says that this has failed" in found.here[0]


def test_a_limit_is_looked_for_up_the_tree_of_accounts() -> None:
    child = recorded("show-assoc").replace("cpu=2(2)", "cpu=N(2)").replace("=root(1)", "=top(7)")
    above = recorded("show-assoc").replace("Account=chem", "Account=top")
    controller = Controller(also={"accounts=chem": child, "accounts=top": above})
    found = waiting.explain(slurm(controller), RunState(None, replace(status("5"), reason="AssocGrpCpuLimit")), NOW)
    assert found.here[0] == "account top allows 2 cpu (GrpTRES); 2 cpu in use"


# -- a running job -------------------------------------------------------------------------------------------------


def rank(number: int, ago: float = 1.0, **more: Any) -> RankProgress:
    return RankProgress(rank=number, node=f"node{number // 2}", time=NOW - ago, interval=5.0, phase="training", **more)


def test_ranks_that_all_write() -> None:
    lines = underway.training(Metrics(step=120, time=NOW - 3, loss=2.5), [rank(0), rank(1)], 2, NOW)
    assert lines == ["the last step written down is 120, loss 2.5, 0:03 ago", "all 2 ranks have been heard of lately"]


def test_a_silent_rank_is_named_with_its_node_and_its_last_word() -> None:
    lines = underway.training(Metrics(step=9), [rank(0), rank(1), rank(2, 200, step=7), rank(3)], 4, NOW)
    assert lines[1] == "rank 2 on node1 has been silent for 3:20 (last: training, step 7)"


def test_many_silent_ranks_are_folded() -> None:
    lines = underway.training(None, [rank(n, 99) for n in range(12)], 12, NOW)
    assert lines[-1] == "and so ranks 4-11 are, on node[2-5]"


def test_a_rank_that_was_never_heard_of() -> None:
    lines = underway.training(None, [rank(0), rank(3)], 4, NOW)
    assert "ranks 1-2 are not heard of, of 4 ranks" in lines


def test_a_rank_that_writes_but_does_not_move() -> None:
    lines = underway.training(None, [rank(0, stepped=NOW - 5), rank(1, stepped=NOW - 900)], 2, NOW)
    assert lines[-1] == "rank 1 is alive but not moving: at one step for up to 15:00"


def test_a_users_own_script_has_no_steps_of_ours() -> None:
    ranks = [replace(rank(n), phase="script") for n in range(2)]
    assert underway.training(None, ranks, 2, NOW)[0] == "it runs a script of the user's own, whose steps are not known"


def test_no_records_is_said_not_guessed() -> None:
    assert underway.training(None, [], 4, NOW) == ["its ranks have written nothing yet: no step, no progress record"]
    assert "could not be seen" in underway.training(Metrics(step=1), [], 4, NOW)[-1]


def test_other_states_have_their_sentence() -> None:
    job = JobStatus(id=JobId("3"), state="COMPLETING", outcome=Outcome.RUNNING, started=int(NOW) - 60, nodes="node1")
    lines = underway.lines(job, None, NOW)
    assert lines[0].startswith("COMPLETING since ") and "it is ending" in lines[1]
    assert "Slurm's own word" in underway.lines(replace(job, state="MELTING"), None, NOW)[1]


# -- words ---------------------------------------------------------------------------------------------------------


def test_words() -> None:
    assert (clock(5), clock(65), clock(3665), clock(90061), clock(None)) == (
        "0:05", "1:05", "1:01:05", "1-01:01:01", "an unknown time")  # fmt: skip
    assert several(1, "node") == "1 node" and several(0, "node") == "0 nodes"
    assert some(["a", "b", "c"], 2) == "a, b and 1 more"
    now = time.time()
    assert moment(now + 61, now).endswith(", in 1:01") and moment(now - 3, now).endswith(", 0:03 ago")
