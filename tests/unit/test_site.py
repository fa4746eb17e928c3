"""The site's pages: all are in its menu, and the page that is written from the tables of `why` is current."""

from __future__ import annotations

import re

from scripts import troubleshooting
from tests.support.folders import ROOT

DOCS = ROOT / "docs"


def test_each_page_is_in_the_menu() -> None:
    named = set(re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {path.name for path in DOCS.glob("*.md")} | {"adr/README.md"}


def test_each_decision_is_told_in_plain_words() -> None:
    told = set(re.findall(r"\(adr/([\w-]+\.md)\)", (DOCS / "why-it-works.md").read_text()))
    assert told == {path.name for path in (DOCS / "adr").glob("0*.md")}


def test_troubleshooting_is_that_of_the_tables() -> None:
    assert troubleshooting.PAGE.read_text() == troubleshooting.page(), "run: python -m scripts.troubleshooting"
