"""Slurm of other Debian releases: where they come from, what an interrupted installation leaves, labs that run them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import release_root, releases
from lab.cluster import Lab
from lab.errors import LabError
from lab.fixtures import require_lab
from lab.install import available

SOURCES = """Docker bookworm https://download.example/linux/debian/
Debian bookworm-security http://security.example/debian-security/
Debian bookworm-updates http://mirror.example/debian/
Debian bookworm http://mirror.example/debian/
""".splitlines()


def test_the_mirror_is_the_one_of_this_machines_sources() -> None:
    assert release_root.mirror(SOURCES) == "http://mirror.example/debian/"


def test_without_a_mirror_of_debian_the_error_says_so() -> None:
    with pytest.raises(LabError, match="name no mirror of Debian"):
        release_root.mirror(SOURCES[:2])


def test_a_version_that_no_release_ships_is_refused_with_those_there_are() -> None:
    with pytest.raises(LabError, match=r"no Slurm 23\.02 .*24\.11, 26\.05"):
        Lab(slurm="23.02")


@pytest.mark.parametrize("slurm", releases.RELEASES)
def test_a_version_that_is_not_installed_says_how_to_install_it(
    slurm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_lab()
    monkeypatch.setattr(releases, "CACHE", tmp_path)
    with pytest.raises(LabError, match=f"python -m lab.install --slurm {slurm}"):
        Lab(name=f"r{os.getpid()}", slurm=slurm).up()


@pytest.mark.skipif(os.geteuid() != 0, reason="the locks of labs are root's")  # in a folder of root; CI is root
def test_what_an_interrupted_installation_left_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "CACHE", tmp_path)
    monkeypatch.setattr(release_root, "PROGRAMS", ())
    monkeypatch.setattr(release_root, "found", lambda slurm: "24.11.9")
    seen: list[Path] = []

    def fill(folder: Path, release: str) -> None:
        assert [path.name for path in tmp_path.iterdir()] == [folder.name], "what was left is gone"
        seen.append(folder)
        (folder / "usr").mkdir()
        if len(seen) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(release_root, "_fill", fill)
    with pytest.raises(KeyboardInterrupt):
        release_root.make("24.11")
    assert seen[0].exists() and not releases.root("24.11").exists()
    assert release_root.make("24.11") == release_root.make("24.11") == "24.11.9"
    assert [path.name for path in tmp_path.iterdir()] == ["slurm-24.11"] and len(seen) == 2


def test_another_version_than_the_one_asked_for_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release_root, "make", lambda slurm: "26.11.0")
    release_root.install("26.05")
    assert capsys.readouterr().err == "lab: Slurm 26.11.0 of Debian sid, not 26.05: the version has moved there\n"


@pytest.fixture(scope="module", params=releases.RELEASES)
def other(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of each other version that is installed here."""
    if reason := available(request.param):
        pytest.skip(reason)  # `make versions` installs the other releases, 700 MB each; `make test` does not
    with Lab(name=f"t{os.getpid()}r", nodes=2, slurm=request.param) as lab:
        yield lab


def test_daemons_commands_and_login_shells_in_jobs_are_of_that_version(other: Lab) -> None:
    version = releases.found(other.slurm)
    assert other.run(["squeue", "-V"]).stdout == f"slurm-wlm {version}\n"
    assert f"{version}\n" in other.run(["scontrol", "show", "config"]).stdout
    assert f"Version={version}" in other.run(["scontrol", "show", "node"]).stdout
    assert other.run(["srun", "-N2", "bash", "-lc", "srun -V"]).stdout == f"slurm-wlm {version}\n" * 2


def test_another_user_has_that_version_too(other: Lab) -> None:
    assert other.run(["srun", "id", "-un"], user="nobody").stdout == "nobody\n"


def test_jobs_see_this_machines_files_and_accounting_keeps_them(other: Lab, tmp_path: Path) -> None:
    assert other.run(["srun", "sh", "-c", f"pwd > {tmp_path}/seen"], cwd=tmp_path).returncode == 0
    assert (tmp_path / "seen").read_text() == f"{tmp_path}\n"
    assert "sh" in other.run(["sacct", "-X", "-n", "-P", "-o", "JobName"]).stdout.split()
