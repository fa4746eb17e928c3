"""What git reports of a work tree: its commit, and the files that the code consists of. Nothing is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.errors import CommandError
from clusterrun.run_folder.safe_files import RECORDS
from clusterrun.system import shell

#: Seconds for each git command.
TIMEOUT = 15.0
#: The maximum length of a diff, in characters; and the size from which git does not compare a file.
LONGEST_DIFF, LARGEST_COMPARED = 1_000_000, "1m"
_SUBMODULE = "160000"
#: They would make git use another repository than that of the folder.
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_NAMESPACE")
#: They keep a repository's configuration from starting programs (observed on 2.39: each `git ls-files` runs
#: core.fsmonitor, also a submodule's), and a folder that only looks like a bare repository from having one.
_HARMLESS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit")


class WorkTree(NamedTuple):
    """A git work tree. ``commit`` is empty before the first one, ``branch`` if none is checked out.

    ``changed`` is the number of files that differ from the commit, new Python files included. ``files`` are paths below
    the root, with git's id of each content, empty if git has not stored that content.
    """

    root: Path
    commit: str
    branch: str
    changed: int
    files: Mapping[str, str]
    submodules: tuple[str, ...]


def is_inside(folder: Path) -> bool:
    """Return whether a folder is in a git work tree, without running git."""
    return any(os.path.lexists(place / ".git") for place in (folder, *folder.parents))


def load_work_tree(folder: Path, environ: Mapping[str, str]) -> WorkTree:
    """Return the work tree around a folder: tracked files, and new Python files that git does not ignore.

    Raises CommandError if git is missing, fails or does not respond in time.
    """
    root = Path(run_git(folder, environ, "rev-parse", "--show-toplevel").removesuffix("\n"))
    which = ("--no-renames", "--untracked-files=all", "--ignore-submodules=all")
    status = run_git(root, environ, "status", "--porcelain=v2", "--branch", "-z", *which)
    head, modified, untracked = _parse_status(status)
    new = [path for path in untracked if _is_new_code(root, path)]
    files: dict[str, str] = {}
    submodules = []
    for line in _split(run_git(root, environ, "ls-files", "--stage", "-z")):
        facts, _, path = line.partition("\t")
        mode, blob, _ = facts.split(" ")
        if mode == _SUBMODULE:
            submodules.append(path)
        elif not _is_record(path):
            files[path] = "" if modified.get(path) else blob
    files |= dict.fromkeys(new, "")
    changed = len(modified) + len(new)
    return WorkTree(root, head["branch.oid"], head["branch.head"], changed, files, (*submodules,))


def _parse_status(text: str) -> tuple[dict[str, str], dict[str, bool], list[str]]:
    """Return what git's porcelain v2 says: the head, the changed files, and the untracked ones.

    A changed file is True if its content differs from that in the index.
    """
    head = {"branch.oid": "", "branch.head": ""}
    modified: dict[str, bool] = {}
    untracked: list[str] = []
    for line in _split(text):
        kind, _, rest = line.partition(" ")
        match kind:
            case "#":
                key, _, value = rest.partition(" ")
                head[key] = "" if value.startswith("(") else value
            case "1":
                modified[rest.split(" ", 7)[-1]] = rest[1] != "."
            case "u":  # a conflict
                modified[rest.split(" ", 9)[-1]] = True
            case "?":
                untracked.append(rest)
    return head, modified, untracked


def _is_new_code(root: Path, path: str) -> bool:
    """Return whether an untracked file is the user's code: Python, but no record and not in an environment."""
    if not path.endswith(".py") or _is_record(path):
        return False
    return not any(_is_environment(root / parent) for parent in Path(path).parents if parent.name)


def _is_record(path: str) -> bool:
    return RECORDS in path.split("/")


@cache
def _is_environment(folder: Path) -> bool:
    """Return whether a folder is a virtual or a conda environment: no code of the user's."""
    return (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").exists()


def diff(tree: WorkTree, environ: Mapping[str, str]) -> str:
    """Return the difference to the commit as `git diff` prints it, cut to a maximum; empty if git cannot tell."""
    if not tree.commit or not tree.changed:
        return ""
    compare = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", tree.commit, "--")
    try:
        text = run_git(tree.root, environ, "-c", f"core.bigFileThreshold={LARGEST_COMPARED}", *compare)
    except CommandError:
        return ""
    return text if len(text) <= LONGEST_DIFF else text[:LONGEST_DIFF] + "\n(the rest is left out)\n"


def run_git(folder: Path, environ: Mapping[str, str], *words: str) -> str:
    """Run git in a folder and return its output; the repository's own configuration chooses no program for it.

    Only the clean filters of a repository still run, when ``status`` or ``diff`` compare a file: without them git would
    call each such file changed. Raises CommandError.
    """
    clean = {name: value for name, value in shell.scrub(environ)[0].items() if name not in _MISLEADING}
    # optional locks: a submit must not keep the user's own git commands from working
    # no transport: to fetch an object that is missing (a partial clone), git starts what remote.*.uploadpack names
    clean |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "", "LC_ALL": "C"}
    argv = ["git", "-C", str(folder), *(word for option in _HARMLESS for word in ("-c", option)), *words]
    return shell.check_output(argv, env=clean, timeout=TIMEOUT, errors="surrogateescape")


def _split(text: str) -> Iterator[str]:
    return filter(None, text.split("\0"))
