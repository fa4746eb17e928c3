"""The page of a report in a real Chromium: it loads nothing, complains of nothing, fits a phone, and keys reach it.

Skipped, with the reason, where no Chromium is installed (Debian: `apt-get install chromium-headless-shell`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from clusterrun.records.store import Store
from clusterrun.report.page import report_page
from tests.support.browser import Page, browser, find_browser
from tests.support.reported_runs import NOW, data_of, make_run, with_texts

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium (apt-get install chromium-headless-shell)")
EVIL = "</script><script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The pages of a run, of two runs, and of a run whose every text is hostile."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "project").mkdir()
    store = Store(folder / "project", folder / "state")
    first, second = (data_of(make_run(store, number)) for number in (1, 2))
    evil = with_texts(first, lambda text: text if text in ("failed", "step") else f"{text} {EVIL}")
    paths = (folder / "one.html", folder / "two.html", folder / "evil.html")
    for path, runs in zip(paths, ([first], [first, second], [evil]), strict=True):
        path.write_text(report_page(runs, None, NOW))
    return paths


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_window_loads_nothing_and_complains_of_nothing(
    page: Page, files: tuple[Path, ...], width: int, dark: bool
) -> None:
    for path in files:
        page.show(path, width, dark=dark)
        page.run("for (const part of document.querySelectorAll('details')) part.open = true")
        assert page.run("document.documentElement.scrollWidth") <= width, path.name
        assert page.requests == [path.as_uri()] and page.complaints == []
        assert page.run("document.title") != "evil"
    # black on white, or the other way round
    assert (page.run("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)") == dark


def test_keys_reach_each_chart_and_read_its_values(page: Page, files: tuple[Path, ...]) -> None:
    page.show(files[0])
    for _ in range(20):
        page.press("Tab")
        if page.run("document.activeElement.classList.contains('plot')"):
            break
    page.press("Home")
    assert page.run("document.activeElement.getAttribute('aria-valuetext')").startswith("step 1: loss 5.8765")
    page.press("ArrowRight", 24)
    said = page.run("document.querySelector('figure.chart output').textContent")
    assert said == "step 25: loss 3.6763, held-out loss 3.7763"
    page.press("End")
    assert page.run("document.querySelector('figure.chart output').textContent").startswith("step 150: ")
    page.press("Tab")
    assert page.run("document.querySelector('figure.chart output').textContent") == ""


def test_keys_open_the_options(page: Page, files: tuple[Path, ...]) -> None:
    page.show(files[0])
    for _ in range(60):
        page.press("Tab")
        if page.run("document.activeElement.textContent").startswith("Options"):
            break
    assert page.run("document.activeElement.parentElement.open") is False
    page.press("Enter")
    assert page.run("document.activeElement.parentElement.open") is True


def test_what_scrolls_can_be_reached_and_each_level_of_headings_is_used(page: Page, files: tuple[Path, ...]) -> None:
    page.show(files[1], 390)
    unreachable = "[...document.querySelectorAll('.wide, pre')].filter(part => part.tabIndex < 0).length"
    assert page.run(unreachable) == 0
    levels = page.run("[...document.querySelectorAll('h1,h2,h3,h4')].map(part => Number(part.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
