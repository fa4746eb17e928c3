"""When a launch hangs, and which rank is named: on progress records alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterrun.worker.job.stall import (
    LIMITS,
    LONGEST,
    SHORTEST,
    RankMark,
    Stall,
    Suspicion,
    behind,
    find_unannounced,
)
from clusterrun.worker.job.watchdog import look_pace


class Launch:
    """Ranks that advance together; `freeze` stops a rank's heartbeat, `hold` its progress. Times in seconds."""

    def __init__(
        self, ranks: int, hang_timeout: float | None = None, phase: str = "training", step_s: float = 1.0,
        pace: float = 2.0,
    ) -> None:  # fmt: skip
        self.stall = Stall(hang_timeout, pace=pace)
        self.now, self.step_s = 1000.0, step_s
        self.marks = {
            rank: RankMark(rank, 0.0, f"n{rank // 2}", 100 + rank, phase, 0, 0.0, {"0": 0}, 0.0)
            for rank in range(ranks)
        }
        self.silent: set[int] = set()
        self.held: set[int] = set()

    def looks(self, seconds: float, every: float = 2.0) -> Iterator[Suspicion | None]:
        end = self.now + seconds
        while self.now < end:
            self.now += every
            for rank, mark in self.marks.items():
                if rank in self.silent or self.now - 1000.0 - mark.time < mark.interval:
                    continue
                time = self.now - 1000.0
                if rank in self.held:
                    new = mark._replace(time=time, still=(mark.still or 0.0) + time - mark.time)
                else:
                    step = int(time / self.step_s)
                    new = mark._replace(time=time, step=step, stepped=step * self.step_s,
                                  collectives={"0": 2 * step}, still=min(time % self.step_s, time))  # fmt: skip
                self.marks[rank] = new
            yield self.stall.look(self.now, self.marks)

    def first(self, seconds: float, every: float = 2.0) -> tuple[float, Suspicion] | None:
        """The first suspicion and when it came."""
        began = self.now
        return next(((self.now - began, found) for found in self.looks(seconds, every) if found), None)


def test_nothing_is_suspected_while_all_advance() -> None:
    assert Launch(4).first(3600) is None


def test_a_rank_without_a_heartbeat_is_suspected_after_thirty_seconds_if_the_others_stand_still() -> None:
    launch = Launch(4)
    assert launch.first(120) is None
    launch.silent, launch.held = {2}, {0, 1, 3}
    found = launch.first(120)
    assert found is not None and [mark.rank for mark in found[1].ranks] == [2] and found[1].is_silent
    assert 20 <= found[0] <= 35


def test_a_rank_without_a_heartbeat_whose_peers_advance_only_cannot_write() -> None:
    launch = Launch(4)
    launch.silent = {2}
    assert launch.first(600) is None


def test_a_step_longer_than_the_heartbeat_limit_is_waited_for() -> None:
    launch = Launch(4, step_s=100.0)
    assert launch.first(1000) is None
    launch.silent, launch.held = {2}, {0, 1, 3}
    found = launch.first(1000)
    assert found is not None and found[0] > 290, "three of the slowest steps"


def test_silence_of_all_ranks_is_no_rank_s_fault() -> None:
    launch = Launch(4)
    assert launch.first(60) is None
    launch.silent = {0, 1, 2, 3}
    assert launch.first(600) is None and launch.stall.all_silent


def test_time_in_which_the_watchdog_itself_was_stopped_does_not_count() -> None:
    launch = Launch(2)
    assert launch.first(60) is None
    launch.silent, launch.held = {1}, {0}
    launch.now += 500
    found = launch.first(100)
    assert found is not None and found[0] > 10, "a pause counts for 15 s at most"


def test_the_limit_of_a_step_is_ten_times_the_slowest_and_at_least_a_minute() -> None:
    quick, slow = Launch(2, step_s=0.5), Launch(2, step_s=20.0)
    assert quick.stall.limit("training") == LONGEST, "the first step may compile"
    assert quick.first(600) is None and slow.first(2000) is None
    assert quick.stall.limit("training") == SHORTEST
    assert 200 <= slow.stall.limit("training") <= 320
    slow.held = {0, 1}
    found = slow.first(1000)
    assert found is not None and found[0] >= 180 and found[1].ranks == ()


@pytest.mark.parametrize(("step", "is_named"), [(8, True), (1, False)])
def test_a_launch_that_stood_still_before_the_first_look_is_judged_by_the_steps_that_it_made(
    step: int, is_named: bool
) -> None:
    launch = Launch(2, hang_timeout=10)
    launch.held = {0, 1}
    launch.marks = {
        rank: mark._replace(step=step, stepped=0.4, first_step=1, first_step_at=0.1, collectives={"0": 2 * step})
        for rank, mark in launch.marks.items()
    }
    assert (launch.first(60) is not None) == is_named, "after its first step alone it may compile"


def test_the_rank_behind_is_named_when_nobody_advances() -> None:
    launch = Launch(4, hang_timeout=40)
    assert launch.first(100) is None
    launch.held = {0, 1, 2, 3}
    launch.marks[3] = launch.marks[3]._replace(collectives={"0": launch.marks[3].collectives["0"] - 1})
    found = launch.first(100)
    assert found is not None and 30 <= found[0] <= 60
    assert [mark.rank for mark in found[1].ranks] == [3] and not found[1].is_silent


@pytest.mark.parametrize("phase", ["loading", "evaluating", "saving"])
def test_other_phases_have_fixed_limits_and_a_larger_timeout_raises_them(phase: str) -> None:
    assert Stall(None).limit(phase) == Stall(10).limit(phase) == LIMITS[phase]
    assert Stall(99_999).limit(phase) == 99_999


def test_the_rank_that_saves_alone_has_the_limit_of_saving() -> None:
    launch = Launch(4, hang_timeout=40)
    assert launch.first(100) is None
    launch.held = {0, 1, 2, 3}
    ahead = {"0": launch.marks[0].collectives["0"] + 1}
    launch.marks = {r: mark if r == 0 else mark._replace(collectives=ahead) for r, mark in launch.marks.items()}
    launch.marks[0] = launch.marks[0]._replace(phase="saving")
    assert launch.first(LIMITS["saving"] - 100) is None
    found = launch.first(400)
    assert found is not None and [mark.rank for mark in found[1].ranks] == [0]


def test_a_script_without_any_collective_is_not_judged_by_progress() -> None:
    launch = Launch(2, hang_timeout=10, phase="script")
    launch.held = {0, 1}
    launch.marks = {
        r: mark._replace(step=None, stepped=None, collectives={}, still=None) for r, mark in launch.marks.items()
    }
    for mark in launch.marks.values():
        assert mark.still is None
    stall = Stall(10)
    for now in range(1000, 5000, 2):
        marks = {r: mark._replace(time=float(now)) for r, mark in launch.marks.items()}
        assert stall.look(float(now), marks) is None


def test_ranks_that_are_starting_or_have_ended_are_not_silent() -> None:
    launch = Launch(2, phase="joining")
    launch.silent, launch.held = {1}, {0}
    assert launch.first(300) is None
    launch.marks[0] = launch.marks[0]._replace(phase="loading")
    found = launch.first(100)
    assert found is not None and found[1].ranks[0].rank == 1, "past the join barrier, silence counts"
    stall, marks = Stall(10), Launch(2).marks
    for now in range(1000, 1500, 2):
        assert (
            stall.look(float(now), {0: marks[0]._replace(time=float(now)), 1: marks[1]}, lambda rank: rank == 1) is None
        )


def mark(rank: int, step: int | None = 5, **collectives: int) -> RankMark:
    return RankMark(rank, 0.0, step=step, collectives=collectives)


@pytest.mark.parametrize(
    ("marks", "late"),
    [
        ([mark(0, a=9), mark(1, a=8), mark(2, a=9)], [1]),
        ([mark(0, a=9), mark(1, a=8)], [1]),
        ([mark(0, a=9), mark(1, a=9)], []),
        ([mark(0, a=8), mark(1, a=8), mark(2, a=9)], []),
        ([mark(0, a=9, b=3), mark(1, a=9, b=2), mark(2, a=9), mark(3, a=9)], [1]),
        ([mark(0, a=9), mark(1), mark(2, a=9)], [1]),
        ([mark(0, step=7), mark(1, step=6), mark(2, step=7)], [1]),
        ([mark(0, step=None), mark(1, step=None)], []),
        ([mark(0, a=9), mark(1)._replace(phase="ending")], [0]),
        ([mark(0, a=9), mark(1, a=8), mark(2, a=9), mark(3)._replace(phase="ending")], [1]),
    ],
)
def test_the_ranks_behind(marks: list[RankMark], late: list[int]) -> None:
    assert [one.rank for one in behind(marks)] == late


def test_values_of_a_wrong_type_count_as_unknown() -> None:
    assert RankMark.parse(0, {}) is None
    assert RankMark.parse(0, {"time": "now"}) is None
    found = RankMark.parse(1, {
        "time": 5.0, "advanced": "x", "step": [], "collectives": {"0": "7", "1": 3}, "gpu": 3, "interval": -1
    })  # fmt: skip
    assert found == RankMark(1, 5.0, collectives={"1": 3}, interval=0.1)


def test_looks_that_take_long_still_find_a_silent_rank() -> None:
    stall, now = Stall(None), 0.0
    for _ in range(40):  # of many ranks: each look takes longer than DELAYED_S
        now += 20.0
        record = {"node": "n0", "phase": "training", "step": 5, "stepped": 1.0}
        marks = [
            RankMark.parse(0, {**record, "time": now, "advanced": 1.0}),
            RankMark.parse(1, {**record, "time": 1.0, "advanced": 1.0}),
        ]
        found = stall.look(now, {mark.rank: mark for mark in marks if mark is not None}, lambda rank: False)
        if found is not None:
            break
    assert found is not None and [mark.rank for mark in found.ranks] == [1] and found.is_silent


def test_a_rank_of_ten_thousand_nodes_is_missed_after_three_of_its_heartbeats() -> None:
    pace = look_pace(10.0, 10_000)
    launch = Launch(2, pace=pace)
    launch.marks = {rank: mark._replace(interval=107.0) for rank, mark in launch.marks.items()}
    assert launch.first(1000, every=pace) is None
    launch.silent, launch.held = {1}, {0}
    found = launch.first(3000, every=pace)
    assert found is not None and [mark.rank for mark in found[1].ranks] == [1]
    assert found[0] <= 3 * 107 + 2 * pace


def large(*still: float | None) -> list[RankMark]:
    """Ranks with rare heartbeats, by the seconds without progress when they announced that; None: they did not."""
    return [
        RankMark(
            rank, 0.0, "n0", phase="training", still=seconds or 0.0, interval=107.0, is_announced=seconds is not None
        )
        for rank, seconds in enumerate(still)
    ]


def test_the_ranks_that_announce_nothing_are_found_once_most_others_have() -> None:
    found = find_unannounced(large(31.0, None, 32.0))
    assert found is not None and [mark.rank for mark in found.ranks] == [1] and found.is_silent
    assert found.seconds == 31.0


@pytest.mark.parametrize("still", [(), (None, None), (31.0, None), (31.0, None, None), (31.0, 32.0)])
def test_nobody_is_blamed_if_half_advance_or_all_stand_still(still: tuple[float | None, ...]) -> None:
    assert find_unannounced(large(*still)) is None


def test_a_launch_that_no_other_follows_gets_ten_minutes() -> None:
    for shortest in (60.0, 600.0):
        stall = Stall(None, shortest)
        stall._step_times.append(0.5)
        assert stall.limit("training") == shortest


def test_a_script_without_a_step_for_half_an_hour_on_busy_gpus_is_suspected() -> None:
    for use in (100.0, 40.0):
        launch = Launch(2, phase="script")
        assert launch.first(60) is None
        launch.held = {0, 1}
        launch.marks = {rank: mark._replace(gpu_use=use) for rank, mark in launch.marks.items()}
        assert launch.first(LONGEST - 60) is None
        found = launch.first(120)
        assert found is not None and found[1].gpus_busy is (use == 100.0)
