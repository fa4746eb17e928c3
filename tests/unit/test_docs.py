"""The documents name what there is, and nothing that is not."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest

from clusterrun.worker import tasks
from clusterrun.worker.training.settings import Training
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
