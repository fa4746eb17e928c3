"""The wheel, as a user gets it: built, installed in an environment of its own, used from an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.folders import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this project, built without a network."""
    copy = tmp_path_factory.mktemp("source") / "clusterrun"
    copy.mkdir()
    shutil.copytree(ROOT / "clusterrun", copy / "clusterrun", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "dist", copy],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (copy / "dist").glob("*.whl")
    return path


def test_it_holds_what_is_not_python_too(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"clusterrun/templates/sbatch.j2", "clusterrun/jobs/lm.toml"} <= names
    ours = {f"clusterrun/{path.relative_to(ROOT / 'clusterrun')}" for path in (ROOT / "clusterrun").rglob("*.py")}
    assert ours <= names and any(name.startswith("clusterrun/worker/") for name in ours)
    foreign = {name for name in names if not name.startswith(("clusterrun/", "clusterrun-"))}
    assert not foreign and not {name for name in names if "__pycache__" in name or name.endswith((".out", ".err"))}


def test_it_says_what_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    lines = archive.read(metadata).decode().split("\n")
    needs = [line.split(": ")[1] for line in lines if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert {re.split(r"[<>=]", need)[0] for need in needs} == {"click", "rich", "textual", "jinja2", "submitit"}
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
        return subprocess.run([*program, *words], cwd=empty, env=environ, capture_output=True, text=True, timeout=60)

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
