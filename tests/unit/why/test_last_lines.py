"""The last line of most ranks is named at a time limit, and of a running job once a rank repeats it."""

from __future__ import annotations

from pathlib import Path

from clusterrun.base.job import JobStatus, Outcome, log_paths
from clusterrun.records.store import Store
from clusterrun.why.causes import Cause, EndFacts, Line, first_cause
from clusterrun.why.causes.last_lines import last_line_of_most
from clusterrun.why.pending.running_job import describe_running
from tests.support.run_records import submitted

LIMIT = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-27T23:19:10 DUE TO TIME LIMIT ***"


def log(*lines: tuple[int | None, str]) -> list[Line]:
    return [Line("train_1.out", number, rank, text) for number, (rank, text) in enumerate(lines, 1)]


def at_limit(*lines: tuple[int | None, str]) -> Cause:
    return first_cause([log((None, LIMIT)), log(*lines)], EndFacts(state="TIMEOUT"))


def test_a_rank_that_repeats_a_line_waits_and_more_time_alone_is_not_the_advice() -> None:
    cause = at_limit((0, "Connected"), *[(0, "Waiting for workers")] * 4)
    assert cause.sentence.endswith("; rank 0 last printed: Waiting for workers (4 times in a row, after: Connected)")
    assert cause.advice.startswith("find out what that line waits for: more time does not help if")
    assert "--time" not in cause.command


def test_a_rank_that_makes_progress_has_the_usual_advice() -> None:
    cause = at_limit(*[(0, f"step {number} loss 2.0") for number in range(9)])
    assert "last printed" not in cause.sentence and cause.command == "clusterrun submit … --time LONGER"
    cause = at_limit((0, "start"), (1, "start"))
    assert cause.sentence.endswith("; 2 of 2 ranks last printed: start") and "--time LONGER" in cause.command


def test_most_ranks_decide() -> None:
    waits = [(rank, "waiting") for _ in range(3) for rank in (0, 1)]
    words = "2 of 3 ranks last printed: waiting (3 times in a row, after: begin)"
    assert last_line_of_most([log((0, "begin"), *waits, (2, "done"))]) == (words, True)
    assert last_line_of_most([log((0, "a"), (1, "b"))]) == last_line_of_most([]) == ("", False)
    assert last_line_of_most([log((None, "x"), (None, "x"), (None, "x"), (0, " "))]) == ("", False)


def test_a_running_job_whose_rank_repeats_a_line_shows_it(tmp_path: Path) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    assert run.job_id is not None
    job = JobStatus(id=run.job_id, state="RUNNING", outcome=Outcome.RUNNING)
    out, _ = log_paths(run.logs, run.job_id)
    out.parent.mkdir(exist_ok=True)
    out.write_text("0: step 1\n")
    assert "last printed" not in " ".join(describe_running(job, run, 0.0))
    out.write_text("0: step 1\n" + "0: waiting\n" * 5)
    assert describe_running(job, run, 0.0)[-1] == "rank 0 last printed: waiting (5 times in a row, after: step 1)"
