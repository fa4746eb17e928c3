"""Which host a command runs on, and in which folder there."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from clusterrun.base.errors import CommandError, RequestError
from clusterrun.config.files import PROJECT_FILE, find_root, is_file
from clusterrun.config.profiles import Profiles, load_profiles
from clusterrun.records.agreed import has_agreed
from clusterrun.system.work_tree import run_git

PROJECTS = "clusterrun-projects"
"""The folder for projects in the home folder there."""


@dataclass(frozen=True)
class Target:
    """A host, the project's folder here and there, and the current folder below it."""

    host: str
    root: Path
    folder: str
    """From the home folder there, or absolute; letters, digits and ``_./+-`` only."""
    below: PurePosixPath
    profiles: Profiles
    chosen_by: str = ""
    """The file of the project that chose the host or the folder, empty if the user did."""

    @property
    def agreement(self) -> tuple[str, ...]:
        return ("remote", str(self.root), self.host, self.folder)


def find_target(host: str | None, cwd: Path, environ: Mapping[str, str], profile: str | None) -> Target | None:
    """Return where a command runs: on ``host``, else on the profile's ``remote``, None for this machine.

    An empty host means this machine. Raises ConfigError for an invalid profile, RequestError for an invalid folder.
    """
    profiles = load_profiles(cwd, environ, profile)
    configured = profiles.remote.get("remote")
    name = host if host is not None else configured.value if configured else ""
    if not name:
        return None
    root = project_root(cwd)
    folder = profiles.remote.get("remote-dir")
    where = str(folder.value).removeprefix("~/") if folder else default_folder(root)
    if not re.fullmatch(r"[A-Za-z0-9_./+-]+", where, re.ASCII) or where.startswith("-"):
        raise RequestError(
            f"remote-dir: {where[:80]!r} has unsupported characters",
            hint="use only letters, digits and _ . / + - (after an optional ~/), for example"
            ' remote-dir = "~/projects/vision"',
        )
    foreign = profiles.remote_of_project - ({"remote"} if host is not None else set())
    chosen_by = next((profiles.remote[key].source for key in sorted(foreign)), "")
    return Target(name, root, where, PurePosixPath(cwd.relative_to(root)), profiles, chosen_by)


def require_agreement(target: Target, state: Path) -> None:
    """Raise RequestError for a host or a folder that a file of the project chose and the user has not agreed to."""
    if not target.chosen_by or has_agreed(state, *target.agreement):
        return
    table = re.search(r" \[profile\.(.+)\]$", target.chosen_by)
    profile = f" --profile {shlex.quote(table[1])}" if table else ""
    raise RequestError(
        f"{target.chosen_by} runs commands on {target.host}, with the project's files in {target.folder} there;"
        " you have not agreed to that, and nothing was sent",
        hint=f"to agree, run in this project: clusterrun remote setup {shlex.quote(target.host)}{profile}",
    )


def project_root(cwd: Path) -> Path:
    """Return the folder with ``clusterrun.toml``, else the top of the git work tree, else the current folder."""
    root = find_root(cwd)
    if is_file(root / PROJECT_FILE):
        return root
    try:
        top = Path(run_git(cwd, os.environ, "rev-parse", "--show-toplevel").rstrip("\n"))
    except CommandError:
        return cwd
    return top if top.is_absolute() and cwd.is_relative_to(top) else cwd


def default_folder(root: Path) -> str:
    """Return the project's folder there: its name, and a hash of this machine's name and the path here."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", root.name)[:40].lstrip("._-") or "project"
    mark = hashlib.sha256(os.fsencode(f"{os.uname().nodename}:{root}")).hexdigest()[:8]
    return f"{PROJECTS}/{name}-{mark}"


def make_folder(path: str) -> str:
    """Return the command of bash that makes a folder there for its owner alone; an existing one stays as it is.

    ``path`` is quoted already. A umask, since ``mkdir -p -m`` sets the mode of the last folder only.
    """
    return f"(umask 077; mkdir -p {path})"
