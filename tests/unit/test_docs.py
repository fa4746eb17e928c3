"""The documents name what there is, and nothing that is not."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest

from clusterrun.worker import tasks
from clusterrun.worker.training.settings import Training
from scripts import troubleshooting
from tests.support.folders import PACKAGE, ROOT

DOCS = ROOT / "docs"
TOLD = {
    key
    for line in (DOCS / "settings.md").read_text().splitlines()
    if line.startswith("| `")
    for key in re.findall(r"`(\w+)`", line.split("|")[1])
}


@pytest.mark.parametrize("name", tasks.NAMES)
def test_every_setting_of_a_task_is_told(name: str) -> None:
    config = importlib.import_module(f"clusterrun.worker.tasks.{name}").Config
    assert {field.name for field in dataclasses.fields(config)} - TOLD == set()


def test_every_setting_that_is_told_is_one() -> None:
    known = {field.name for field in dataclasses.fields(Training)}
    for name in tasks.NAMES:
        config = importlib.import_module(f"clusterrun.worker.tasks.{name}").Config
        known |= {field.name for field in dataclasses.fields(config)}
    assert TOLD - known == set()


@pytest.mark.parametrize("name", tasks.NAMES)
def test_every_task_has_a_job_that_comes_with_it(name: str) -> None:
    job = PACKAGE / "jobs" / f"{name}.toml"
    assert f'task = "{name}"' in job.read_text()
    link = ROOT / "jobs" / f"{name}.toml"
    assert link.resolve() == job.resolve()


def test_each_page_is_in_the_menu_of_the_site() -> None:
    named = set(re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {path.name for path in DOCS.glob("*.md")} | {"adr/README.md"}


def test_each_decision_is_told_in_plain_words() -> None:
    told = set(re.findall(r"\(adr/([\w-]+\.md)\)", (DOCS / "why-it-works.md").read_text()))
    assert told == {path.name for path in (DOCS / "adr").glob("0*.md")}


def test_troubleshooting_is_that_of_the_tables_of_why() -> None:
    assert troubleshooting.PAGE.read_text() == troubleshooting.page(), "run: python -m scripts.troubleshooting"
