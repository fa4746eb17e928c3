"""The rules of the house that a reader may rely on: who imports what, and how much a function decides."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts.decisions import dense_functions
from tests.support.folders import PACKAGE, ROOT
from tests.support.syntax import dotted, tree_of

FILES = sorted(PACKAGE.rglob("*.py"))

#: outside package -> where it may be imported
HOMES: dict[str, tuple[str, ...]] = {
    "subprocess": ("system/shell.py", "worker/"),
    "multiprocessing": ("worker/",),
    "click": ("cli/",),
    # the island has a progress line of its own, where rich is there
    "rich": ("terminal/ui.py", "top/", "worker/training/report.py"),
    "textual": ("top/",),
    "jinja2": ("jobspec/render.py", "report/page.py"),
    "torch": ("worker/",),
    "transformers": ("worker/",),
    "tokenizers": ("worker/",),
    "safetensors": ("worker/",),
    "huggingface_hub": ("worker/hub.py", "worker/data/hub_data.py", "worker/models/"),
    "pyarrow": ("worker/data/",),
    "datasets": (),
    "wandb": ("worker/training/report.py",),
    "submitit": ("scheduler/slurm/executor.py", "worker/rank/callable.py"),
    "tomllib": ("config/toml_lines.py",),
    "plotext": ("terminal/plot.py",),
    "requests": (),
    "yaml": (),
    # an unpickler that refuses every name, and two that open their own user's files only
    "pickle": ("why/causes/flight_recorder.py", "scheduler/slurm/executor.py", "worker/rank/callable.py"),
}


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """(what is called, the call) of each call in a file."""
    return [(dotted(node.func), node) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]


@cache
def imports(path: Path) -> frozenset[str]:
    """The top-level packages a file imports, late imports too; those for type checkers alone are left out."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    tree = tree_of(path)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_each_outside_thing_has_one_home() -> None:
    for path in FILES:
        for package in imports(path) & HOMES.keys():
            homes = HOMES[package]
            assert homes and name_of(path).startswith(homes), f"{name_of(path)} imports {package}"


def test_what_runs_in_a_job_imports_no_installed_clusterrun() -> None:
    """A job loads these rooms under a private name (worker/__main__.py); `clusterrun` is the user's own there."""
    for path in FILES:
        if name_of(path).startswith(("worker/", "run_folder/", "base/")):
            assert "clusterrun" not in imports(path), name_of(path)


def test_what_the_worker_shares_needs_only_the_standard_library() -> None:
    for path in FILES:
        if name_of(path).startswith(("run_folder/", "base/")):
            assert imports(path) <= sys.stdlib_module_names, name_of(path)


def test_no_shell_is_started_behind_the_door() -> None:
    for path in FILES:
        for called, node in calls(path):
            shells = [keyword.value for keyword in node.keywords if keyword.arg == "shell"]
            assert all(isinstance(v, ast.Constant) and not v.value for v in shells), f"{name_of(path)}:{node.lineno}"
            assert called not in ("os.system", "os.popen", "eval", "__import__"), f"{name_of(path)}: {called}"
            if name_of(path) != "worker/rank/user_code.py":  # it runs the user's own script as __main__
                assert called not in ("exec", "compile"), f"{name_of(path)}: {called}"


def test_one_printer() -> None:
    """What clusterrun says goes through ui. Worker and supervisor write the job's log; main prints the help."""
    for path in FILES:
        if name_of(path).startswith(("worker/", "terminal/ui.py", "cli/__init__.py", "scheduler/local/supervisor.py")):
            continue
        assert not {"print", "click.echo"} & {called for called, _ in calls(path)}, name_of(path)


def test_a_function_decides_at_most_nine_things() -> None:
    assert dense_functions(PACKAGE) == {}, "name the predicates, give a step a line (scripts/decisions.py counts)"


def test_a_module_says_what_it_is() -> None:
    assert [name_of(path) for path in FILES if tree_of(path).body and not ast.get_docstring(tree_of(path))] == []


def test_no_file_of_odds_and_ends() -> None:
    assert not {"utils", "helpers", "common", "misc"} & {path.stem for path in FILES}


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="an sdist cannot hold a link to a folder")
def test_the_link_for_people() -> None:
    link = ROOT / "templates"
    assert link.is_symlink() and str(link.readlink()) == "clusterrun/templates"


def test_code_reads_its_own_templates() -> None:
    readers = [name_of(path) for path in FILES if '"templates"' in path.read_text()]
    assert readers == ["jobspec/render.py", "report/page.py"], "code reads the package's own, never the link"
