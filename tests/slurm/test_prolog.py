"""A prolog that fails on a node: Slurm drains the node and holds the job, or cancels one that it may not requeue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.fixtures import require_lab
from tests.support.installed_command import Site, until
from tests.support.patience import HUNG

#: squeue's reason for the job, as `list` shows it.
HELD = "launch failed requeued held"


@pytest.fixture(scope="module")
def flag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists the prolog fails."""
    return tmp_path_factory.mktemp("prolog") / "fails"


@pytest.fixture(scope="module")
def site(flag: Path, new_site: Callable[[Lab | None], Site]) -> Iterator[Site]:
    require_lab()
    prolog = flag.with_name("prolog.sh")
    prolog.write_text(f"#!/bin/sh\n[ ! -e {flag} ] || exit 1\n")
    prolog.chmod(0o755)
    with Lab(name=f"t{os.getpid()}p", nodes=3, accounting=False, settings={"Prolog": str(prolog)}) as lab:
        yield new_site(lab)


def test_a_held_job_is_explained_and_runs_after_its_release(site: Site, flag: Path) -> None:
    assert site.lab is not None
    flag.touch()
    job = site.rank("says_hello.sh", "--requeue")
    until(lambda: site.state(job)["reason"] == HELD, 60, lambda: str(site.state(job)), pause=0.5)
    why = site.cli("why", job.id).stdout
    assert "a prolog may have failed" in why and f"scontrol release {job.id}" in why
    (bad,) = [name for name, state in site.lab.node_states().items() if "drain" in state.lower()]
    assert f"at that time {bad} is drained: Prolog error" in why, "Slurm has forgotten the job's node"
    waiting = site.start("wait", job.id)
    assert waiting.stdout is not None and f"PENDING {HELD}" in waiting.stdout.readline()
    flag.unlink()
    site.lab.run(["scontrol", "release", job.id])
    said, _ = waiting.communicate(timeout=HUNG)
    assert waiting.returncode == 0, said
    state = site.state(job)
    assert state["state"] == "COMPLETED" and [folder.name.split(".")[1:] for folder in job.attempts()] == [["1", "0"]]
    assert "duplicate" not in site.cli("logs", job.id).stdout


def test_a_job_that_may_not_be_requeued_names_the_prolog_that_failed(site: Site, flag: Path) -> None:
    flag.touch()
    job = site.rank("says_hello.sh", "--no-requeue")
    site.wait_state(job, "CANCELLED")
    assert "prolog" in site.json("why", job.id)[0]["ended"]["cause"]
    assert "prolog" in site.cli("status", job.id).stdout
    flag.unlink()
