"""Draw the command line's screens into docs/screens, as SVG: `python -m scripts.screens`.

They are drawn from two files, so that the same files give the same pictures: clusterrun/top/demo.jsonl, which
`top --demo` plays, and docs/screens/commands.json, what commands printed on a terminal. `--record` first makes both
anew with real jobs on a lab of its own (as root, five minutes).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from clusterrun.terminal.paint import Colours
from clusterrun.top.app import Top
from clusterrun.top.demo import NOTE, EverySecond, Recording

OUT = Path(__file__).resolve().parents[1] / "docs" / "screens"
COMMANDS = OUT / "commands.json"
WIDTH = 100  # of the commands' terminal
TOPS = {"top": (120, 36), "top-80x24": (80, 24), "top-200x50": (200, 50)}
AT = 30.0  # seconds into the recording
NOW = 1_800_000_000.0
LIGHT = TerminalTheme(
    (255, 255, 255), (31, 35, 40),
    [(36, 41, 47), (207, 34, 46), (17, 99, 41), (154, 103, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131),
     (110, 119, 129)],
    [(87, 96, 106), (164, 14, 38), (26, 127, 55), (99, 60, 1), (33, 139, 255), (164, 117, 249), (49, 146, 170),
     (140, 149, 159)],
)  # fmt: skip
THEMES = {"dark": SVG_EXPORT_THEME, "light": LIGHT}
#: rich's frame without its fonts, which a browser would load from another host
FRAME = (
    re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    .replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
    .replace("rgba(255,255,255,0.35)", "rgba(128,128,128,0.5)")
)


def main() -> None:
    """Record if asked, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="first run the jobs anew, on a lab")
    if parser.parse_args().record:
        from scripts.record_screens import record

        record(COMMANDS, WIDTH)
    for theme in THEMES:
        for name, shown in json.loads(COMMANDS.read_text()).items():
            write(f"{name}-{theme}", draw_command(name, shown, theme))
        for name, size in TOPS.items():
            write(f"{name}-{theme}", asyncio.run(draw_top(name, size, theme)))


def draw_command(name: str, shown: dict[str, str] | list[dict[str, str]], theme: str) -> str:
    """Return an SVG of a command line and what it printed, or of several."""
    lines: list[str] = []
    for one in shown if isinstance(shown, list) else [shown]:
        lines += [f"$ {one['command']}", *one["output"].splitlines(), ""]
    del lines[-1]
    return picture(Text("\n").join(map(Text.from_ansi, lines)), WIDTH, theme, name)


def picture(shown: Any, width: int, theme: str, name: str, title: str = "") -> str:
    """Return an SVG of a terminal that shows this."""
    console = Console(width=width, file=StringIO(), force_terminal=True, record=True, color_system="truecolor",
                      legacy_windows=False, safe_box=False)  # fmt: skip
    console.print(shown)
    return console.export_svg(title=title, theme=THEMES[theme], code_format=FRAME, unique_id=name)


async def draw_top(name: str, size: tuple[int, int], theme: str) -> str:
    """Return an SVG of `top --demo` at a moment of the recording."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("time.time", lambda: NOW),
        patch.object(Colours, "chosen", "always"),
    ):
        app = Top(Recording(Path(folder), AT), theme=theme, pace=EverySecond(), notes=[NOTE])
        async with app.run_test(size=size) as pilot:
            before, shown = "", "nothing"
            while app._loading_plots.is_alive() or not app._tail_seen or shown != before:
                await pilot.pause(1.0)
                app._queue.latest = replace(app._queue.latest, at=time.monotonic())
                app.tick()
                await pilot.pause()
                before, shown = shown, text_of(app)
            return picture(app.screen._compositor.render_update(full=True), size[0], theme, name, "clusterrun top")


def text_of(app: Top) -> str:
    """Return the text on the screen."""
    console = Console(width=app.size.width, file=StringIO(), record=True)
    console.print(app.screen._compositor.render_update(full=True))
    return console.export_text()


def write(name: str, svg: str) -> None:
    """Write a picture."""
    (OUT / f"{name}.svg").write_text(svg)
    print(f"docs/screens/{name}.svg")


if __name__ == "__main__":
    main()
