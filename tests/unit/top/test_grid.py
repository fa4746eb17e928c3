"""The table of ``top`` by itself: what is drawn of it, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.app import App, ComposeResult

from clusterrun.top.app import Grid
from tests.support.fake_cluster import text_of


class Alone(App[None]):
    def compose(self) -> ComposeResult:
        yield Grid(["NAME", "REASON"], id="grid")


def play(story: Callable[[Any, Grid], Awaitable[None]]) -> None:
    async def act() -> None:
        async with Alone().run_test(size=(60, 8)) as pilot:
            await story(pilot, pilot.app.query_one(Grid))

    asyncio.run(act())


@pytest.mark.parametrize("cell", ["the longest reason of all", "ein 漢字 in it"])
@pytest.mark.parametrize("columns", [["NAME", "REASON"], ["JOB", "WHY"]], ids=["the same columns", "others"])
def test_a_cell_that_is_drawn_before_the_table_is_idle_is_not_cut(cell: str, columns: list[str]) -> None:
    async def story(pilot: Any, grid: Grid) -> None:
        grid.show([("1", ["x", "short"])])
        await pilot.pause()
        grid.show([("1", ["x", cell])], columns)
        drawn = text_of(pilot.app)  # at once: the table has not been idle since
        await pilot.pause()
        assert cell in drawn and cell in text_of(pilot.app)

    play(story)


def test_the_cursor_stays_on_its_row_where_columns_and_widths_change() -> None:
    async def story(pilot: Any, grid: Grid) -> None:
        grid.show([(key, [key, "x"]) for key in "abc"])
        grid.select("b")
        grid.show([(key, [key, "wider than before"]) for key in "xbac"])
        assert grid.selected == "b"
        grid.show([(key, [key]) for key in "ab"], ["ONE"])
        assert grid.selected == "b"
        grid.show([(key, [key]) for key in "ac"])
        assert grid.selected == "c", "where its row was"
        await pilot.pause()
        assert "ONE" in text_of(pilot.app)

    play(story)
