"""The sdist and the wheel, as a user gets them: built, installed in an environment, used from an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.folders import ROOT
from tests.support.patience import HUNG


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this project, and the wheel built from it, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


HAS_GIT = (ROOT / ".git").exists()


@pytest.mark.skipif(not HAS_GIT, reason="git says what the project holds")  # an unpacked sdist has none; CI has it
def test_the_sdist_holds_the_project_but_for_a_link_to_a_folder(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert kept - names == {"templates"}


def test_it_holds_what_is_not_python_too(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"clusterrun/templates/sbatch.j2", "clusterrun/jobs/lm.toml", "clusterrun/SKILL.md"} <= names
    ours = {f"clusterrun/{path.relative_to(ROOT / 'clusterrun')}" for path in (ROOT / "clusterrun").rglob("*.py")}
    assert ours <= names and any(name.startswith("clusterrun/worker/") for name in ours)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names) and "clusterrun/py.typed" in names
    foreign = {name for name in names if not name.startswith(("clusterrun/", "clusterrun-"))}
    assert not foreign and not {name for name in names if "__pycache__" in name or name.endswith((".out", ".err"))}


def test_it_says_what_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    lines = archive.read(metadata).decode().split("\n")
    needs = [line.split(": ")[1] for line in lines if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert {re.split(r"[<>=]", need)[0] for need in needs} == {
        "click", "rich", "textual", "jinja2", "submitit", "plotext",
    }  # fmt: skip
    train = {line.partition(": ")[2].partition(";")[0] for line in lines if "extra == 'train'" in line}
    assert "torch>=2.8" in train and any(need.startswith("transformers") for need in train)


def test_it_renders_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    home, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "--python", home, "--disable-pip-version-check", "install", "-q", "--no-deps",
         "--no-index", wheel],
        capture_output=True, text=True,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    assert (site / "clusterrun").is_dir()
    # the dependencies are those of the environment under test: nothing is downloaded here
    needed = tmp_path / "needed"
    needed.mkdir()
    theirs = Path(sysconfig.get_path("purelib"))
    for name in ("click", "jinja2", "markupsafe", "rich"):
        (needed / name).symlink_to(theirs / name)
    (site / "needed.pth").write_text(f"{needed}\n")
    environ = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(empty), "CLUSTERRUN_STATE": str(tmp_path / "state")}
    program = [str(home / "bin" / "python"), "-P", "-m", "clusterrun"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, *words], cwd=empty, env=environ, capture_output=True, text=True, timeout=HUNG)

    script = run("render", "--nodes", "2", "--gpus-per-node", "4")
    assert script.returncode == 0, script.stderr
    assert f"CR_WORKER={site}/clusterrun/worker/__main__.py\n" in script.stdout
    assert f"CR_PYTHON={home}/bin/python" in script.stdout
    checked = subprocess.run(["bash", "-n"], input=script.stdout, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert os.listdir(empty) == []
    assert run("--version").stdout.startswith("clusterrun, version ")
    assert "does not have torch" in run("submit", "--scheduler", "local").stderr
    assert os.listdir(empty) == []
