"""The pages of the first run and of the JSON are true on this machine."""

from __future__ import annotations

import re

from tests.support.folders import ROOT
from tests.support.installed_command import Site
from tests.support.tutorial import follow


def test_first_run_does_what_its_page_says(site: Site) -> None:
    fewer_ranks = ("--gpus-per-node 2", "--gpus-per-node 1"), ("--rank 3", "--rank 1")
    assert len(follow(site, "first-run.md", *fewer_ranks)) == 3
    page = (ROOT / "docs" / "json.md").read_text().partition("## A job\n")[2].partition("\n## ")[0]
    told = [key for cells in re.findall(r"^\| (`.+?`) \| ", page, re.MULTILINE) for key in re.findall(r"\w+", cells)]
    assert sorted(told) == sorted(site.json("status")[0]), "each key of a job is told once"
