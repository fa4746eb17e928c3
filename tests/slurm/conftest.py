"""What tests on the lab share: a user, and for submitting a light job's template, a die, and fleets that are ended."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Site
from tests.support.submit_tools import Fleet, light_template


@pytest.fixture(scope="module")
def site(lab: Lab, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(lab)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def rng() -> random.Random:
    """A die whose seed is printed; CLUSTERRUN_TEST_SEED throws the same again."""
    seed = int(SEED) if (SEED := os.environ.get("CLUSTERRUN_TEST_SEED", "")) else random.SystemRandom().getrandbits(32)
    print(f"CLUSTERRUN_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def fleets() -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(*args: Any) -> Fleet:
        made.append(Fleet(*args))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()
