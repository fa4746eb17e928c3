"""The live view over a Cluster of our own making: what is on the screen, and what its keys do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import SchedulerError
from clusterrun.state.pace import Pace
from clusterrun.top.app import Grid, Tail, Top
from clusterrun.top.source import TopData
from tests.support.fake_cluster import FakeCluster, pressed, run, shown, status, text_of, until_shown, write_rank
from tests.support.patience import HUNG

Play = Callable[[Any], Awaitable[None]]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def play(cluster: FakeCluster, story: Play, size: tuple[int, int] = (80, 24), **settings: Any) -> Top:
    """Open the view and act a story with its pilot; questions may follow each other quickly here."""

    @contextlib.asynccontextmanager
    async def opened(app: Top) -> AsyncIterator[Any]:
        async with app.run_test(size=size) as pilot:
            yield pilot

    async def act() -> Top:
        app = Top(TopData(cluster), pace=Pace(0.2), **settings)
        async with opened(app) as pilot:
            await story(pilot)
        return app

    return asyncio.run(act())


def test_jobs_ranks_and_log_of_the_job_under_the_cursor(cluster: FakeCluster, tmp_path: Path) -> None:
    first, second = run(tmp_path, 1), run(tmp_path, 2, name="other")
    cluster.put((first, status(1)), (second, status(2, nodes="node7")))
    gpu = {"name": "H200", "use": 97, "memory_gib": 71.4, "memory_total_gib": 139.8, "temperature": 61}
    write_rank(second, 0, step=40, steps=100, tokens_per_second=12345.6, memory_gib=3.2, gpu=gpu)
    write_rank(second, 1, node="node7", phase="evaluating", step=39, steps=100)
    (tmp_path / "logs" / "train_2.out").write_text("0: step 40/100\n1: hello from one\n")
    (tmp_path / "logs" / "train_1.out").write_text("0: the first job's line\n")
    (tmp_path / "logs" / "train_1.err").write_text("0: a warning\n")

    async def story(pilot: Any) -> None:
        screen = await shown(pilot, "hello from one", "evaluating")
        lines = screen.splitlines()[1:]
        assert [line.split()[:2] for line in lines if line.split()[:1] in (["1"], ["2"])][:2] == [
            ["2", "other"], ["1", "lm"]
        ]  # fmt: skip
        rank = next(line for line in lines if "40/100" in line and "97%" in line)
        assert all(word in rank for word in ("node1", "training", "12,346", "71.4/140", "61", "3.2"))
        assert "the first job's line" not in screen
        screen = await pressed(pilot, "down", "the first job's line", "a warning")
        assert "0! a warning" in screen and "hello from one" not in screen and "evaluating" not in screen

    play(cluster, story)


def test_a_log_that_comes_late_and_grows_is_followed(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))
    log = tmp_path / "logs" / "train_1.out"

    async def story(pilot: Any) -> None:
        await shown(pilot, "RUNNING")
        log.write_text("0: first line\n")
        await shown(pilot, "0| first line")
        with log.open("a") as file:
            file.write("1: second line\n")
        await shown(pilot, "1| second line")
        screen = await pressed(pilot, "f", without=["JOBID", "RANK"])
        assert "0| first line" in screen and "1| second line" in screen
        await pressed(pilot, "escape", "JOBID", "RANK")

    play(cluster, story)


def test_enter_shows_one_job_alone_and_escape_all_again(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))
    write_rank(one, 0)

    async def story(pilot: Any) -> None:
        await shown(pilot, "JOBID", "training")
        await pressed(pilot, "enter", "training", without=["JOBID"])
        await pressed(pilot, "escape", "JOBID")

    play(cluster, story)


def test_it_opens_on_the_newest_job_that_runs_and_begins_with_what_matters_about_it(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    waits, runs, older = run(tmp_path, 3), run(tmp_path, 2), run(tmp_path, 1)
    cluster.put((older, status(1)), (runs, status(2)), (waits, status(3, "PENDING", reason="Priority", elapsed=0)))
    for rank in (0, 1):
        write_rank(runs, rank, step=40, steps=100, interval=3600)

    async def story(pilot: Any) -> None:
        screen = await shown(pilot, "all 2 ranks at step 40", "3 jobs", "PENDING")
        first, _, *rows = screen.splitlines()
        assert first.startswith(" 2 lm: training; all 2 ranks at step 40")
        assert [row.split()[0] for row in rows[:3]] == ["2", "1", "3"]
        await pilot.press("down")
        screen = await pressed(pilot, "down", "3 lm: waiting: Priority")

    play(cluster, story)


def test_eight_jobs_their_ranks_and_the_log_fit_a_small_terminal(cluster: FakeCluster, tmp_path: Path) -> None:
    runs = {number: run(tmp_path, number) for number in range(1, 10)}
    cluster.put(*((one, status(number)) for number, one in runs.items()))
    for rank in range(8):
        write_rank(runs[9], rank, step=40)
    (tmp_path / "logs" / "train_9.out").write_text("".join(f"0: line {number}\n" for number in range(100)))

    async def story(pilot: Any) -> None:
        screen = await shown(pilot, "line 99", "training")
        rows = [line.split()[0] for line in screen.splitlines() if "RUNNING" in line]
        assert rows == list("98765432")
        assert screen.count("training  40") >= 4 and screen.count("| line ") >= 5

    play(cluster, story)


def test_the_losses_are_bars_and_where_there_is_room_a_chart(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))
    write_rank(one, 0)
    rows = [{"step": 10 * number, "loss": 8 - number / 10} for number in range(1, 61)]
    (one.run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    async def small(pilot: Any) -> None:
        screen = await shown(pilot, "step 600  loss 2.000 ██▇▇")
        assert "┤" not in screen

    async def large(pilot: Any) -> None:
        await shown(pilot, "step 600  loss 2.000 ██▇▇", "┤", "⠉", "200", "400", "600")

    play(cluster, small)
    play(cluster, large, size=(200, 50))


def test_states_and_late_ranks_have_colours_and_a_log_those_of_logs(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterrun.terminal.paint.Colours.chosen", "always")
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))
    write_rank(one, 0, time=time.time() - 95)
    (tmp_path / "logs" / "train_1.out").write_text("0: same\n1: same\n")
    (tmp_path / "logs" / "train_1.err").write_text("0: a warning\n")

    async def story(pilot: Any) -> None:
        await shown(pilot, "0| same  (×2 ranks)", "a warning", " !")
        (job,) = pilot.app.query_one("#jobs", Grid).get_row_at(0)
        assert [(job.plain[span.start : span.end], str(span.style)) for span in job.spans] == [("RUNNING", "color(6)")]
        seen = pilot.app.query_one("#ranks", Grid).get_row_at(0)[-1]
        assert seen.plain.endswith(" !") and "red" in str(seen.style)
        segments = [segment for line in pilot.app.query_one("#log", Tail).lines for segment in line]
        assert any(segment.text == "!" and "color(1)" in str(segment.style) for segment in segments)

    play(cluster, story)


def test_a_silent_rank_is_marked_and_named_and_one_that_is_over_is_not(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))
    write_rank(one, 0)
    write_rank(one, 1, time=time.time() - 95)

    async def story(pilot: Any) -> None:
        await shown(pilot, "of 2 ranks silent for")  # however long ago: the screen may come late
        screen = await shown(pilot, "s !")
        assert ": rank 1 on node1" in screen and re.search(r"1  +node1 .* \dm\d\ds !", screen)
        cluster.put((one, status(1, "COMPLETED")))
        screen = await shown(pilot, "COMPLETED", without=["silent"])
        assert " !" not in screen

    play(cluster, story)


# -- the keys ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_waits(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.put((run(tmp_path, 1), status(1, "PENDING", reason="Priority")))


def test_only_y_cancels(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))

    async def story(pilot: Any) -> None:
        await shown(pilot, "RUNNING")
        for key in ("n", "escape", "q", "enter", "space"):
            await pressed(pilot, "c", "Cancel 1 (lm)?  y/n")
            await pilot.press(key)
            await pilot.pause(0.2)
            assert cluster.cancelled == [], key
            if key in ("enter", "space"):
                await pilot.press("n")
            await shown(pilot, without=["Cancel 1"])
        await pilot.press("c", "y")
        await shown(pilot, "cancelled 1", "CANCELLED")
        assert cluster.cancelled == ["1"]

    play(cluster, story)


def test_what_is_cancelled_is_what_was_asked_about_though_rows_move(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))

    async def story(pilot: Any) -> None:
        await shown(pilot, "RUNNING")
        await pilot.press("c")
        cluster.put((one, status(1)), (run(tmp_path, 2), status(2)), (run(tmp_path, 3), status(3)))
        await pressed(pilot, "r", "3 jobs")
        await pressed(pilot, "y", "cancelled 1")
        assert cluster.cancelled == ["1"]

    play(cluster, story)


@pytest.mark.usefixtures("one_waits")
def test_h_holds_a_job_and_releases_a_held_one(cluster: FakeCluster) -> None:
    async def story(pilot: Any) -> None:
        await shown(pilot, "Priority")
        await pressed(pilot, "h", "held 1", "JobHeldUser")
        await pressed(pilot, "h", "released 1", without=["JobHeldUser"])
        assert cluster.held == [("1", False), ("1", True)]

    play(cluster, story)


@pytest.mark.usefixtures("one_waits")
def test_what_cannot_be_explained_is_said_and_the_view_goes_on(cluster: FakeCluster) -> None:
    async def story(pilot: Any) -> None:
        await shown(pilot, "Priority")
        await pressed(pilot, "e", "esc to close", "no attribute 'scheduler'")  # this cluster has none to ask
        await pressed(pilot, "escape", without=["esc to close"])

    play(cluster, story)


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
def test_leaving_touches_no_job(cluster: FakeCluster, tmp_path: Path, key: str, code: int) -> None:
    cluster.put((run(tmp_path, 1), status(1)))

    async def story(pilot: Any) -> None:
        await shown(pilot, "RUNNING")
        await pilot.press(key)

    assert play(cluster, story).return_value == code
    assert cluster.cancelled == []


def test_a_tick_that_comes_while_it_closes_does_nothing(cluster: FakeCluster) -> None:
    async def story(pilot: Any) -> None:
        await shown(pilot, "0 jobs")

    play(cluster, story).tick()  # the widgets are gone, as they are while the timer has not been stopped yet


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_scheduler_that_hangs_freezes_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    one, two = run(tmp_path, 1), run(tmp_path, 2)
    cluster.put((one, status(1)), (two, status(2)))
    write_rank(one, 0, phase="saving")
    write_rank(two, 0, phase="loading")

    async def story(pilot: Any) -> None:
        await shown(pilot, "loading")
        cluster.silent.clear()
        asked = cluster.asked
        await until_shown(pilot, lambda text: cluster.asked > asked)
        began = time.monotonic()
        await pressed(pilot, "down", "saving")
        await pilot.press("t", "f", "escape", "c", "n")
        assert time.monotonic() - began < HUNG  # one who waited for the answer would wait for ten minutes
        waiting = r"waiting for the scheduler \(([2-9]|\d\d)s\)"
        await until_shown(pilot, lambda text: re.search(waiting, text) is not None)
        assert cluster.asked == asked + 1
        await pilot.press("q")

    began = time.monotonic()
    play(cluster, story)
    assert time.monotonic() - began < 2 * HUNG  # nor is the way out
    cluster.silent.set()


def test_a_failed_question_keeps_what_was_known_with_its_age(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.put((run(tmp_path, 1), status(1)))

    async def story(pilot: Any) -> None:
        await shown(pilot, "RUNNING")
        cluster.trouble = "squeue: Unable to contact slurm controller"
        screen = await shown(pilot, "NO ANSWER: squeue: Unable to contact")
        assert "RUNNING" in screen and "UNKNOWN" not in screen
        cluster.trouble, cluster.error = "", SchedulerError("it is gone", detail="scontrol: error")
        screen = await shown(pilot, "NO ANSWER: it is gone: scontrol: error")
        assert "RUNNING" in screen
        cluster.error = None
        await shown(pilot, without=["NO ANSWER"])

    play(cluster, story, size=(140, 24))


def test_nobodys_text_is_markup_or_moves_the_cursor(cluster: FakeCluster, tmp_path: Path) -> None:
    bad = "[red]x[/] \x1b[2J\x1b]0;t\x07\u202e\r[/nope]"
    one = run(tmp_path, 1, name=bad)
    cluster.put((one, status(1, "PENDING", reason=bad, nodes=bad)))
    write_rank(one, 0, node=bad, phase=bad)
    (tmp_path / "logs" / "train_1.out").write_text(f"0: {bad}\n0: after\n", newline="")

    async def story(pilot: Any) -> None:
        screen = await shown(pilot, "0| after")
        assert "[red]x[/] \\x1b[2J" in screen
        assert not set("\x1b\x07\r\u202e") & set(screen)
        await pressed(pilot, "c", "Cancel 1 ([red]x[/]")
        await pilot.press("n")
        cluster.trouble = bad
        await shown(pilot, "NO ANSWER: [red]x[/]")
        assert not set("\x1b\x07\r\u202e") & set(text_of(pilot.app))

    play(cluster, story, size=(300, 40))


def test_without_jobs_it_says_what_to_do(cluster: FakeCluster) -> None:
    async def story(pilot: Any) -> None:
        await shown(pilot, "no active jobs; `clusterrun submit` starts one", "0 jobs")
        await pilot.press("c", "h", "e", "f", "enter", "escape")

    play(cluster, story)


# -- terminals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10)])
def test_light_and_dark_say_the_same_in_every_size(cluster: FakeCluster, tmp_path: Path, size: tuple[int, int]) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1, "PENDING", reason="Priority", elapsed=0)))
    write_rank(one, 0)
    screens: dict[str, str] = {}

    for theme in ("dark", "light"):

        async def story(pilot: Any, theme: str = theme) -> None:
            screen = await shown(pilot, "PENDING", "Priority")
            screens[theme] = "\n".join(screen.splitlines()[1:4])
            assert pilot.app.current_theme.dark == (theme == "dark")

        play(cluster, story, size=size, theme=theme)
    assert screens["dark"] == screens["light"]


def test_a_thousand_jobs_and_ranks_are_shown_and_moved_through(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1, ranks=1000)
    for rank in range(1000):
        write_rank(one, rank, step=1)
    cluster.put(*((run(tmp_path, number), status(number)) for number in range(1, 1000)))

    async def story(pilot: Any) -> None:
        await shown(pilot, "999 jobs", "\n 999 ")
        await pilot.press("ctrl+end")
        await shown(pilot, "\n 1      lm", "training")
        began = time.monotonic()
        await pilot.pause(2.5)  # the ranks' ages change, all thousand of them
        assert time.monotonic() - began < HUNG

    play(cluster, story)


def test_the_log_stays_at_its_end_when_its_window_changes(cluster: FakeCluster, tmp_path: Path) -> None:
    one = run(tmp_path, 1)
    cluster.put((one, status(1)))
    (tmp_path / "logs" / "train_1.out").write_text("".join(f"0: line {number}\n" for number in range(100)))

    async def story(pilot: Any) -> None:
        await shown(pilot, "line 99")
        await pressed(pilot, "f", "line 99", "line 82")
        await pressed(pilot, "escape", "line 99", "JOBID")

    play(cluster, story)
