"""Ordinary users of this machine, for tests of what one user can do to another.

`ensure()` makes the users crlab-a, crlab-b and crlab-c, each with a group of its own and all three in the group crlab.
They have no password, no home and no processes, and stay when the tests are over.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import claims
from lab.errors import LabError
from lab.releases import SEARCH_PATH

GROUP = "crlab"
NAMES = ("crlab-a", "crlab-b", "crlab-c")


@dataclass(frozen=True)
class User:
    """A user of this machine; `groups` are the ids of all its groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def ensure() -> list[User]:
    """Make the users where they are missing, and return them; needs root, raises LabError."""
    with claims.lock("users"):
        with contextlib.suppress(KeyError):
            return [_user(name) for name in NAMES]
        _admin(["groupadd", "--system", "--force", GROUP])
        for name in NAMES:
            try:
                _user(name)
            except KeyError:
                _admin(["useradd", "--system", "--user-group", "--groups", GROUP, "--no-create-home",
                        "--home-dir", "/nonexistent", "--shell", "/bin/bash", name])  # fmt: skip
        return [_user(name) for name in NAMES]


def _user(name: str) -> User:
    """Raise KeyError where there is no such user, or it is not in the group."""
    entry = pwd.getpwnam(name)
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    if grp.getgrnam(GROUP).gr_gid not in groups:
        raise KeyError(name)
    return User(name, entry.pw_uid, entry.pw_gid, groups)


def _admin(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": SEARCH_PATH})
    if done.returncode != 0:
        raise LabError(f"{argv[0]}: {done.stderr.strip()}")


def interpreter(user: User) -> str:
    """Return a Python of this program's own version that the user may run; raises LabError.

    The Python that runs this program may be in a home folder that other users cannot enter.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = [str(Path(sys.executable).resolve()), shutil.which(f"python{version}", path=SEARCH_PATH)]
    for path in filter(None, found):
        # -c pass: that it starts is not enough, as it also has to find its library
        done = subprocess.run(
            [path, "-I", "-c", "pass"], user=user.uid, group=user.gid, extra_groups=[], cwd="/", check=False,
            capture_output=True,
        ) if _may_run(path, user) else None  # fmt: skip
        if done is not None and done.returncode == 0:
            return path
    raise LabError(f"no Python {version} that other users may run (apt-get install python{version})")


def _may_run(path: str, user: User) -> bool:
    return subprocess.run(
        ["test", "-x", path], user=user.uid, group=user.gid, extra_groups=[], cwd="/", check=False
    ).returncode == 0  # fmt: skip


def install(folder: Path, python: str, code: Path, packages: Path) -> None:
    """Make an environment that every user may run, as a site has one in /opt.

    `code` is the checkout, whose package is copied; `packages` is a site-packages folder. It is used in
    place if others may read it, else its files are linked into the environment.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(python)
    if all(parent.stat().st_mode & 0o005 == 0o005 for parent in (packages, *packages.parents)):
        site.mkdir(parents=True)
        (site / "others.pth").write_text(f"{packages}\n")
    else:
        shutil.copytree(packages, site, symlinks=True, copy_function=_link, ignore=shutil.ignore_patterns("_editable*"))
    shutil.copytree(code / "clusterrun", site / "clusterrun", symlinks=True, dirs_exist_ok=True)
    program = folder / "bin" / "clusterrun"
    program.write_text(f"#!{folder}/bin/python\nimport sys\nfrom clusterrun.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target, follow_symlinks=False)
