"""The page of the first run is true on this machine, command by command."""

from __future__ import annotations

from tests.support.installed_command import Site
from tests.support.tutorial import follow


def test_first_run_does_what_its_page_says(site: Site) -> None:
    assert len(follow(site, "first-run.md")) == 3
