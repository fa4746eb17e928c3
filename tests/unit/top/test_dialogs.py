"""Windows before the view of ``top``: an explanation may come late, and reads as ``why`` prints it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding

from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import RunState
from clusterrun.top.app import Top
from clusterrun.top.dialogs import TextWindow
from clusterrun.top.source import TopData, explain
from clusterrun.why import ended
from clusterrun.why.causes import Cause
from tests.support.fake_cluster import FakeCluster, pressed, run, shown, status
from tests.support.patience import HUNG


def test_an_explanation_that_comes_after_its_window_was_closed_ends_nothing(tmp_path: Path) -> None:
    cluster, answered = FakeCluster(), threading.Event()
    cluster.put((run(tmp_path, 1), status(1, "PENDING", reason="Priority")))
    cluster.scheduler = lambda name: answered.wait(HUNG)  # type: ignore[attr-defined]

    async def story(pilot: Any) -> None:
        await shown(pilot, "Priority")
        await pressed(pilot, "e", "loading")
        asking = [thread for thread in threading.enumerate() if thread.name == "top-act"]
        await pressed(pilot, "escape", without=["esc to close"])
        answered.set()
        for thread in asking:
            thread.join(HUNG)
        await pressed(pilot, "h", "held 1")  # its word comes after that of the explanation

    async def act() -> None:
        async with Top(TopData(cluster), pace=Pace(0.2)).run_test(size=(80, 24)) as pilot:
            await story(pilot)

    asyncio.run(act())


def test_a_text_may_come_at_any_moment_while_its_window_opens(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.put((run(tmp_path, 1), status(1)))

    async def act() -> None:
        app = Top(TopData(cluster), pace=Pace(0.2))
        async with app.run_test(size=(80, 24)) as pilot:
            await shown(pilot, "RUNNING")
            window = TextWindow("a title")
            app.push_screen(window)
            while not window.is_mounted:  # its parts are mounted one after the other
                window.show("the answer")
                await asyncio.sleep(0)
            await shown(pilot, "the answer", without=["loading"])

    asyncio.run(act())


def test_an_end_reads_as_why_prints_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = Cause(kind="exception", sentence="ValueError: no", advice="mend it", command="clusterrun logs 1")
    monkeypatch.setattr(ended, "explain", lambda cluster, state: cause)
    lines = explain(FakeCluster(), RunState(run(tmp_path, 1), status(1, "FAILED")))
    assert lines[1:] == [
        "    state  FAILED",
        "    cause  ValueError: no",
        "       do  mend it",
        "           clusterrun logs 1",
    ]


def test_the_question_mark_tells_of_every_key(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.put((run(tmp_path, 1), status(1)))

    async def act() -> None:
        async with Top(TopData(cluster), pace=Pace(0.2)).run_test(size=(80, 24)) as pilot:
            screen = await shown(pilot, "RUNNING", "? Keys", "t Theme", "q Quit")
            screen = await pressed(pilot, "question_mark", "these keys", "jobs are not affected")
            told = {line.partition("│")[2].strip().partition("  ")[0] for line in screen.splitlines()}
            for binding in (one for one in Top.BINDINGS if isinstance(one, Binding)):
                name = {"question_mark": "?", "escape": "esc", "ctrl+c": "q"}.get(binding.key, binding.key)
                assert name in told, (name, screen)
            await pressed(pilot, "question_mark", without=["these keys"])

    asyncio.run(act())
