"""The documents name what there is, and nothing that is not."""

from __future__ import annotations

import re
import tomllib

import pytest

from clusterrun.base.fields import FIELD
from clusterrun.cli import VERBS
from clusterrun.config import profiles, sweep_request
from clusterrun.config.toml_values import TABLES
from clusterrun.worker import tasks
from scripts import man_pages, reference, troubleshooting
from tests.support.folders import PACKAGE, ROOT

DOCS = ROOT / "docs"


def test_the_parts_that_are_made_from_the_code_are_current() -> None:
    """`make reference` writes them."""
    made = dict(reference.documents())
    assert {path.name for path in made} == {"commands.md", "job-files.md", "settings.md"}
    assert [path.name for path, text in made.items() if path.read_text() != text] == [], "run: make reference"


def test_the_keys_of_files_that_are_no_options_are_told() -> None:
    text = (ROOT / "docs" / "job-files.md").read_text()
    tables = {f"[{name}]" for name in TABLES} | {key for table in TABLES.values() for key in table if key not in FIELD}
    for key in {*profiles._JOB_KEYS, *profiles._PROFILE_KEYS, *sweep_request._KEYS, *tables}:
        assert f"`{key}`" in text, key


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "clusterrun/__init__.py"
    assert "\nversion:" not in (ROOT / "CITATION.cff").read_text()


def test_each_verb_has_a_man_page() -> None:
    pages = dict(man_pages.pages())
    assert pages.keys() == {"clusterrun", "clusterrun-remote-setup", *(f"clusterrun-{verb}" for verb in VERBS)}
    for verb in VERBS:
        page = pages[f"clusterrun-{verb}"].replace("\\-", "-")
        assert page.startswith(f'.TH "CLUSTERRUN-{verb.upper()}" "1"') and f"\nclusterrun {verb}" in page
        assert "\n\\fB" in page and f"clusterrun-{verb}" in pages["clusterrun"].replace("\\-", "-")


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
    assert troubleshooting.PAGE.read_text() == troubleshooting.page(), "run: make reference"


def test_json_of_each_command_is_told() -> None:
    table = (DOCS / "json.md").read_text().partition("## `data` of each command")[2].partition("\n## ")[0]
    told = {verb for row in re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE) for verb in re.findall(r"`(\w+)", row)}
    assert told == set(VERBS) - {"exec", "mcp"}
