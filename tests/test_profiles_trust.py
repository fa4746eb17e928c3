"""Files that others may write are not used by themselves, and a notice says why."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clusterrun import profile_files
from clusterrun.errors import RequestError
from clusterrun.profiles import find_root, load_job, merge
from tests.profiling import load, make_root, project, user, write


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
        (owned(54321, 0o644), "it belongs to user 54321"),
        (owned(1000, 0o666), "others may write it (chmod o-w)"),
        (owned(1000, 0o664), "its group may write it (chmod g-w)"),
        (owned(0, 0o664, gid=0), ""),  # the owner's own private group
    ],
)
def test_trust(info: os.stat_result, why: str) -> None:
    assert profile_files.why_not(info, 1000) == why


def test_an_untrusted_profile_is_ignored_with_a_notice(root: Path) -> None:
    project(root, "nodes = 9", mode=0o666)
    known = load(root)
    assert known.notices == [f"{root}/clusterrun.toml is not used: others may write it (chmod o-w)"]
    assert merge(known.levels) == {}
    (root / "a").mkdir()
    assert find_root(root / "a") == root / "a"  # nor does it say where our records stand
    assert load(root / "a").notices == known.notices
    user(root, "nodes = 8").chmod(0o666)
    assert load(root).notices[1].startswith("~/.config/clusterrun/config.toml is not used")


# chown to another user needs root; the rule itself (`why_not`) is tested above for everybody
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")  # chown refuses; CI is root
def test_a_foreign_profile_is_ignored(root: Path) -> None:
    os.chown(project(root, "setup = ['evil']"), 54321, 54321)
    known = load(root)
    assert merge(known.levels) == {}
    assert "it belongs to user 54321" in known.notices[0]


def test_a_job_others_may_write_runs_by_its_path_only(root: Path) -> None:
    write(root / "jobs" / "lm.toml", 'command = "evil"', 0o666)
    with pytest.raises(RequestError, match="not used by its name alone: others may write it") as caught:
        load_job("lm", root)
    assert f"{root}/jobs/lm.toml" in caught.value.hint
    assert load_job("jobs/lm.toml", root).target == "evil"
