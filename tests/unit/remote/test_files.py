"""Which files are sent, and that those removed here are removed there."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.cli import main
from clusterrun.remote import files
from clusterrun.remote.files import check_size, list_files
from clusterrun.remote.setup import make_wheel
from clusterrun.remote.ssh import default_folder, find_host, project_root
from tests.unit.remote.conftest import Cluster


def make(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)


def test_git_says_which_files(cluster: Cluster) -> None:
    make("a.py", "new.py", "data/big", ".gitignore", "logs/tracked.py", "logs/train_1.out", ".clusterrun/x", "gone.py")
    Path(".gitignore").write_text("data/\n")
    git("init", "-q")
    git("add", "a.py", "gone.py", "logs/tracked.py")
    Path("gone.py").unlink()
    assert list_files(Path.cwd()) == [".gitignore", "a.py", "logs/tracked.py", "new.py"]


def test_without_git_all_but_outputs(cluster: Cluster) -> None:
    make("a.py", "sub/b c.py", "logs/x", "sub/__pycache__/y", ".venv/z")
    assert list_files(Path.cwd()) == ["a.py", "sub/b c.py"]


def test_nothing_is_sent_if_git_cannot_name_the_ignored_files(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("sub/a.py", ".env")
    Path(".gitignore").write_text(".env\n")
    git("init", "-q")
    Path(".git/config").write_text("[broken\n")
    assert refused() == 2
    said = capfd.readouterr().err
    assert "(git: exit 128); nothing was sent\n" in said and "| fatal: bad config line" in said
    assert f"hint: try: git -C {Path.cwd()} status\n" in said
    assert "rsync" not in cluster.calls and cluster.ran() == []
    monkeypatch.chdir("sub")  # below the top, which git does not name
    assert refused() == 2 and "rsync" not in cluster.calls


def test_without_the_program_git_a_work_tree_is_not_sent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    make("a.py", ".env")
    git("init", "-q")
    monkeypatch.setenv("PATH", str(cluster.folder))
    with pytest.raises(RequestError, match="could not be started"):
        list_files(Path.cwd())
    Path(".git").rename("../git-is-gone")
    assert list_files(Path.cwd()) == [".env", "a.py"]


def test_too_much_is_refused_with_the_largest(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    make("a.py", "large")
    monkeypatch.setattr(files, "LIMIT", 10)
    Path("large").write_bytes(b"x" * 11)
    with pytest.raises(RequestError, match="the largest file is large"):
        check_size(Path.cwd(), ["a.py", "large"])


def refused() -> int:
    with pytest.raises(SystemExit) as stop:
        main(["--remote", "h", "render"])
    return int(stop.value.code or 0)


def send(cluster: Cluster) -> list[str]:
    with pytest.raises(SystemExit) as stop:
        main(["--remote", "h", "render"])
    assert not stop.value.code
    there = cluster.home / default_folder(Path.cwd())
    return sorted(str(path.relative_to(there)) for path in there.rglob("*") if path.is_file())


def test_files_there_follow_those_here(cluster: Cluster) -> None:
    make("a.py", "sub/b.py", "with space")
    Path("a.py").chmod(0o775)
    assert send(cluster) == ["a.py", "sub/b.py", "with space"]
    there = cluster.home / default_folder(Path.cwd())
    assert (there / "a.py").stat().st_mode & 0o777 == 0o755  # a file that others may write is not trusted
    (there / "sub" / "output").write_text("of a job")
    Path("sub/b.py").unlink()
    make("c.py")
    assert send(cluster) == ["a.py", "c.py", "sub/output", "with space"]


def test_the_folders_there_are_for_their_owner_alone_unless_they_exist(cluster: Cluster) -> None:
    make("a.py", "sub/b.py")
    there = cluster.home / default_folder(Path.cwd())
    modes = lambda: [path.stat().st_mode & 0o777 for path in (there.parent, there)]  # noqa: E731
    send(cluster)
    assert modes() == [0o700, 0o700]
    there.chmod(0o750)
    send(cluster)
    assert modes() == [0o700, 0o750]


def test_a_command_that_sends_no_files_makes_the_same_folder(cluster: Cluster) -> None:
    with pytest.raises(SystemExit):
        main(["--remote", "h", "list"])
    there = cluster.home / default_folder(Path.cwd())
    assert [path.stat().st_mode & 0o777 for path in (there.parent, there)] == [0o700, 0o700]


def test_nothing_is_deleted_that_was_not_sent(cluster: Cluster) -> None:
    there = cluster.home / default_folder(Path.cwd())
    there.mkdir(parents=True)
    (there / "a.py").write_text("of somebody")
    make("b.py")
    assert send(cluster) == ["a.py", "b.py"]


def test_the_root_of_a_project(cluster: Cluster) -> None:
    make("sub/deep/x")
    deep = Path.cwd() / "sub/deep"
    assert project_root(deep) == deep
    git("init", "-q")
    assert project_root(deep) == Path.cwd()
    make("sub/clusterrun.toml")
    Path("sub/clusterrun.toml").write_text("")
    assert project_root(deep) == deep.parent


def test_a_long_state_folder_shares_no_connection(tmp_path: Path) -> None:
    assert find_host("h", tmp_path / ("x" * 100)).socket is None
    host = find_host("h", tmp_path)
    assert host.socket is not None and host.socket.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "ssh").chmod(0o755)
    with pytest.raises(RequestError, match="only you can access"):
        find_host("h", tmp_path)


def test_a_wheel_of_what_runs(tmp_path: Path) -> None:
    name, data = make_wheel()
    (tmp_path / name).write_bytes(data)
    assert make_wheel() == (name, data)
    with zipfile.ZipFile(tmp_path / name) as wheel:
        assert wheel.testzip() is None
        names = {*wheel.namelist()}
        assert {
            "clusterrun/worker/training/loop.py",
            "clusterrun/templates/sbatch.j2",
            "clusterrun/jobs/lm.toml",
        } <= names
