"""Waiting for jobs: what is said on the way, and that the end is left to who asked."""

from __future__ import annotations

from dataclasses import replace

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.records.store import Store
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.watch import wait_for_end
from tests.support.command_desk import Desk
from tests.support.listed_jobs import rows, run, run_row


def job(number: int, state: str, note: str = "") -> RunState:
    return RunState(None, JobStatus(id=JobId(str(number)), state=state, outcome=outcome_of(state), name="x"), note=note)


class Looks:
    """A watch whose looks are given; the last is the end."""

    def __init__(self, *looks: list[RunState]) -> None:
        self.looks = list(looks)

    def poll(self) -> Listing:
        return Listing(self.looks.pop(0) if len(self.looks) > 1 else self.looks[0])

    def is_settled(self, state: RunState) -> bool:
        return state.status.is_over


def test_a_change_is_printed_once_and_the_end_not_at_all() -> None:
    lines: list[str] = []
    looks = Looks([job(7, "PENDING")], [job(7, "PENDING")], [job(7, "RUNNING")], [job(7, "COMPLETED")])
    (ended,) = wait_for_end(looks, lines.append, lambda seconds: None)
    assert lines == ["job 7: PENDING", "job 7: RUNNING"] and ended.status.state == "COMPLETED"


def test_a_silent_scheduler_is_named_in_one_line_for_all_jobs() -> None:
    lines: list[str] = []
    running = [job(n, "RUNNING") for n in range(3)]
    silent = [replace(state, note="squeue: timed out") for state in running]
    wait_for_end(
        Looks(running, silent, silent, [job(n, "FAILED") for n in range(3)]), lines.append, lambda seconds: None
    )
    assert lines[3:] == ["3 jobs: state unknown (squeue: timed out); still waiting"]


def test_a_word_that_says_what_the_state_says_is_left_out(desk: Desk) -> None:
    one = run(Store(desk.project, desk.state))
    desk.slurm.answer("squeue", rows(run_row(one, T="CANCELLED")))
    assert desk.type("wait", "101").err.splitlines()[0] == "clusterrun: job 101: CANCELLED"
    desk.slurm.answer("squeue", rows(run_row(one, T="TIMEOUT", r="TimeLimit")))
    assert desk.type("wait", "101").err.splitlines()[0] == "clusterrun: job 101: TIMEOUT (failed): TimeLimit"
