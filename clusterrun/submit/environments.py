"""The job's software: environment modules, a conda environment or a virtual environment, as setup lines and a Python.

A level (flags, job file, profile) that names an environment names the job's Python. The lines that load and activate
it come before the user's own setup lines, and are recorded with them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterrun.base.errors import RequestError, from_source
from clusterrun.base.fields import FIELD
from clusterrun.config.files import is_file
from clusterrun.jobspec.fields import Value, check_value

_MODULE = re.compile(r"[\w.][\w./+@:=~-]*", re.ASCII)
OPTIONS = ("modules", "conda", "venv")
OWN = "default: clusterrun's own"
"""The source of a Python that nobody has chosen."""


def with_python(level: Mapping[str, Value], cwd: Path, environ: Mapping[str, str]) -> dict[str, Value]:
    """Return a level with the Python of its environment. Raises RequestError if there is none, or there are several."""
    named = [name for name in ("python", "conda", "venv") if name in level]
    if len(named) > 1:
        where = from_source(level[named[1]].source, f"--{named[1]}")
        message = f"--{named[0]} and --{named[1]} both choose the job's Python{where}"
        raise RequestError(message, hint="keep one of them")
    if named in ([], ["python"]):
        return dict(level)
    (name,) = named
    value = level[name]
    check_value(FIELD[name], value)
    folder = _conda_folder(value, cwd, environ) if name == "conda" else _venv_folder(value, cwd)
    return {**level, name: Value(str(folder), value.source), "python": Value(f"{folder}/bin/python", value.source)}


def expand(values: dict[str, Value], environ: Mapping[str, str]) -> None:
    """Replace the options of this module by setup lines before the user's own.

    Raises RequestError for a bad name, and for an environment of ranks that run in a container.
    """
    if "container-image" in values:
        _refuse_beside_image(values)
    modules, conda, venv = (values.pop(name, None) for name in OPTIONS)
    lines, sources = [], []
    if modules is not None:
        lines.append(_load_modules(modules))
        sources.append(modules.source)
    for environment, activate in ((conda, _activate_conda), (venv, _activate_venv)):
        # a Python from a higher level replaces the environment
        if environment is not None and values["python"].value == f"{environment.value}/bin/python":
            lines += activate(Path(environment.value), environ)
            sources.append(environment.source)
    if lines:
        own = values.get("setup", Value([], ""))
        check_value(FIELD["setup"], own)
        # a flag first: `why` repeats a value in its command line if it comes from a flag
        named = sorted(filter(None, dict.fromkeys([*sources, own.source])), key=lambda source: source[:2] != "--")
        values["setup"] = Value([*lines, *own.value], ", ".join(named))


def _refuse_beside_image(values: Mapping[str, Value]) -> None:
    image = values["container-image"].source
    for name in (*OPTIONS, "stage-env"):
        if name in values:
            raise RequestError(
                f"--{name} ({values[name].source}) and --container-image ({image}) conflict",
                hint=f"remove --{name}: the ranks use the image's packages (to load a module for apptainer, use"
                " --setup)",
            )


def _load_modules(modules: Value) -> str:
    """Return the line that loads the modules; raises RequestError for a bad name."""
    check_value(FIELD["modules"], modules)
    for name in modules.value:
        if not _MODULE.fullmatch(name):
            raise RequestError(
                f"--modules: not a module's name: {name!r}{from_source(modules.source, '--modules')}",
                hint="`module avail` lists the modules",
            )
    return f"module load {shlex.join(modules.value)}"


def without_environment(recorded: dict[str, Value]) -> None:
    """Remove the Python of recorded values, and the setup line that activates its environment."""
    python, setup = recorded.pop("python", None), recorded.pop("setup", None)
    if setup is None:
        return
    folder = Path(python.value).parents[1] if python is not None else Path("/")
    kept = [line for line in setup.value if not _activates(line, folder)]
    if kept:
        recorded["setup"] = Value(kept, setup.source)


def _activates(line: str, folder: Path) -> bool:
    """Return whether a setup line activates the environment in a folder."""
    quoted = shlex.quote(str(folder))
    by_conda = line.startswith(f"export CONDA_PREFIX={quoted} ") or line.endswith(f"conda activate {quoted}")
    return by_conda or line in _activate_venv(folder, {})


def find_python(value: Value | None, environ: Mapping[str, str]) -> Value:
    """Return the absolute path of the job's Python. Links are kept: a virtual environment's Python is one."""
    if value is not None:
        text = str(value.value)
        found = shutil.which(text, path=environ.get("PATH"))
        if found is None:
            hint = "give the path of a Python interpreter"
            raise RequestError(f"--python: no such program: {text}{from_source(value.source, '--python')}", hint=hint)
        return Value(str(Path(found).absolute()), value.source)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        path = Path(environ.get(variable) or "/nowhere") / "bin" / "python"
        if is_file(path):
            return Value(str(path), variable)
    return Value(sys.executable, OWN)


def find_environment(python: str) -> Path:
    """Return the virtual or conda environment of a Python, to be copied; raises RequestError if it is in none."""
    folder = Path(python).parent.parent
    if not any(os.path.exists(folder / name) for name in ("pyvenv.cfg", "conda-meta")):
        raise RequestError(
            f"--stage-env: {python} is not in a virtual or conda environment",
            hint="choose one with --venv or --conda, or remove --stage-env",
        )
    return folder


def _activate_venv(folder: Path, environ: Mapping[str, str]) -> list[str]:
    return [f". {shlex.quote(f'{folder}/bin/activate')}"]


def _activate_conda(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the line that activates an environment: activation sets what its packages need, as CUDA_HOME."""
    base = _conda_base(folder, environ)
    if base is None:  # made by micromamba or pixi: its Python and programs are enough
        return [f'export CONDA_PREFIX={shlex.quote(str(folder))} PATH={shlex.quote(f"{folder}/bin")}:"$PATH"']
    return [f". {shlex.quote(f'{base}/etc/profile.d/conda.sh')} && conda activate {shlex.quote(str(folder))}"]


def _conda_base(folder: Path, environ: Mapping[str, str]) -> Path | None:
    for base in (*_conda_installation(environ), *folder.parents[1:2], folder):
        if is_file(base / "etc" / "profile.d" / "conda.sh"):
            return base
    return None


def _conda_folder(value: Value, cwd: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder of a conda environment, which is given by its folder or its name."""
    text = str(value.value)
    for folder in [cwd / text] if "/" in text else _named_environments(text, environ):
        if is_file(folder / "bin" / "python"):
            return folder
    hint = "give the folder of an environment; `conda env list` shows all environments"
    raise RequestError(f"--conda: no such environment: {value.value}{from_source(value.source, '--conda')}", hint=hint)


def _named_environments(name: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders in which conda may have an environment of this name."""
    folders = [Path(root, name) for root in environ.get("CONDA_ENVS_PATH", "").split(":") if root.startswith("/")]
    folders += [base if name == "base" else base / "envs" / name for base in _conda_installation(environ)]
    if home := environ.get("HOME", ""):
        folders += [Path(home, ".conda", "envs", name), Path(home, "micromamba", "envs", name)]
    return folders


def _conda_installation(environ: Mapping[str, str]) -> Sequence[Path]:
    """Return the folder that conda is installed in, as its shell functions export it; empty without one."""
    executable = environ.get("CONDA_EXE", "")
    return Path(executable).parents[1:2] if executable.startswith("/") else ()


def _venv_folder(value: Value, cwd: Path) -> Path:
    """Return the folder of a virtual environment, which is given itself, or by its uv project."""
    given = cwd / str(value.value)
    for folder in (given, given / ".venv"):
        if is_file(folder / "bin" / "python"):
            return folder
    make = "uv sync --project" if is_file(given / "pyproject.toml") else "python3 -m venv"
    message = f"--venv: no virtual environment in {given}{from_source(value.source, '--venv')}"
    raise RequestError(message, hint=f"make it: {make} {shlex.quote(str(given))}")
