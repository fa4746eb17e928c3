"""Fixtures for what one user can do to another: three users with homes of their own, for each test anew."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import users
from lab.cluster import Lab
from lab.errors import LabError
from tests.security.people import TYPIST, Town, Typist, furnish, make_person

CODE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def opt() -> Iterator[Path]:
    """An installation of clusterrun that every user of the machine may run."""
    folder = Path(tempfile.mkdtemp(prefix="clusterrun-opt-", dir="/tmp"))  # pytest's own folders are closed to others
    folder.chmod(0o755)
    try:
        try:
            python = users.interpreter(users.ensure()[0])
        except LabError as error:
            if os.environ.get("CI") == "true":
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))  # no users can be made here; with CI=true it has failed above
        users.install(folder / "env", python, CODE, Path(sysconfig.get_paths()["purelib"]))
        yield folder / "env"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def typists(opt: Path) -> Iterator[list[Typist]]:
    """Users a, b and c at the command line."""
    shutil.copyfile(TYPIST, opt / TYPIST.name)
    made = [Typist(user, opt) for user in users.ensure()]
    yield made
    for typist in made:
        typist.close()


@pytest.fixture
def town(lab: Lab, opt: Path, typists: list[Typist]) -> Iterator[Town]:
    """Users a, b and c with homes of their own on the lab; what they started and submitted is ended afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="clusterrun-town-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "ran").mkdir()
    (folder / "ran").chmod(0o1777)
    env = {"SLURM_CONF": lab.env["SLURM_CONF"]}
    people = [make_person(user, folder, env, opt, typist) for user, typist in zip(users.ensure(), typists, strict=True)]
    furnish(people[0])
    try:
        yield Town(folder, lab, *people)
    finally:
        for person in people:
            person.leave()
            lab.run(["scancel", "--quiet", f"--user={person.name}"])
        shutil.rmtree(folder, ignore_errors=True)
