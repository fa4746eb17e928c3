"""`why` as a command: what it refuses, how it groups an array's tasks, how facts are laid out."""

from __future__ import annotations

import io

import pytest

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.cli.why import _array, _group
from clusterrun.state.reconcile import RunState, Target
from clusterrun.terminal.ui import Ui
from tests.support.command_desk import Desk
from tests.support.listed_jobs import SILENT, rows


def test_jobs_and_logs_cannot_be_combined(desk: Desk) -> None:
    said = desk.type("why", "1", "--logs", ".")
    assert said.status == 2 and "--logs cannot be combined with a job id or --stacks" in said.err


@pytest.mark.parametrize("text", ["1nonsense", "1;2;3", "../../etc", "", "-1"])
def test_what_is_no_job_id_is_refused_before_slurm_is_asked(desk: Desk, text: str) -> None:
    said = desk.type("why", text)
    assert said.status == 2 and desk.slurm.calls == [], said


def state(id: str, word: str, reason: str = "") -> RunState:
    return RunState(None, JobStatus(id=JobId.parse(id), state=word, outcome=outcome_of(word), reason=reason))


def test_tasks_alike_are_told_once() -> None:
    tasks = [state(f"7_{n}", "COMPLETED") for n in range(1000)]
    tasks += [state("7_1000", "RUNNING"), state("7", "PENDING", "JobArrayTaskLimit"), state("8", "RUNNING")]
    kinds = [(str(one.status.id), len(alike)) for one, *alike in _group(tasks)]
    assert kinds == [("7", 0), ("7_1000", 0), ("7_0", 999), ("8", 0)]


def test_of_an_array_what_failed_is_told_first_and_what_is_done_last() -> None:
    words = ("COMPLETED", "RUNNING", "PENDING", "CANCELLED", "FAILED", "COMPLETED", "TIMEOUT")
    tasks = [state(f"7_{n}", word) for n, word in enumerate(words)]
    kinds = [one.status.state for one, *_ in _group([state("9", "COMPLETED"), *tasks, state("8", "FAILED")])]
    assert kinds == ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PENDING", "RUNNING", "COMPLETED", "FAILED"]


LAST = {"i": "7", "T": "PENDING", "r": "BeginTime"}


def test_a_job_that_waits_while_slurm_is_silent_is_one_error(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows(LAST))
    assert desk.type("list").status == 0
    desk.slurm.answer("squeue", **SILENT)
    desk.slurm.forget()
    said = desk.type("why", "7")
    assert (said.status, said.out) == (3, "") and "(last known state: PENDING (BeginTime) 0:0" in said.err
    assert said.err.count("Unable to contact slurm controller") == 1
    assert [call[0] for call in desk.slurm.calls] == ["squeue", "sacct"], "no other question waits for as long"


def test_what_can_be_told_while_slurm_is_silent_is_told(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows(LAST, {"i": "8", "T": "RUNNING"}))
    assert desk.type("list").status == 0
    desk.slurm.answer("squeue", **SILENT)
    said = desk.type("why", "7", "8")
    assert said.status == 3 and "cannot tell why job 7 is pending" in said.err and "RUNNING since" in said.out
    said = desk.type("why", "7", "8", "--json")
    assert said.status == 3 and said.data is None


def test_what_helps_every_task_of_an_array_is_typed_for_the_array() -> None:
    waiting = [state(f"7_{n}", "PENDING", "Dependency") for n in range(3)]
    kinds = _group([*waiting, state("8", "PENDING", "Dependency")])

    def named(*ids: str) -> list[Target]:
        return [Target(id, None) for id in ids]

    assert [_array(one, kinds, named("7", "8")) for one, *_ in kinds] == ["7", "8"]
    assert [_array(one, kinds, named("7_0", "7_1", "8")) for one, *_ in kinds] == ["", "8"], (
        "others were not asked about"
    )
    mixed = _group([*waiting, state("7_3", "RUNNING")])
    assert [_array(one, mixed, named("7")) for one, *_ in mixed] == ["", ""], "a task that runs is none of it"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def laid_out(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = ["one two three four five six seven eight", "esc \x1b[31m here"]
    command = "scontrol update JobId=7 TimeLimit=1:00:00  # minutes"
    Ui("why", out=out).facts([("here", lines), ("do", [command]), ("none", [])])
    return out.getvalue().splitlines()


def test_facts_are_folded_on_a_terminal_and_commands_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert laid_out(Terminal(), monkeypatch) == [
        "     here  one two three four five six",
        "           seven eight",
        "           esc \\x1b[31m here",
        "       do  scontrol update JobId=7 TimeLimit=1:00:00  # minutes",
    ]


def test_facts_in_a_pipe_are_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert laid_out(io.StringIO(), monkeypatch)[0] == "     here  one two three four five six seven eight"
