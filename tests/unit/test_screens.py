"""The pictures in docs/screens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.screens import COMMANDS, OUT, THEMES, TOPS, draw_command

PICTURES = sorted(OUT.glob("*.svg"))


def test_each_screen_is_there_in_dark_and_light() -> None:
    names = [*json.loads(COMMANDS.read_text()), *TOPS]
    assert {path.stem for path in PICTURES} == {f"{name}-{theme}" for name in names for theme in THEMES}
    assert {"list", "status", "why-waiting", "why-failed", "free", "top-80x24", "top-200x50"} <= set(names)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_loads_nothing_and_runs_nothing(path: Path) -> None:
    svg = path.read_text()
    assert not re.search(r"@font-face|@import|<script|<image|href=|url\((?!#)", svg)
    assert set(re.findall(r"https?://[^\s\"<]*", svg)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("theme", THEMES)
def test_the_same_output_gives_the_same_picture(theme: str) -> None:
    for name, shown in json.loads(COMMANDS.read_text()).items():
        assert (OUT / f"{name}-{theme}.svg").read_text() == draw_command(name, shown, theme)


def test_the_lines_of_a_command_keep_their_colours() -> None:
    svg = draw_command("x", {"command": "clusterrun list", "output": "1  \x1b[31mFAILED\x1b[0m"}, "dark")
    assert "FAILED" in svg and "\x1b" not in svg
