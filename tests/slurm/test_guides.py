"""A slice of `make guides`: rows of docs/guides.md are typed on the lab.

The lines that are typed on each node have a test of their own: local/test_without_slurm.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.cluster import Lab
from tests.guides import Guides, rows
from tests.support.installed_command import Site


@pytest.fixture(scope="module")
def guides(lab: Lab, new_site: Callable[[Lab | None], Site]) -> Guides:
    return Guides(new_site(lab))


@pytest.mark.parametrize("number", [1, 21])
def test_the_commands_of_a_row_do_what_the_guide_does(guides: Guides, number: int) -> None:
    assert guides.run(rows()[number])
