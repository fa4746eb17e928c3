"""What keeps the live view up to date: how often the scheduler is asked, and what is kept where it does not respond."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import JobStatus
from clusterrun.logs.files import Source as LogSource
from clusterrun.logs.files import Tick
from clusterrun.logs.labels import LogLine
from clusterrun.logs.show import format_line
from clusterrun.records.progress import RankProgress
from clusterrun.state.pace import FLOOR, LONGEST, LONGEST_SILENCE, Pace
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.top import shown
from clusterrun.top.feeds import LOG_LINES, Jobs, LogFeed, QueueFeed, RanksFeed, RowsFeed
from clusterrun.top.source import Ranks
from tests.support.fake_cluster import run, status
from tests.support.installed_command import until


@pytest.fixture(autouse=True)
def _no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.terminal.paint.Colours.chosen", "never")


class Clock:
    """Monotonic seconds that only a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


# -- the pace ----------------------------------------------------------------------------------------------------------


def test_quiet_jobs_are_asked_about_ever_more_rarely_and_a_change_brings_it_back() -> None:
    pace = Pace(seed=1)
    waits = [pace.after(changed=False, failed=False, took=0.1) for _ in range(12)]
    assert FLOOR <= waits[0] <= 18 and waits[0] < waits[2] < waits[5]
    assert all(0.8 * LONGEST <= wait <= 1.2 * LONGEST for wait in waits[8:])
    assert FLOOR <= pace.after(changed=True, failed=False, took=0.1) <= 1.2 * FLOOR


def test_a_scheduler_that_does_not_answer_is_left_in_peace() -> None:
    pace = Pace(seed=1)
    waits = [pace.after(changed=False, failed=True, took=0.1) for _ in range(12)]
    assert waits[0] <= 1.2 * FLOOR and waits[1] <= 1.2 * FLOOR and waits[3] > 1.5 * FLOOR
    assert all(wait >= 0.8 * LONGEST_SILENCE for wait in waits[8:])


def test_a_slow_answer_doubles_the_wait() -> None:
    assert Pace(seed=1).after(changed=True, failed=False, took=6.0) >= 1.6 * FLOOR


def test_an_hour_of_nothing_new_costs_few_questions() -> None:
    pace, spent, asked = Pace(seed=1), 0.0, 0
    while spent < 3600:
        spent += pace.after(changed=False, failed=False, took=0.1)
        asked += 1
    assert asked <= 45


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_one_question_a_look_and_its_age_is_that_of_the_answer(tmp_path: Path) -> None:
    clock, calls = Clock(), []
    one = run(tmp_path, 1)

    def ask() -> Listing:
        calls.append(clock.seconds)
        clock.seconds += 3
        return Listing([RunState(one, status(1))])

    feed = QueueFeed(ask, Pace(seed=1), clock)
    feed.poll()
    assert len(calls) == 1 and feed.latest.at == 1003.0 and feed.latest.problem == ""
    assert shown.queue_line(feed.latest, 1010.0) == "1 job, 7s ago"


def test_what_was_known_is_kept_where_nothing_is_answered(tmp_path: Path) -> None:
    clock, one = Clock(), run(tmp_path, 1)
    answers: list[Sequence[RunState] | Exception] = [
        [RunState(one, status(1))],
        SchedulerError("squeue did not respond"),
        [RunState(one, status(1, "UNKNOWN", reason="not known"), "squeue: time out")],
        ValueError("a mistake of ours"),
    ]

    def ask() -> Listing:
        clock.seconds += 60
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Listing(answer)

    feed = QueueFeed(ask, Pace(seed=1), clock)
    feed.poll()
    for words in ("squeue did not respond", "squeue: time out", "ValueError: a mistake of ours"):
        feed.poll()
        assert [state.status.state for state in feed.latest.states] == ["RUNNING"]
        assert feed.latest.problem == words and feed.latest.at == 1060.0
    assert shown.queue_line(feed.latest, clock.seconds) == "1 job, 3m00s ago"


def test_a_run_of_another_cluster_is_no_sign_of_silence(tmp_path: Path) -> None:
    here, away = run(tmp_path, 1), run(tmp_path, 2)
    elsewhere = RunState(away, status(2, "UNKNOWN", reason="not known"), "it ran on cluster other")
    answers = [
        [RunState(here, status(1)), elsewhere],
        [RunState(here, status(1), "squeue: time out", as_of=5), elsewhere],
    ]
    feed = QueueFeed(lambda: Listing(answers.pop(0)), Pace(seed=1), Clock())
    feed.poll()
    assert feed.latest.problem == ""
    feed.poll()
    assert feed.latest.problem == "squeue: time out"
    assert [state.note for state in feed.latest.states] == ["", "it ran on cluster other"]


def test_what_others_were_told_before_us_is_shown_with_its_age(tmp_path: Path) -> None:
    old = RunState(run(tmp_path, 1), status(1), "squeue: time out", as_of=int(time.time()) - 90)
    feed = QueueFeed(lambda: Listing([old]), Pace(seed=1), Clock())
    feed.poll()
    assert feed.latest.problem == "squeue: time out"
    assert shown.queue_line(feed.latest, 1000.0).startswith("1 job, 1m3")


def test_hurrying_never_asks_sooner_than_the_floor(tmp_path: Path) -> None:
    asked: list[float] = []
    feed = QueueFeed(lambda: asked.append(feed._queried_at) or Listing(), Pace(0.4, seed=1))
    feed.start()
    until(lambda: feed.query_soon() or len(asked) > 3)
    feed.close()
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert min(gaps) >= 0.35


def test_local_jobs_are_asked_about_often_as_it_costs_no_controller(tmp_path: Path) -> None:
    clock = Clock()
    local = RunState(run(tmp_path, 1, scheduler="local"), status(1))
    feed = QueueFeed(lambda: Listing([local]), Pace(seed=1), clock)
    feed.poll()
    feed.poll()
    assert feed._due == clock.seconds + 2.0


# -- the ranks ---------------------------------------------------------------------------------------------------------


def test_another_job_is_read_at_once_and_a_reader_that_fails_keeps_the_last_word() -> None:
    broken = threading.Event()

    def read(number: float) -> Ranks:
        if broken.is_set():
            raise OSError("stale file handle")
        return Ranks(at=number)

    feed = RanksFeed(wait=0.05)
    feed.start()
    feed.select("one", lambda: read(1.0))
    until(lambda: feed.latest == ("one", Ranks(at=1.0)), 5)
    feed.select("two", lambda: read(2.0))
    until(lambda: feed.latest == ("two", Ranks(at=2.0)), 5)
    broken.set()
    time.sleep(0.2)
    assert feed.latest == ("two", Ranks(at=2.0))
    broken.clear()
    feed.select("one", lambda: read(3.0))
    until(lambda: feed.latest == ("one", Ranks(at=3.0)), 5)
    feed.close()


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "train_1.out"


@pytest.fixture
def logs(out: Path) -> Iterator[LogFeed]:
    feed = LogFeed(lambda: LogSource(out, out.with_suffix(".err"), world_size=8))
    yield feed
    feed.close()


def test_only_the_end_of_a_long_log_is_read_and_new_lines_come_once(logs: LogFeed, out: Path) -> None:
    out.write_text("".join(f"0: line {number}\n" for number in range(10_000)))
    logs.start()
    until(lambda: logs.lines and logs.lines[-1] == "0| line 9999", 10)
    assert logs.count == 200
    seen, _ = logs.new(0)
    with out.open("a") as file:
        file.write("3: new\n4: newer\n")
    until(lambda: logs.count == 202, 10)
    assert logs.new(seen) == (202, ["3| new", "4| newer"])
    assert logs.new(202) == (202, [])


def test_old_lines_of_both_files_are_in_the_order_of_writing(out: Path) -> None:
    err = out.with_suffix(".err")
    out.write_text("".join(f"0: step {number}\n" for number in range(170)))
    err.write_text("0: starting\n")
    ticks = (Tick(1000.0, 0, err.stat().st_size),)
    feed = LogFeed(lambda: LogSource(out, err, world_size=8, ticks=ticks))
    feed.start()
    until(lambda: feed.count == 171, 10)
    feed.close()
    assert feed.lines[0] == "0! starting" and feed.lines[-1] == "0| step 169"


def test_a_log_that_grows_too_fast_is_shown_from_its_end_again(logs: LogFeed, out: Path) -> None:
    out.write_text("0: first\n")
    logs.start()
    until(lambda: logs.count, 10)
    with out.open("a") as file:
        for number in range(20 * LOG_LINES):
            file.write(f"0: {number}\n")
    until(lambda: logs.lines[-1] == f"0| {20 * LOG_LINES - 1}", 20)
    assert any("lines skipped" in line for line in logs.lines)
    assert logs.count < 5 * LOG_LINES and len(logs.lines) <= LOG_LINES


def test_a_log_that_is_no_plain_file_is_told(logs: LogFeed, out: Path) -> None:
    out.symlink_to("/etc/passwd")
    logs.start()
    until(lambda: logs.problem, 10)
    assert not logs.lines


def test_a_line_of_a_log_is_made_safe(logs: LogFeed, out: Path) -> None:
    assert format_line(LogLine("out", 3, b"a\x1b[2Jb\r"), 2) == " 3| a\\x1b[2Jb\\x0d"
    assert format_line(LogLine("err", None, b"x"), 1) == " ! x"
    out.write_text("3: a\x1b[2Jb\n")
    logs.start()
    until(lambda: logs.count, 10)
    assert list(logs.lines) == ["3| a\\x1b[2Jb"]


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (4.9, "4s"), (200, "3m20s"), (7500, "2h05m"), (3 * 86_400 + 4 * 3600, "3d04h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert shown.age(seconds) == text


def test_a_long_line_goes_on_under_its_words_and_nothing_foreign_gets_through() -> None:
    assert shown.wrapped("    means  it waits for another job", 24) == (
        "    means  it waits for\n           another job"
    )  # fmt: skip
    assert shown.wrapped("first cause: a b c\n\n  x\x1b[2J y", 12) == "first cause:\na b c\n\n  x\\x1b[2J y"
    assert max(map(len, shown.wrapped("w" * 500 + "\t" + "v" * 40, 30).splitlines())) <= 30


def test_training_that_stands_still_while_its_ranks_live_is_told() -> None:
    def line(phase: str, stepped: float, over: bool = False) -> str:
        ranks = tuple(
            RankProgress(rank=r, node="n", time=998.0, interval=10.0, phase=phase, step=5, stepped=stepped - r)
            for r in range(2)
        )
        return shown.job_line(Ranks(ranks), 1000.0, over)

    assert "no step for 5m00s" in line("training", 700.0)
    assert "no step" not in line("training", 975.0)  # it may have made one since it last told
    assert "no step" not in line("saving", 700.0) and "no step" not in line("training", 700.0, over=True)


def test_before_the_first_answer_nothing_is_claimed() -> None:
    assert shown.queue_line(Jobs(), 5.0) == "loading …"
    assert shown.queue_line(Jobs(querying_since=1.0), 5.0) == "waiting for the scheduler (4s) …"
    assert shown.queue_line(Jobs(problem="squeue: no"), 5.0) == "no answer yet"


def test_the_time_of_a_running_job_goes_on_between_two_answers_and_stops_where_none_comes(tmp_path: Path) -> None:
    def times(job: JobStatus, **changes: object) -> list[str]:
        jobs = Jobs((RunState(run(tmp_path, 1), job),), **{"at": 100.0, **changes})
        (cells,) = shown.job_rows(jobs, 110.0).values()
        return [cell for cell in cells if ":" in cell][:1]

    assert times(status(1, elapsed=61)) == ["1:11"]
    assert times(status(1, elapsed=61), problem="squeue: time out") == ["1:01"]
    assert times(status(1, elapsed=61), at=None) == ["1:01"]
    assert times(status(1, "PENDING", elapsed=0)) == ["0:00"]


def test_rows_are_made_at_once_of_a_new_answer_and_again_as_figures_come(tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    queue = QueueFeed(lambda: Listing([RunState(one, status(1))]), Pace(seed=1))
    feed = RowsFeed(queue, shown.job_rows)
    feed.start()
    queue.poll()
    until(lambda: one.run_id in feed.latest[1], 5)
    (one.run_dir / "metrics.jsonl").write_text('{"step": 4321, "loss": 1.25}\n')
    until(lambda: "4321" in feed.latest[1][one.run_id] and "1.25" in feed.latest[1][one.run_id], 5)
    feed.close()


def test_the_rows_of_an_arrays_tasks_have_keys_of_their_own() -> None:
    rows = [
        RunState(None, status(7, state, tasks=tasks)) for state, tasks in (("PENDING", "3-9"), ("RUNNING", "1-2"))
    ] + [RunState(None, status(8)), RunState(None, status(8))]  # fmt: skip
    keys = shown.keys_of(rows)
    assert keys[:3] == ["7 PENDING", "7 RUNNING", "8"] and len(set(keys)) == 4
