"""--venv, --conda and --moduless: the job's Python, and lines before the user's own setup lines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.submit.environments import without_environment
from clusterrun.submit.request import Request, SubmitArgs, load_request


def python(folder: Path) -> Path:
    """Make a folder that looks like an environment."""
    for name in ("python", "activate"):
        path = folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nACTIVE='{folder.name}'\n")
        path.chmod(0o755)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    (tmp_path / "clusterrun.toml").touch()
    return tmp_path


def load(place: Path, *words: str, environ: Mapping[str, str] = {}, **options: object) -> Request:
    command = words or ("train.py",)
    return load_request(SubmitArgs.of(*command, **options), place, {"PATH": os.environ["PATH"], **environ})


def test_a_virtual_environment_gives_the_python_and_is_activated_before_the_setup_lines(place: Path) -> None:
    folder = python(place / "my env")
    request = load(place, venv="my env", modules=["cuda/12.4", "gcc"], setup=["echo $ACTIVE"])
    assert request.values["python"].value == f"{folder}/bin/python"
    assert request.values["setup"].value == ["module load cuda/12.4 gcc", f". '{folder}/bin/activate'", "echo $ACTIVE"]
    assert not {"venv", "modules"} & request.values.keys()
    ran = subprocess.run(["bash", "-c", "\n".join(request.values["setup"].value[1:])], capture_output=True, text=True)
    assert ran.stdout == "my env\n"


def test_the_table_of_a_job_file_names_the_folder_from_the_project(place: Path) -> None:
    python(place / "proj" / ".venv")
    (place / "jobs").mkdir()
    (place / "jobs" / "a.toml").write_text('script = "train.py"\n[environment]\nuv = "proj"\nmodules = ["nccl"]\n')
    request = load_request(SubmitArgs(job="a"), place, {"PATH": os.environ["PATH"]})
    assert request.values["python"] == Value(f"{place}/proj/.venv/bin/python", "jobs/a.toml")
    assert request.values["setup"] == Value(["module load nccl", f". {place}/proj/.venv/bin/activate"], "jobs/a.toml")


def test_a_python_of_a_higher_level_replaces_the_environment_of_a_lower_one(place: Path) -> None:
    python(place / "low")
    other = python(place / "high")
    (place / "clusterrun.toml").write_text('venv = "low"\nmodules = ["cuda"]\n')
    request = load(place, python=f"{other}/bin/python")
    assert request.values["python"].value == f"{other}/bin/python"
    assert request.values["setup"].value == ["module load cuda"]


@pytest.mark.parametrize("given", ["torch", "base", "envs/torch", "{base}/envs/torch"])
def test_a_conda_environment_by_name_or_folder(place: Path, given: str) -> None:
    base = python(place / "conda")
    folder = python(base / "envs" / "torch") if given != "base" else base
    (base / "etc" / "profile.d").mkdir(parents=True)
    (base / "etc" / "profile.d" / "conda.sh").touch()
    cwd = base if given == "envs/torch" else place
    (base / "train.py").touch()
    request = load(cwd, conda=given.format(base=base), environ={"CONDA_EXE": f"{base}/bin/conda"})
    assert request.values["python"].value == f"{folder}/bin/python"
    assert request.values["setup"].value == [f". {base}/etc/profile.d/conda.sh && conda activate {folder}"]


def test_an_environment_without_conda_is_put_on_the_path(place: Path) -> None:
    folder = python(place / "pixi env")
    (line,) = load(place, conda=str(folder)).values["setup"].value
    done = subprocess.run(
        ["bash", "-c", f"{line}; command -v activate; echo $CONDA_PREFIX"], capture_output=True, text=True
    )
    assert done.stdout == f"{folder}/bin/activate\n{folder}\n"


@pytest.mark.parametrize(("options", "message", "hint"), [
    ({"venv": "none"}, "--venv: no virtual environment in {place}/none (SubmitArgs)", "python3 -m venv {place}/none"),
    ({"venv": "uvp"}, "--venv: no virtual environment in {place}/uvp (SubmitArgs)", "uv sync --project {place}/uvp"),
    ({"conda": "nope"}, "--conda: no such environment: nope (SubmitArgs)", "conda env list"),
    ({"venv": "v", "python": "python3"}, "--python and --venv both choose the job's Python (SubmitArgs)", "keep one"),
    ({"venv": "v", "conda": "v"}, "--conda and --venv both choose the job's Python (SubmitArgs)", "keep one of them"),
    ({"modules": ["cuda; rm -rf x"]}, "--modules: not a module's name: 'cuda; rm -rf x' (SubmitArgs)", "module avail"),
    ({"modules": ["-f"]}, "--modules: not a module's name: '-f' (SubmitArgs)", "module avail"),
    ({"venv": "a\nb"}, "--venv: a newline is not allowed", "remove the newline"),
])  # fmt: skip
def test_a_mistake_is_one_line_with_what_to_do(
    place: Path, options: dict[str, object], message: str, hint: str
) -> None:
    (place / "uvp").mkdir()
    (place / "uvp" / "pyproject.toml").touch()
    with pytest.raises(RequestError) as caught:
        load(place, **options)
    assert message.format(place=place) in str(caught.value) and hint.format(place=place) in caught.value.hint


@pytest.mark.parametrize("other", ["conda", "venv", "plain"])
def test_a_changed_environment_leaves_no_line_of_the_recorded_one(place: Path, other: str) -> None:
    folder = python(place / "old env")
    if other == "conda":
        (folder / "etc" / "profile.d").mkdir(parents=True)
        (folder / "etc" / "profile.d" / "conda.sh").touch()
    recorded = load(place, **{"venv" if other == "venv" else "conda": str(folder)}, setup=["echo x"]).values
    without_environment(recorded)
    assert "python" not in recorded and recorded["setup"].value == ["echo x"]
