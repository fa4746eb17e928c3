"""Following a log: how rarely Slurm is asked, what a waiting job says, how many files are open."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import JobId, JobStatus, Outcome, outcome_of
from clusterrun.cli.common.show import exit_code
from clusterrun.cli.follow import AT_ONCE, FollowedRun, LogLocator, TaskReader, format_state
from clusterrun.cli.logfiles import ExternalLogs, RunLogs
from clusterrun.logs.files import Source
from clusterrun.logs.locations import LogLocation
from clusterrun.logs.request import LogRequest, detect_format
from clusterrun.records import launches
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Answer
from clusterrun.state.external import ExternalJobs
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.watch import Watch, WatchThread
from clusterrun.terminal.ui import Ui
from tests.support.installed_command import until
from tests.support.patience import HUNG
from tests.support.run_records import attempt, claim, end, submitted


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def state_of(run: RunRecord | None, word: str, reason: str = "", job: str = "101") -> RunState:
    status = JobStatus(id=JobId.parse(job), state=word, outcome=outcome_of(word), reason=reason)
    return RunState(run, status)


class Asked:
    """A scheduler's word, and the seconds at which it was asked."""

    def __init__(self, run: RunRecord, clock: Clock, word: str) -> None:
        self.run, self.clock, self.word, self.at = run, clock, word, list[float]()

    def __call__(self, runs: Sequence[RunRecord]) -> list[RunState]:
        self.at.append(self.clock.now)
        return [state_of(self.run, self.word)]


@pytest.fixture
def waiting(tmp_path: Path) -> RunRecord:
    return submitted(Store(tmp_path, tmp_path / "state"))


def pass_time(watch: Watch, clock: Clock, seconds: float, grows: bool = False) -> None:
    until_then = clock.now + seconds
    while clock.now < until_then:
        clock.now += 0.25
        if grows:
            watch.on_output()
        watch.poll()


def test_a_waiting_job_is_asked_for_every_half_minute(waiting: RunRecord) -> None:
    clock = Clock()
    asked = Asked(waiting, clock, "PENDING")
    pass_time(Watch([waiting], asked, follow=True, now=clock), clock, 300)
    gaps = [b - a for a, b in zip(asked.at, asked.at[1:], strict=False)]
    assert len(asked.at) <= 13 and min(gaps) >= 24, gaps


def test_slurm_is_not_asked_while_the_log_grows(waiting: RunRecord) -> None:
    clock = Clock()
    asked = Asked(waiting, clock, "RUNNING")
    watch = Watch([waiting], asked, follow=True, now=clock)
    watch.poll()
    claim(waiting)
    attempt(waiting)
    pass_time(watch, clock, 600, grows=True)
    assert len(asked.at) == 1
    pass_time(watch, clock, 20)
    assert len(asked.at) == 2, "a log that has become quiet tells nothing more"


def test_an_end_record_is_asked_about_at_once_even_while_the_log_grows(waiting: RunRecord) -> None:
    clock = Clock()
    asked = Asked(waiting, clock, "RUNNING")
    watch = Watch([waiting], asked, follow=True, now=clock)
    watch.poll()
    pass_time(watch, clock, 60, grows=True)
    attempt(waiting, end=end())
    before = len(asked.at)
    pass_time(watch, clock, 0.25, grows=True)
    assert len(asked.at) == before + 1


def test_a_cancel_of_ours_is_asked_about_at_once(waiting: RunRecord) -> None:
    clock = Clock()
    asked = Asked(waiting, clock, "PENDING")
    watch = Watch([waiting], asked, follow=True, now=clock)
    watch.poll()
    os.utime(waiting.run_dir / "submissions", ns=(1, 1))
    pass_time(watch, clock, 0.25)
    assert len(asked.at) == 2


def test_another_tools_jobs_are_asked_for_as_rarely() -> None:
    clock, asked = Clock(), []

    class Slurm:
        cluster = "lab"

        def query(self, ids: Sequence[JobId]) -> Answer:
            asked.append(clock.now)
            return Answer([state_of(None, "RUNNING").status])

    watch = Watch([], lambda runs: [], None, ExternalJobs([JobId("101")], Slurm(), now=clock), follow=True, now=clock)  # type: ignore[arg-type]
    for _ in range(400):
        clock.now += 0.25
        watch.on_output()
        watch.poll()
    assert asked == [0.0]
    for _ in range(400):
        clock.now += 0.25
        watch.poll()
    assert len(asked) <= 5


def test_a_watch_that_hangs_holds_nothing_back() -> None:
    class Hangs:
        def poll(self) -> Listing:
            time.sleep(600)
            return Listing()

        def is_settled(self, state: RunState) -> bool:
            return False

    watcher = WatchThread(Hangs())
    begun = time.monotonic()
    assert (list(watcher.poll()), watcher.settled) == ([], False)
    assert time.monotonic() - begun < HUNG


def test_what_a_watch_raises_ends_the_following() -> None:
    class Fails:
        def poll(self) -> Listing:
            raise SchedulerError("no")

        def is_settled(self, state: RunState) -> bool:
            return False

    watcher = WatchThread(Fails())

    def raised() -> bool:
        try:
            watcher.poll()
        except SchedulerError:
            return True
        return False

    until(raised, 10)


def test_a_runs_log_is_read_until_its_watch_is_over(waiting: RunRecord) -> None:
    class Reader:
        over = False

        def read(self, job: JobId, source: Source | None = None, *, over: bool = False) -> None:
            self.over |= over

    clock, reader = Clock(), Reader()
    watch = Watch([waiting], Asked(waiting, clock, "UNKNOWN"), now=clock)
    watcher = SimpleNamespace(settled=False, states=watch.poll().states, watch=watch)
    clock.now += 60  # in doubt for long enough, but the watch's next query may find the job again
    request = LogRequest(display=detect_format(False, {}))
    source = launches.log_source(waiting, JobId("101"))
    logs = FollowedRun(Ui("logs"), RunLogs(waiting, JobId("101")), source, request)
    logs.update(reader, watcher)
    assert not reader.over

    watcher.settled = True

    def over() -> bool:
        logs.update(reader, watcher)
        return reader.over

    until(over, 10)


def test_a_reason_for_waiting_is_told_in_words() -> None:
    words = format_state(state_of(None, "PENDING", "Resources"))
    assert words.startswith("job 101: PENDING Resources: ") and len(words) > 40
    assert format_state(state_of(None, "PENDING", "NeverHeardOf")) == "job 101: PENDING NeverHeardOf"
    assert format_state(replace(state_of(None, "PENDING"), note="squeue: no answer")) == "job 101: squeue: no answer"


def test_of_a_thousand_tasks_few_are_read_at_once(tmp_path: Path) -> None:
    open_now, most = [0], [0]

    def follow_one(sources: Sequence[Source], stop: object) -> object:
        open_now[0] += 1
        most[0] = max(most[0], open_now[0])
        time.sleep(0.001)
        yield b"line\n"
        open_now[0] -= 1

    path = tmp_path / "log"
    path.touch()
    reading = TaskReader(lambda job, begun, over: Source(path), follow_one)
    states = [state_of(None, "COMPLETED", job=f"7_{n}") for n in range(1000)]
    lines = 0

    def over() -> bool:
        nonlocal lines
        reading.update(states, lambda state: True)
        lines += len(list(reading.pieces(0.01)))
        return reading.are_read(state.status.id for state in states)

    until(over, 60, pause=0)
    assert (lines, reading.without_log) == (1000, [])
    assert most[0] <= AT_ONCE


def test_outcomes_become_exit_codes() -> None:
    def code(*outcomes: Outcome) -> int:
        states = [state_of(None, "X") for _ in outcomes]
        return exit_code(
            [replace(s, status=replace(s.status, outcome=o)) for s, o in zip(states, outcomes, strict=True)]
        )

    assert [code(Outcome.DONE), code(Outcome.DONE, Outcome.FAILED), code(Outcome.STOPPED)] == [0, 1, 1]
    assert [code(Outcome.LOST, Outcome.FAILED), code(Outcome.UNKNOWN)] == [75, 75]


JOB = JobId("7")


class Told:
    """What Slurm says of where a job writes, and how often it was asked; silent where it has nothing to say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.node, self.times = folder, "", 0

    def place(self) -> LogLocation:
        return LogLocation(JOB, self.folder / "o.log", self.folder / f"e-{self.node or '%N'}.log")

    def __call__(self) -> ExternalLogs:
        self.times += 1
        if not self.node:
            raise SchedulerError("Slurm did not respond")
        return ExternalLogs(JOB, (self.place(),))


def test_a_file_that_is_there_shows_that_its_job_has_begun_before_the_queue_says_so(tmp_path: Path) -> None:
    told = Told(tmp_path)
    where = LogLocator(ExternalLogs(JOB, (told.place(),)), told, Clock())
    assert where.find(JOB, begun=False, over=False) is None and told.times == 0
    (tmp_path / "o.log").write_text("hello\n")
    told.node = "n1"
    found = where.find(JOB, begun=False, over=False)
    assert found is not None and found.err == tmp_path / "e-n1.log" and told.times == 1
    where.find(JOB, begun=True, over=True)
    assert told.times == 1, "a name that is known is not asked for again"


def test_nothing_is_read_until_all_names_are_known_or_slurm_knows_no_more(tmp_path: Path) -> None:
    told, clock = Told(tmp_path), Clock()
    where = LogLocator(ExternalLogs(JOB, (told.place(),)), told, clock)
    assert where.find(JOB, begun=True, over=False) is None, "Slurm was silent"
    clock.now = 29
    assert where.find(JOB, begun=True, over=False) is None and told.times == 1
    told.node = "%t"  # a field that nobody can fill
    clock.now = 31
    assert where.find(JOB, begun=True, over=False) == told.place() and told.times == 2
    told.node = ""
    other = LogLocator(ExternalLogs(JOB, (told.place(),)), told, clock)
    assert other.find(JOB, begun=True, over=True) == told.place(), "it is over, and what is known is read"
