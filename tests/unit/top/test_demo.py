"""The recorded run of `top --demo`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.top.app import Top
from clusterrun.top.demo import PAUSE, TAPE, EverySecond, Recording
from tests.support.command_desk import Desk
from tests.support.fake_cluster import pressed, shown

LENGTH = json.loads(TAPE.read_text().splitlines()[-1])[0]


def test_it_plays_on_the_screen_and_explains_but_changes_nothing(tmp_path: Path) -> None:
    async def look() -> None:
        app = Top(Recording(tmp_path), pace=EverySecond())
        async with app.run_test(size=(120, 40)) as pilot:
            await shown(pilot, "pretrain: training", "ranks at step", "| step", "PENDING")
            await pressed(pilot, "e", "RUNNING since", "8 of 8 ranks responding")
            await pressed(pilot, "escape", without=["esc to close"])
            await pilot.press("c", "y")
            await shown(pilot, "this is a recording")

    asyncio.run(look())


def test_time_runs_on_to_the_end_of_the_job_and_then_it_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, began = Recording(tmp_path), time.time()
    first = recording.jobs().states[0]
    ranks = recording.ranks(first)
    assert first.status.state == "RUNNING" and len(ranks.ranks) == 8 and ranks.metrics is not None
    assert not any(rank.is_silent(time.time()) for rank in ranks.ranks)
    monkeypatch.setattr("time.time", lambda: began + 20)
    (later,) = (state for state in recording.jobs().states if state.key == first.key)
    assert (later.status.elapsed or 0) >= (first.status.elapsed or 0) + 19
    moved = recording.ranks(first).metrics
    assert moved is not None and moved.step > ranks.metrics.step
    monkeypatch.setattr("time.time", lambda: began + LENGTH + 1)
    assert {state.status.state for state in recording.jobs().states if state.key == first.key} == {"COMPLETED"}
    monkeypatch.setattr("time.time", lambda: began + LENGTH + PAUSE + 2)
    again = recording.jobs().states[0]
    assert again.status.state == "RUNNING" and again.run_id != first.run_id
    assert len(recording.ranks(again).ranks) == 8


def test_nothing_is_changed_in_it(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    state = recording.jobs().states[0]
    for act in (recording.cancel, recording.hold):
        with pytest.raises(RequestError, match="recording"):
            act(state)


def test_it_takes_neither_a_job_nor_json(desk: Desk) -> None:
    assert desk.type("top", "--demo", "--json").status == 2
    assert "needs a terminal" in desk.type("top", "--demo").err


def test_the_recording_is_small_and_names_no_machine_of_its_makers() -> None:
    tape = TAPE.read_text()
    assert len(tape) < 400_000
    assert "/work" not in tape
