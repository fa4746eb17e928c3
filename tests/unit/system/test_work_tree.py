"""What git lists of a work tree: tracked files, those that differ, and new Python files."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from clusterrun.base.errors import CommandError
from clusterrun.remote.files import list_files
from clusterrun.remote.ssh import project_root
from clusterrun.system import work_tree
from clusterrun.system.work_tree import WorkTree, diff, load_work_tree, run_git
from tests.support.git_projects import git, make_repository, write_files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    make_repository(folder, {"train.py": "a\n", "src/model.py": "b\n", "data.csv": "1\n", ".gitignore": "*_gen.py\n"})
    return folder


def load(folder: Path) -> WorkTree:
    return load_work_tree(folder, os.environ)


def test_tracked_files_have_the_ids_of_their_content(project: Path) -> None:
    tree = load(project)
    assert tree.files == {
        path: git(project, "hash-object", path).strip()
        for path in ("train.py", "src/model.py", "data.csv", ".gitignore")
    }
    assert (tree.root, tree.branch, tree.changed) == (project, "main", 0)
    assert tree.commit == git(project, "rev-parse", "HEAD").strip()


def test_the_content_of_a_modified_file_is_unknown_and_new_python_files_are_added(project: Path) -> None:
    write_files(project, {"train.py": "A\n", "new.py": "n\n", "notes.txt": "t\n", "v_gen.py": "ignored\n"})
    (project / "data.csv").unlink()
    tree = load(project)
    files = tree.files
    assert files["train.py"] == files["new.py"] == "" and files["src/model.py"]
    assert "notes.txt" not in files and "v_gen.py" not in files
    assert tree.changed == 3, "modified, deleted and new"


def test_a_staged_file_counts_as_changed_and_its_content_is_known(project: Path) -> None:
    write_files(project, {"train.py": "A\n"})
    git(project, "add", "train.py")
    tree = load(project)
    assert tree.files["train.py"] == git(project, "hash-object", "train.py").strip() and tree.changed == 1


def test_a_subfolder_belongs_to_the_whole_work_tree(project: Path) -> None:
    assert load(project / "src") == load(project)
    assert work_tree.is_inside(project / "src") and not work_tree.is_inside(project.parent)


@pytest.mark.parametrize("name", ["a\nb.py", "a b.py", 'q"uote.py', "tab\t.py", "ümlaut.py", os.fsdecode(b"\xff.py")])
def test_names_are_read_byte_by_byte(project: Path, name: str) -> None:
    write_files(project, {name: "x\n"})
    assert name in dict(load(project).files)
    git(project, "add", "-A")
    git(project, "commit", "-qm", "second")
    assert dict(load(project).files)[name]


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    write_files(tmp_path, {"train.py": "a\n"})
    tree = load(tmp_path)
    assert (tree.commit, tree.branch, tree.changed) == ("", "main", 1) and dict(tree.files) == {"train.py": ""}
    assert work_tree.diff(tree, os.environ) == ""


def test_a_conflict_has_the_content_of_the_file(project: Path) -> None:
    git(project, "checkout", "-qb", "other")
    write_files(project, {"train.py": "other\n"})
    git(project, "commit", "-qam", "other")
    git(project, "checkout", "-q", "main")
    write_files(project, {"train.py": "main\n"})
    git(project, "commit", "-qam", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(project, "merge", "other")
    assert dict(load(project).files)["train.py"] == ""


def test_submodules_are_named_and_not_listed(project: Path, tmp_path: Path) -> None:
    make_repository(tmp_path / "library", {"lib.py": "x\n"})
    git(project, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(tmp_path / "library"), "third")
    tree = load(project)
    assert tree.submodules == ("third",) and not [path for path in tree.files if path.startswith("third")]


def test_the_variables_of_another_repository_do_not_count(project: Path, tmp_path: Path) -> None:
    make_repository(tmp_path / "other", {"x.py": "x\n"})
    assert load_work_tree(project, {**os.environ, "GIT_DIR": str(tmp_path / "other" / ".git")}) == load(project)


def test_the_diff_shows_what_changed_and_is_cut(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(project, {"train.py": "changed\n"})
    assert "+changed\n" in work_tree.diff(load(project), os.environ)
    monkeypatch.setattr(work_tree, "LONGEST_DIFF", 10)
    assert work_tree.diff(load(project), os.environ) == "diff --git\n(the rest is left out)\n"


@pytest.mark.parametrize(("script", "message"), [
    ("exec /bin/sleep 60", "git: timed out"), ("exit 1", "git: exit 1"), ("", "git: could not be started"),
], ids=["hangs", "fails", "missing"])  # fmt: skip
def test_a_git_that_gives_no_answer(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    if script:
        (tools / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tools / "git").chmod(0o755)
    if "timed out" in message:
        monkeypatch.setattr(work_tree, "TIMEOUT", 0.3)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(CommandError, match=message):
        load_work_tree(project, {"PATH": str(tools)})


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_the_files_of_an_environment_are_no_code(project: Path, mark: str) -> None:
    write_files(project, {f"env/{mark}": "", "env/lib/site.py": "x\n", "lib/mine.py": "y\n"})
    found = set(load_work_tree(project, os.environ).files)
    assert "env/lib/site.py" not in found and "lib/mine.py" in found


def test_a_repositorys_configuration_starts_no_program(tmp_path: Path) -> None:
    project, sprung, trap = tmp_path / "project", tmp_path / "sprung", tmp_path / "trap"
    make_repository(project, {"a.py": "1\n"})
    make_repository(tmp_path / "part", {"b.py": "1\n"})
    git(project, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "part"), "part")
    git(project, "commit", "-qm", "part")
    trap.write_text(f"#!/bin/sh\necho $0 >>{sprung}\n")
    trap.chmod(0o755)
    (tmp_path / "post-index-change").symlink_to(trap)
    for folder in (project, project / "part"):
        for key, value in (("fsmonitor", trap), ("hooksPath", tmp_path), ("pager", trap), ("askPass", trap)):
            git(folder, "config", f"core.{key}", str(value))
    for key in ("diff.external", "diff.x.textconv", "alias.status", "alias.ls-files"):
        git(project, "config", key, f"!{trap}" if key.startswith("alias") else str(trap))
    sprung.unlink(missing_ok=True)
    (project / "a.py").write_text("2\n")
    tree = load_work_tree(project, os.environ)
    assert "+2" in diff(tree, os.environ)
    assert list_files(project) == [".gitmodules", "a.py", "part/b.py"]
    assert project_root(project / "part") == project / "part"
    assert not sprung.exists()


def test_a_missing_object_is_not_fetched(tmp_path: Path) -> None:
    project, sprung, trap = tmp_path / "project", tmp_path / "sprung", tmp_path / "trap"
    make_repository(project, {"kept/a.py": "1\n", "left/b.py": "1\n"})
    trap.write_text(f"#!/bin/sh\necho $0 >>{sprung}\n")
    trap.chmod(0o755)
    git(project, "sparse-checkout", "set", "--cone", "--sparse-index", "kept")  # `ls-files` reads the tree of the rest
    missing = git(project, "rev-parse", "HEAD:left").strip()
    (project / ".git/objects" / missing[:2] / missing[2:]).unlink()
    settings = {"promisor": "true", "url": str(project), "uploadpack": str(trap)}
    for key, value in settings.items():
        git(project, "config", f"remote.origin.{key}", value)
    git(project, "config", "core.repositoryFormatVersion", "1")
    git(project, "config", "extensions.partialClone", "origin")
    for words in (("ls-files", "-z"), ("status", "--porcelain=v2")):
        with contextlib.suppress(CommandError):
            run_git(project, os.environ, *words)
    assert not sprung.exists()


def test_a_folder_that_looks_like_a_bare_repository_is_none(tmp_path: Path) -> None:
    make_repository(tmp_path / "project", {"a.py": "1\n"})
    planted = tmp_path / "project" / "docs"
    git(tmp_path, "clone", "-q", "--bare", str(tmp_path / "project"), str(planted))
    git(planted, "config", "core.bare", "false")
    git(planted, "config", "core.worktree", str(tmp_path))
    with pytest.raises(CommandError):
        run_git(planted, os.environ, "rev-parse", "--show-toplevel")
