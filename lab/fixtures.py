"""Fixtures for pytest: `pytest_plugins = ["lab.fixtures"]`.

`lab` has accounting, `lab_no_accounting` has none, `any_lab` runs a test on both; each lab starts when a test first
asks for it, is put right again after each file, and goes down when the session ends. The `fresh_…` forms put it right
after the test: where a test leaves jobs behind that the next one would see, or breaks something. Where the lab cannot
run, the test is skipped, except with CI=true, where it fails. CLUSTERRUN_LAB_REUSE=1 keeps the labs up for the next
session; CLUSTERRUN_LAB_SLURM=24.11 gives every lab that version of Slurm.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from lab import claims, releases
from lab.cluster import Lab
from lab.errors import LabError
from lab.install import available


def require_lab() -> None:
    """Skip the test where the lab cannot run; fail it there with CI=true, so that a broken CI does not pass."""
    if reason := available(releases.default()):
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)  # not root, or no packages: `make test` says why in a line and continues; CI fails here


def _session_lab(accounting: bool) -> Iterator[Lab]:
    require_lab()
    with contextlib.ExitStack() as stack:
        if os.environ.get("CLUSTERRUN_LAB_REUSE") == "1":
            name = ("reuse" if accounting else "reuse-none") + releases.default().replace(".", "")
            # One session at a time has the kept lab, or two would reset each other's jobs; the other starts its own.
            try:
                stack.enter_context(claims.lock(f"use-{name}", timeout=0))
            except LabError:
                pass
            else:
                lab = Lab(name=name, accounting=accounting).up()
                lab.reset()
                yield lab
                return
        # Named after this process, so that sessions can run side by side; owned by it, so that none is left for long.
        name = f"t{os.getpid()}{'a' if accounting else 'n'}"
        yield stack.enter_context(Lab(name=name, accounting=accounting))


def _then_reset(lab: Lab) -> Iterator[Lab]:
    yield lab
    lab.reset()


@pytest.fixture(scope="session")
def session_lab() -> Iterator[Lab]:
    """Yield the cluster behind `lab`."""
    yield from _session_lab(accounting=True)


@pytest.fixture(scope="session")
def session_lab_no_accounting() -> Iterator[Lab]:
    """Yield the cluster behind `lab_no_accounting`."""
    yield from _session_lab(accounting=False)


@pytest.fixture(scope="module")
def lab(session_lab: Lab) -> Iterator[Lab]:
    """Yield a cluster of 4 nodes x 4 GPUs with accounting; at the end of a file its jobs are ended."""
    yield from _then_reset(session_lab)


@pytest.fixture(scope="module")
def lab_no_accounting(session_lab_no_accounting: Lab) -> Iterator[Lab]:
    """Yield a cluster of 4 nodes x 4 GPUs without accounting; at the end of a file its jobs are ended."""
    yield from _then_reset(session_lab_no_accounting)


@pytest.fixture(scope="module", params=["accounting", "no-accounting"])
def any_lab(request: pytest.FixtureRequest) -> Lab:
    """Both clusters, one after the other: the test runs twice."""
    found: Lab = request.getfixturevalue("lab" if request.param == "accounting" else "lab_no_accounting")
    return found


@pytest.fixture
def fresh_lab(lab: Lab) -> Iterator[Lab]:
    """`lab`, put right again after the test."""
    yield from _then_reset(lab)


@pytest.fixture
def fresh_lab_no_accounting(lab_no_accounting: Lab) -> Iterator[Lab]:
    """`lab_no_accounting`, put right again after the test."""
    yield from _then_reset(lab_no_accounting)


@pytest.fixture
def fresh_any_lab(any_lab: Lab) -> Iterator[Lab]:
    """`any_lab`, put right again after the test."""
    yield from _then_reset(any_lab)
