"""How jobs stand: the queue, accounting and the run's own files, joined; nothing is guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.base.job import JobId, Outcome
from clusterrun.records import store as stores
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Answer
from clusterrun.state import reconcile
from clusterrun.state.show import list_row, state_lines, status_json
from clusterrun.system.processes import submitter
from tests.support.run_records import AT, attempt, claim, end, make_run, submitted, with_submission
from tests.support.scripted_scheduler import NOW, SILENT, Scripted, ask, row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


def test_the_queue_tells(store: Store) -> None:
    run = submitted(store)
    scheduler = Scripted(Answer([row(run, "RUNNING", elapsed=5)]))
    state = ask(store, run, scheduler)
    assert (state.status.state, state.status.outcome, state.status.elapsed) == ("RUNNING", Outcome.RUNNING, 5)
    assert scheduler.queries == ["query"]


def test_a_job_with_our_id_and_another_name_is_not_ours(store: Store) -> None:
    run = submitted(store)
    stranger = replace(row(run, "RUNNING"), name="theirs.zzzzzzzz")
    state = ask(store, run, Scripted(Answer([stranger])))
    assert state.status.state == "UNKNOWN" and state.status.outcome is Outcome.LOST


def test_a_seen_end_is_remembered(store: Store) -> None:
    run = submitted(store)
    done = ask(store, run, Scripted(Answer([row(run, "COMPLETED", ended=AT + 50, nodes="n1")])))
    assert done.record is not None and done.record.submission.final is not None
    later = ask(store, done.record, Scripted(SILENT))
    assert (later.status.state, later.status.source, later.status.nodes, later.status.ended) == (
        "COMPLETED", "record", "n1", AT + 50,
    )  # fmt: skip
    quiet = Scripted()
    ask(store, done.record, quiet, now=AT + 10 * 86_400)
    assert quiet.queries == [], "an old end is not asked for again"


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_what_may_return_is_not_written_down(store: Store, state: str) -> None:
    run = submitted(store)
    seen = ask(store, run, Scripted(Answer([row(run, state)])))
    assert seen.status.state == state and seen.record is not None and seen.record.submission.final is None


def test_accounting_is_asked_last(store: Store) -> None:
    run = submitted(store)
    past = row(run, "FAILED", exit_status=3, ended=AT + 9, source="sacct")
    scheduler = Scripted(past=Answer([past]))
    state = ask(store, run, scheduler)
    assert (state.status.state, state.status.exit_status, state.status.source) == ("FAILED", 3, "sacct")
    assert scheduler.queries == ["query", "account 101"]


def test_accounting_of_an_id_given_out_twice(store: Store) -> None:
    run = submitted(store)
    other = replace(row(run, "COMPLETED", ended=AT + 99), name="other.zzzzzzzz")
    mine = row(run, "FAILED", ended=AT + 9)
    assert ask(store, run, Scripted(past=Answer([mine, other]))).status.state == "FAILED"
    assert ask(store, submitted(store, 2, "101"), Scripted(past=Answer([other]))).status.outcome is Outcome.LOST


def test_an_open_row_of_accounting_is_not_life(store: Store) -> None:
    run = submitted(store)
    assert ask(store, run, Scripted(past=Answer([row(run, "RUNNING")]))).status.outcome is Outcome.LOST


def test_lost_unknown_and_just_submitted(store: Store) -> None:
    run = submitted(store)
    young = ask(store, run, Scripted(), now=run.submission.at + 3)
    assert young.status.outcome is Outcome.UNKNOWN and "just submitted" in young.status.reason
    lost = ask(store, run, Scripted())
    assert lost.status.outcome is Outcome.LOST and "never started" in lost.status.reason
    claim(run)
    gone = ask(store, run, Scripted())
    assert gone.status.outcome is Outcome.UNKNOWN and "without recording how it ended" in gone.status.reason


def test_a_silent_scheduler_is_not_an_answer(store: Store) -> None:
    run = submitted(store)
    scheduler = Scripted(SILENT)
    state = ask(store, run, scheduler)
    assert state.status.outcome is Outcome.UNKNOWN and state.note == SILENT.note
    assert scheduler.queries == ["query"]


def test_silent_accounting_is_not_an_answer_either(store: Store) -> None:
    run = submitted(store)
    state = ask(store, run, Scripted(past=Answer(complete=False, note="sacct: Connection refused")))
    assert state.status.outcome is Outcome.UNKNOWN and state.note == "sacct: Connection refused"


def test_cancelled_while_it_waited(store: Store) -> None:
    run = submitted(store)
    run = store.save_submission(run, replace(run.submission, cancel_asked=int(NOW)))
    state = ask(store, run, Scripted())
    assert (state.status.state, state.status.outcome) == ("CANCELLED", Outcome.CANCELLED)


def test_a_state_nobody_knows_is_shown_and_not_over(store: Store) -> None:
    run = submitted(store)
    state = ask(store, run, Scripted(Answer([row(run, "PROWLING")])))
    assert state.status.state == "PROWLING" and not state.status.is_over


def test_stopped_is_told_by_the_runs_own_record(store: Store) -> None:
    run = submitted(store)
    claim(run)
    attempt(run, end=end(85))
    state = ask(store, run, Scripted(Answer([row(run, "FAILED")])))
    assert state.status.outcome is Outcome.STOPPED and state.status.exit_status == 85


def test_an_id_that_was_a_banners_is_put_right(store: Store) -> None:
    run = submitted(store, 1, "7")
    state = ask(store, run, Scripted(Answer([row(run, "RUNNING", "123")])))
    assert state.record is not None and state.record.job_id == JobId("123")
    assert store.by_job(JobId("123"))


def half(store: Store, pid_lives: bool) -> RunRecord:
    who = submitter() if pid_lives else ("elsewhere", 1, 1)
    run = with_submission(make_run(store.root), submitter=who)
    store.stage(run, {}, "")
    return run


def test_half_written_submissions_are_healed(store: Store) -> None:
    run = half(store, pid_lives=False)
    state = ask(store, run, Scripted(Answer([row(run, "RUNNING", "500")])))
    assert state.status.state == "RUNNING" and state.record is not None and state.record.job_id == JobId("500")
    run = half(store, pid_lives=False)
    claim(run, "501")
    state = ask(store, run, Scripted())
    assert state.record is not None and state.record.job_id == JobId("501")


def test_one_that_is_being_submitted_is_left_alone(store: Store) -> None:
    run = half(store, pid_lives=True)
    state = ask(store, run, Scripted(Answer([row(run, "RUNNING", "500")])))
    assert state.record is not None and state.record.job_id is None and state.status.reason == "being submitted"


def test_one_that_never_arrived(store: Store) -> None:
    run = half(store, pid_lives=False)
    state = ask(store, run, Scripted(SILENT), now=NOW)
    assert "--recover" in state.status.reason and "unknown whether" in state.status.reason
    state = ask(store, run, Scripted(), now=run.submission.at + 5)
    assert "unknown whether" in state.status.reason
    state = ask(store, run, Scripted(), now=run.submission.at + 3600)
    assert "never submitted" in state.status.reason and f"--recover {run.run_id}" in state.status.reason


def test_many_runs_are_two_questions(store: Store) -> None:
    runs = [submitted(store, number) for number in range(1, 10)]
    scheduler = Scripted(Answer([row(run, "RUNNING") for run in runs[:4]]))
    found = reconcile.reconcile(store, scheduler, runs, now=NOW)
    assert [state.record.run_id for state in found if state.record] == [run.run_id for run in runs]
    assert len(scheduler.queries) == 2 and scheduler.queries[1] == "account 105,106,107,108,109"


def test_reading_works_where_nothing_can_be_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submitted(store)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "write", full)
    assert ask(store, run, Scripted(Answer([row(run, "COMPLETED")]))).status.state == "COMPLETED"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"status": 1e999}', '{"status": null, "time": "x", "restart": []}'])
def test_what_a_job_wrote_by_half_breaks_nothing(store: Store, text: str) -> None:
    run = submitted(store)
    claim(run)
    attempt(run, end=text, start='{"ranks": 7, "time": "x"}')
    ask(store, run, Scripted())
    reconcile.end_of(run)


def test_out_of_reach(store: Store) -> None:
    run = submitted(store)
    state = reconcile.state_from_records(store, run, "there is no Slurm here")
    assert state.status.outcome is Outcome.UNKNOWN and state.note == "there is no Slurm here"
    kept = with_submission(run, final={"state": "TIMEOUT", "ended": AT + 5})
    state = reconcile.state_from_records(store, kept, "x")
    assert state.status.state == "TIMEOUT" and state.note == ""


def test_a_job_of_an_earlier_submission_that_is_alive_is_shown_beside_the_newer_one(store: Store) -> None:
    run = submitted(store)
    newer = replace(run.submission, token="zzzzzzzzabcdefgh", at=AT + 500, job_id="109")
    moved = replace(run, submissions=(*run.submissions, newer))
    old = row(run, "RUNNING")
    for job, expected in ((old, True), (replace(old, state="COMPLETED", outcome=Outcome.DONE), False)):
        state = ask(store, moved, Scripted(Answer([job, row(moved, "PENDING")])))
        assert (str(state.status.id), state.status.state) == ("109", "PENDING")
        shown = [line for line in state_lines(state) if line.strip().startswith("also")]
        assert shown == ["     also  still in the queue: job 101"] * expected
        assert status_json(state)["earlier_jobs"] == ["101"] * expected


def test_a_live_job_that_continues_an_earlier_ones_run_is_named(store: Store) -> None:
    run = submitted(store)
    newer = replace(run.submission, token="zzzzzzzzabcdefgh", at=AT + 500, job_id="109")
    moved = replace(run, submissions=(*run.submissions, newer))
    ended = replace(row(run, "FAILED"), outcome=Outcome.FAILED)
    state = ask(store, moved.as_submission(run.submission), Scripted(Answer([ended, row(moved, "RUNNING")])))
    assert "     also  job 109 continues this run" in state_lines(state)


def test_an_earlier_job_says_that_its_run_completed_and_the_newest_names_the_earlier_ones(store: Store) -> None:
    run = submitted(store)
    final = {"state": "COMPLETED", "exit_status": 0, "ended": AT + 900}
    newer = replace(run.submission, token="zzzzzzzzabcdefgh", at=AT + 500, job_id="109", final=final)
    resumed = replace(run, submissions=(*run.submissions, newer))
    earlier = reconcile.RunState(resumed.as_job(JobId("101")), row(run, "FAILED"), others=(JobId("109"),))
    assert [line for line in state_lines(earlier) if "109" in line] == ["     also  job 109 of this run has completed"]
    newest = reconcile.RunState(resumed, row(resumed, "COMPLETED"))
    assert list_row(newest)[-1] == "continues job 101" and list_row(earlier)[-1] == ""


def test_a_notebook_shows_jobs_as_a_table(store: Store) -> None:
    run = submitted(store)
    state = ask(store, run, Scripted(Answer([row(run, "PENDING", reason="Priority")])))
    html = reconcile.Listing([state])._repr_html_()
    assert (
        html == state._repr_html_() and f"<td>{run.name}</td><td>PENDING</td>" in html and "<td>Priority</td>" in html
    )


def test_a_job_cancelled_while_it_waited_again_keeps_the_figures_of_its_training(store: Store) -> None:
    final = {"state": "CANCELLED", "reason": "cancelled while pending", "source": "record", "ended": AT + 50}
    run = with_submission(submitted(store), final=final)
    (run.run_dir / "metrics.jsonl").write_text('{"step": 500, "loss": 1.25}\n')
    state = ask(store, run, Scripted(SILENT))
    assert state.figures is not None and state.figures.step == 500
