"""What tests of one contract share: a user of each scheduler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Site

SCHEDULERS = {"local": None, "slurm": "lab"}


@pytest.fixture(scope="module", params=SCHEDULERS)
def site(request: pytest.FixtureRequest, new_site: Callable[[Lab | None], Site]) -> Site:
    lab = SCHEDULERS[request.param]
    return new_site(request.getfixturevalue(lab) if lab else None)
