"""External jobs: waited for task by task; the queue shows their end, then accounting, else it is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.records.store import Store
from clusterrun.scheduler import Answer, ClusterFacts
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.state import external
from clusterrun.state.external import ExternalJobs
from clusterrun.state.query import unmatched_jobs
from clusterrun.state.watch import Watch
from clusterrun.system.shell import Completed
from tests.support.run_records import AT, submitted


def row(id: str, state: str = "RUNNING", **more: object) -> JobStatus:
    job = JobStatus(id=JobId.parse(id), state=state, outcome=outcome_of(state), submitted=AT)
    return replace(job, **more)  # type: ignore[arg-type]


class Slurm:
    """Returns the given answers, and records the queries."""

    name, cluster = "slurm", "lab"

    def __init__(self, *rows: JobStatus) -> None:
        self.queue, self.past = Answer(rows), Answer()
        self.seconds = 0.0
        self.asked: list[str] = []

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        self.asked.append("squeue " + ",".join(map(str, ids or ())))
        return self.queue

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        self.asked.append("sacct " + ",".join(map(str, ids)))
        return self.past

    def watch(self, *ids: str) -> Watch:
        jobs = ExternalJobs([JobId.parse(i) for i in ids], self, now=lambda: self.seconds, clock=lambda: AT)  # type: ignore[arg-type]
        return Watch([], lambda runs: [], None, jobs, now=lambda: self.seconds)


def look(watch: Watch, slurm: Slurm, after: float) -> tuple[dict[str, str], bool]:
    slurm.seconds += after
    states = watch.poll().states
    return {str(s.status.id): s.status.state for s in states}, all(map(watch.is_settled, states))


def test_a_job_is_over_when_the_queue_says_so_and_is_not_asked_for_again() -> None:
    slurm = Slurm(row("5"))
    watch = slurm.watch("5")
    assert look(watch, slurm, 0) == ({"5": "RUNNING"}, False)
    slurm.queue = Answer([row("5", "COMPLETED")])
    assert look(watch, slurm, 5) == ({"5": "COMPLETED"}, True)
    look(watch, slurm, 600)
    assert slurm.asked == ["squeue 5", "squeue 5"]


def test_accounting_is_queried_once_for_a_task_that_left_the_queue() -> None:
    slurm = Slurm(row("5_1"), row("5_2", "COMPLETED"), row("5", "PENDING", tasks="3-4"))
    watch = slurm.watch("5")
    slurm.queue = Answer([row("5_4")])
    slurm.past = Answer([row("5_1", "FAILED"), row("5_2", "FAILED"), row("5_3", "COMPLETED"), row("5_4", "RUNNING")])
    states, over = look(watch, slurm, 5)
    assert states == {"5_1": "FAILED", "5_2": "COMPLETED", "5_3": "COMPLETED", "5_4": "RUNNING"} and not over
    slurm.queue = Answer([row("5_4", "COMPLETED")])
    assert look(watch, slurm, 30)[1]
    assert [asked for asked in slurm.asked if "sacct" in asked] == ["sacct 5"]


def test_one_task_of_an_array_is_waited_for_alone() -> None:
    slurm = Slurm(row("5_1"), row("5_2"))
    watch = slurm.watch("5_1")
    assert look(watch, slurm, 5)[0] == {"5_1": "RUNNING"}


def test_without_accounting_what_left_the_queue_is_not_known() -> None:
    slurm = Slurm(row("5"))
    watch = slurm.watch("5")
    slurm.queue, slurm.past = Answer(), Answer(no_accounting=True)
    assert look(watch, slurm, 5) == ({"5": "UNKNOWN"}, True)
    assert "has no accounting" in watch.poll().states[0].status.reason


def test_accounting_that_lags_is_asked_twice_a_minute_apart() -> None:
    slurm = Slurm(row("5"))
    watch = slurm.watch("5")
    slurm.queue = Answer()
    assert not look(watch, slurm, 5)[1] and not look(watch, slurm, 30)[1]
    slurm.past = Answer([row("5", "COMPLETED")])
    assert look(watch, slurm, 31) == ({"5": "COMPLETED"}, True)
    assert sum("sacct" in asked for asked in slurm.asked) == 2


def test_accounting_that_does_not_answer_is_never_given_up() -> None:
    slurm = Slurm(row("5"))
    watch = slurm.watch("5")
    slurm.queue, slurm.past = Answer(), Answer(complete=False, note="sacct: no")
    for _ in range(20):
        assert look(watch, slurm, 25) == ({"5": "UNKNOWN"}, False)
        assert watch.poll().states[0].note == "sacct: no"
    slurm.past = Answer([row("5", "COMPLETED")])
    assert look(watch, slurm, 61) == ({"5": "COMPLETED"}, True)


def test_a_job_that_left_after_accounting_was_asked_about_another_is_asked_for_twice_too() -> None:
    slurm = Slurm(row("5"), row("6"))
    watch = slurm.watch("5", "6")
    slurm.queue = Answer([row("6")])
    look(watch, slurm, 5)
    slurm.queue = Answer()
    look(watch, slurm, 10)
    assert not look(watch, slurm, 55)[1] and not look(watch, slurm, 30)[1], "of 6 accounting was asked once"
    slurm.past = Answer([row("6", "COMPLETED")])
    assert look(watch, slurm, 31)[0]["6"] == "COMPLETED"


def test_a_silent_controller_changes_no_state() -> None:
    slurm = Slurm(row("5"))
    watch = slurm.watch("5")
    slurm.queue = Answer(complete=False, note="squeue: no")
    for _ in range(20):
        assert look(watch, slurm, 60) == ({"5": "RUNNING"}, False)
    assert watch.poll().states[0].note == "squeue: no"


def test_the_last_known_state_has_its_age() -> None:
    slurm = Slurm()
    slurm.queue = Answer(complete=False, note="squeue: no", last=[row("5")], last_at=AT)
    (state,) = external.query_states([JobId("5")], slurm, AT + 60)[JobId("5")]  # type: ignore[arg-type]
    assert (state.status.state, state.as_of, state.note) == ("RUNNING", AT, "squeue: no")
    with pytest.raises(SchedulerError):
        external.query_states([JobId("6")], slurm, AT)  # type: ignore[arg-type]


def test_the_queue_beyond_our_runs(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path / "state")
    known, unknown = submitted(store, 1), submitted(store, 2)
    mine = [row(str(run.job_id), name=f"{run.name}.{run.submission.token[:8]}", script=f"{run.run_dir}/script.sh")
            for run in (known, unknown)]  # fmt: skip
    renamed = row("900", name="x.zzzzzzzz", script=mine[1].script)
    queue = [*mine, row("7", name="theirs"), renamed, row("8", "COMPLETED", name="done")]
    more, others = unmatched_jobs(store, [known], Answer(queue))
    assert [run.run_id for run in more] == [unknown.run_id], "a run is found by the script Slurm was given"
    assert [str(state.status.id) for state in others] == ["7"], "a job that a site renamed is that of its script"
    _, others = unmatched_jobs(store, [known], Answer(queue), everything=True)
    assert [str(state.status.id) for state in others] == ["7", "8"]


def test_accounting_is_queried_once_a_minute() -> None:
    commands, seconds = list[list[str]](), [0.0]

    def run(argv: Sequence[str], **_: object) -> Completed:
        commands.append(list(argv))
        return Completed(0, "", "")

    facts = ClusterFacts("lab", accounting=True, gpus=False)
    slurm = SlurmScheduler(facts, {}, run=run, accounting_interval=60.0, now=lambda: seconds[0])
    assert slurm.account([JobId("5")], 0) is slurm.account([JobId("5")], 0)
    assert not slurm.account([JobId("6")], 0).complete
    seconds[0] = 61
    assert slurm.account([JobId("6")], 0).complete
    first, second = commands
    assert first[0] == second[0] == "sacct" and "5" in " ".join(first) and "6" in " ".join(second)
    assert slurm.cluster == "lab"
