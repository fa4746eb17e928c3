"""Files that others can write are not used implicitly, and a notice gives the reason."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.config.files import find_root
from clusterrun.config.profiles import load_job, merge
from clusterrun.run_folder.safe_files import read_plain, why_untrusted
from tests.support.command_desk import Desk, refused
from tests.support.profile_folders import load, make_root, project, user, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


def owned(uid: int, mode: int, gid: int = 54321) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (owned(1000, 0o644), ""),
        (owned(0, 0o644), ""),
        (owned(1000, 0o600), ""),
        (owned(54321, 0o644), "owned by user 54321"),
        (owned(1000, 0o666), "other users have write access (chmod o-w)"),
        (owned(1000, 0o664), "its group has write access (chmod g-w)"),
        (owned(0, 0o664, gid=0), ""),  # the owner's own private group
    ],
)
def test_trust(info: os.stat_result, why: str) -> None:
    assert why_untrusted(info, 1000) == why


def test_an_untrusted_profile_is_ignored_with_a_notice(root: Path) -> None:
    project(root, "nodes = 9", mode=0o666)
    known = load(root)
    assert known.notices == [f"{root}/clusterrun.toml is not used: other users have write access (chmod o-w)"]
    assert merge(known.levels) == {}
    (root / "a").mkdir()
    assert find_root(root / "a") == root / "a"  # nor does it say where our records stand
    assert load(root / "a").notices == known.notices
    user(root, "nodes = 8").chmod(0o666)
    assert load(root).notices[1].startswith("~/.config/clusterrun/config.toml is not used")


# chown to another user needs root; the rule itself (`why_untrusted`) is tested above for everybody
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")  # chown refuses; CI is root
def test_a_foreign_profile_is_ignored(root: Path) -> None:
    os.chown(project(root, "setup = ['evil']"), 54321, 54321)
    known = load(root)
    assert merge(known.levels) == {}
    assert "owned by user 54321" in known.notices[0]


def test_a_job_others_may_write_runs_by_its_path_only(root: Path) -> None:
    write(root / "jobs" / "lm.toml", 'command = "evil"', 0o666)
    with pytest.raises(RequestError, match=r"not using .*: other users have write access") as caught:
        load_job("lm", root)
    assert f"{root}/jobs/lm.toml" in caught.value.hint
    assert load_job("jobs/lm.toml", root).target == "evil"


def test_a_link_of_mine_is_followed_and_the_file_behind_it_is_judged(root: Path) -> None:
    (root / "dotfiles").mkdir()
    kept = write(root / "dotfiles" / "config.toml", "nodes = 7")
    (root / "clusterrun.toml").symlink_to(kept)
    assert merge(load(root).levels)["nodes"].value == 7
    kept.chmod(0o666)
    assert load(root).notices == [f"{root}/clusterrun.toml is not used: other users have write access (chmod o-w)"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")  # chown refuses; CI is root
def test_a_link_of_another_user_is_not_followed(root: Path) -> None:
    (root / "other").mkdir()
    mine = write(root / "other" / "clusterrun.toml", "setup = ['meant for another project']")
    (root / "clusterrun.toml").symlink_to(mine)
    os.chown(root / "clusterrun.toml", 54321, 54321, follow_symlinks=False)
    assert load(root).notices == [f"{root}/clusterrun.toml is not used: the symbolic link is owned by user 54321"]


def special(folder: Path, kind: str) -> Path:
    """Make something that is no settings file, and that a careless open would hang on or read for ever."""
    path = folder / "special.toml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch(0o644)
        os.truncate(path, 1 << 40)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    else:
        path.symlink_to({"zero": "/dev/zero", "loop": "special.toml", "gone": "nowhere"}[kind])
    return path


KINDS = {
    "fifo": "not a regular file", "folder": "Is a directory", "huge": "larger than 256 kB",
    "zero": "not a regular file", "socket": "No such device or address", "loop": "Too many levels of symbolic links",
    "gone": "No such file or directory",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "why"), KINDS.items())
def test_what_is_not_a_plain_file_is_refused_at_once(kind: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=why):
        read_plain(special(tmp_path, kind))
    with pytest.raises(OSError, match=why):
        read_plain(tmp_path / "special.toml", trusted=False)


@pytest.mark.parametrize(("kind", "why"), KINDS.items())
def test_a_template_that_is_not_a_plain_file_is_one_line(kind: str, why: str, desk: Desk) -> None:
    path = special(desk.project, kind)
    said = desk.type("submit", "--template", path.name, "--", "train.py")
    assert (said.status, said.out) == (2, "")
    assert said.err == f"clusterrun: --template: {path}: {why}\n  hint: give the path of a Jinja template\n"


@pytest.mark.parametrize(
    ("mode", "why"),
    [(0o666, "other users have write access (chmod o-w)"), (0o664, "its group has write access (chmod g-w)")],
)
def test_a_template_that_others_may_write_is_refused_by_its_path_too(mode: int, why: str, desk: Desk) -> None:
    path = desk.write("my.j2", "evil")
    if os.getuid() == 0:
        os.chown(path, 0, 54321)  # root's own group is private
    path.chmod(mode)
    for words in (["--template", "my.j2"], ["--template", str(path)], []):
        desk.write("clusterrun.toml", "" if words else 'template = "my.j2"').chmod(0o644)
        line, hint = refused(desk, "submit", *words, "--", "train.py")
        assert line == f"--template: {path}: {why}"
        assert hint == f"check the template, then run chmod go-w {path}, or use your own copy"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")  # chown refuses; CI is root
def test_a_template_of_another_user_is_refused(desk: Desk) -> None:
    os.chown(desk.write("my.j2", "evil"), 54321, 54321)
    assert "my.j2: owned by user 54321" in refused(desk, "render", "--template", "my.j2")[0]


@pytest.mark.parametrize(
    ("kind", "line"),
    [("zero", "no job file '../home/special.toml'"), ("huge", "../home/special.toml: larger than 256 kB")],
)
def test_a_named_job_file_that_is_no_plain_file_is_one_line(kind: str, line: str, desk: Desk) -> None:
    special(desk.project.parent / "home", kind)
    assert refused(desk, "submit", "../home/special.toml")[0] == line
