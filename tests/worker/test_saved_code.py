"""Ranks run the saved code: the script, the files named in arguments, and the modules that are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank import saved_code
from tests.support.git_projects import write_files

ROOT = Path(__file__).parents[2]
DIGEST = "0123456789abcdef0123"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose files were edited after they had been saved; the current folder, with the ranks' variables."""
    folder = tmp_path / "project"
    run = folder / ".clusterrun" / "runs" / "R"
    write_files(folder, {
        "train.py": "import helper, pkg.part, pkg.built, src_only\n"
                    "print(helper.WHO, pkg.part.WHO, pkg.built.WHO, src_only.WHO)\n",
        "helper.py": "WHO = 'saved'\n", "a.yaml": "", "pkg/__init__.py": "", "pkg/part.py": "WHO = 'saved'\n",
        "pkg/__main__.py": "import helper; print(helper.WHO)\n", "src/src_only.py": "WHO = 'saved'\n",
        "results.json": "",
    })  # fmt: skip
    files = folder / ".clusterrun" / "snapshots" / "trees" / DIGEST / "files"
    files.parent.mkdir(parents=True)
    for path in [path for path in folder.rglob("*.*") if path.is_file()]:
        write_files(files, {str(path.relative_to(folder)): path.read_text()})
        path.write_text(path.read_text().replace("saved", "edited"))
    write_files(folder, {"pkg/built.py": "WHO = 'built'\n", "data.csv": "", "late.py": "WHO = 'late'\n"})
    write_files(run, {"snapshot.json": json.dumps({"digest": DIGEST, "root": str(folder)})})
    for name, value in saved_code.variables(run).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return folder


def saved(project: Path, name: str) -> str:
    return f"{project}/.clusterrun/snapshots/trees/{DIGEST}/files/{name}"


@pytest.mark.parametrize(("word", "replaced"), [
    ("a.yaml", True), ("./a.yaml", True), ("pkg/../a.yaml", True), ("data.csv", False), ("pkg", False), ("1e-4", False),
    ("--config", False), ("", False), ("--config=", False), ("x" * 5000, False), ("/etc/passwd", False),
    ("results.json", False),
])  # fmt: skip
def test_saved_files_in_arguments_are_replaced(project: Path, word: str, replaced: bool) -> None:
    assert saved_code.replace_files([word]) == [saved(project, "a.yaml") if replaced else word]


def test_a_file_after_an_option_and_an_absolute_path_are_replaced(project: Path) -> None:
    words = ["--config=a.yaml", "lr=a.yaml", str(project / "a.yaml")]
    assert saved_code.replace_files(words) == [f"--config={saved(project, 'a.yaml')}", "lr=a.yaml",
                                               saved(project, "a.yaml")]  # fmt: skip


def test_without_saved_code_nothing_changes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(saved_code.FILES)
    assert saved_code.replace_files(["a.yaml"]) == ["a.yaml"] and saved_code.find_saved("train.py") == ""
    before = [*sys.path]
    saved_code.extend_path()
    assert sys.path == before and saved_code.search_path("src") == ["src"]
    assert saved_code.variables(project) == {}


def run_python(project: Path, code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
         f"from clusterrun.worker.rank import saved_code, user_code\nsys.path.remove({str(ROOT)!r})\n{code}"],
        cwd=project, env={**os.environ, "PYTHONSAFEPATH": "", **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


RUN_SCRIPT = "saved_code.extend_path(); user_code.run_script(saved_code.find_saved('train.py'), [])"


def test_a_script_imports_what_was_saved_and_from_the_project_what_was_not(project: Path) -> None:
    assert run_python(project, RUN_SCRIPT, PYTHONPATH="src") == "saved saved built saved"


def test_a_module_is_run_from_the_saved_code(project: Path) -> None:
    assert run_python(project, "saved_code.extend_path(); user_code.run_module('pkg', [])") == "saved"


def test_the_edited_code_runs_without_it(project: Path) -> None:
    text = run_python(project, RUN_SCRIPT.replace("saved_code.find_saved('train.py')", "'train.py'"),
                      PYTHONPATH="src", CLUSTERRUN_SNAPSHOT="")  # fmt: skip
    assert text == "edited edited built edited"


def test_a_file_that_is_younger_than_the_saved_code_is_imported_from_the_project(project: Path) -> None:
    code = "saved_code.extend_path(); sys.path[:0] = saved_code.search_path('.'); import late; print(late.WHO)"
    assert run_python(project, code) == "late"


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"digest": "../x", "root": "/"}', '{"digest": "00", "root": "/"}'])
def test_saved_code_that_is_gone_or_damaged_ends_the_start(project: Path, record: str) -> None:
    run = project / ".clusterrun/runs/R"
    write_files(run, {"snapshot.json": record})
    with pytest.raises(WorkerError, match=r"snapshot\.json|is gone"):
        saved_code.variables(run)


def test_code_that_the_file_system_shows_late_is_waited_for(project: Path) -> None:
    run, tree = project / ".clusterrun/runs/R", Path(saved(project, "")).parent
    late = tree.rename(project / "late")
    timer = threading.Timer(0.2, late.rename, [tree])
    timer.start()
    assert saved_code.variables(run, patience=60)[saved_code.FILES] == f"{tree}/files"
    timer.join()
