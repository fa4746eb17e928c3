"""What another user could have written is opened through one module, which follows no link and checks each owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clusterrun.run_folder import safe_files

ME = os.getuid()
needs_root = pytest.mark.skipif(ME != 0, reason="only root can give a file away")  # chown refuses; CI is root


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / ".clusterrun" / "runs" / "20261121-000001-k3v7qa"
    (folder / "submissions").mkdir(parents=True)
    (folder / "record.json").write_text("{}")
    return folder


def test_a_plain_file_of_a_run_is_read(run: Path) -> None:
    assert safe_files.read_bytes(run / "record.json") == b"{}"
    assert sorted(safe_files.list_names(run)) == ["record.json", "submissions"]
    assert safe_files.owner_of(run) == ME


@pytest.mark.parametrize("which", [".clusterrun", ".clusterrun/runs", "run", "record"])
def test_no_link_is_followed_below_the_records(run: Path, tmp_path: Path, which: str) -> None:
    path = {"run": run, "record": run / "record.json"}.get(which, tmp_path / which)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError) as caught:
        safe_files.read_bytes(run / "record.json")
    assert str(tmp_path) in str(caught.value.filename)


def test_a_project_may_be_reached_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert safe_files.read_bytes(tmp_path / "link" / run.relative_to(tmp_path) / "record.json") == b"{}"


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socket"])
def test_only_plain_files_are_read_and_nothing_is_waited_for(run: Path, kind: str) -> None:
    path = run / "record.json"
    path.unlink()
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "device":
            if ME != 0:
                pytest.skip("only root can make a device")  # mknod refuses; CI is root
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
        case "folder":
            path.mkdir()
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o666)
    with pytest.raises(OSError):
        safe_files.read_bytes(path)


def test_a_file_beyond_the_limit_is_not_read(run: Path) -> None:
    (run / "record.json").write_text("x" * 100)
    assert safe_files.read_bytes(run / "record.json", limit=100) == b"x" * 100
    with pytest.raises(OSError, match="too large"):
        safe_files.read_bytes(run / "record.json", limit=99)


def test_a_path_of_records_cannot_go_up(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    with pytest.raises(OSError, match="must not contain"):
        safe_files.read_bytes(run / ".." / ".." / ".." / "secret")


@needs_root
@pytest.mark.parametrize("which", ["submissions", "record.json"])
def test_what_is_not_the_run_owners_is_refused(run: Path, which: str) -> None:
    os.chown(run / which, 54321, 54321)
    with pytest.raises(PermissionError, match="owned by user 54321"):
        safe_files.read_bytes(run / which / "x" if which == "submissions" else run / which)


@needs_root
def test_another_users_run_is_read_and_not_written(run: Path) -> None:
    for path in (run, run / "submissions", run / "record.json"):
        os.chown(path, 54321, 54321)
    assert safe_files.read_bytes(run / "record.json") == b"{}" and safe_files.owner_of(run) == 54321
    with pytest.raises(PermissionError, match="owned by user 54321"):
        safe_files.write(run / "record.json", b"mine")
    with pytest.raises(PermissionError, match="owned by user 54321"):
        safe_files.append(run / "record.json", b"mine")
    with pytest.raises(PermissionError, match="owned by user 54321"):
        safe_files.make_folder(run / "submissions", 0o700)
    assert (run / "record.json").read_text() == "{}"


def test_a_link_is_replaced_by_a_write_and_refused_by_an_append(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (run / "a").symlink_to(target)
    with pytest.raises(OSError):
        safe_files.append(run / "a", b"line\n")
    safe_files.write(run / "a", b"new")
    assert target.read_text() == "mine" and (run / "a").read_bytes() == b"new"


def test_a_folder_has_exactly_the_mode_that_was_wanted(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        safe_files.make_folder(tmp_path / "shared", 0o750)
        safe_files.make_folder(tmp_path / "mine", 0o700)
        safe_files.make_folder(tmp_path / "mine", 0o750)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("shared", "mine")] == [0o750, 0o750]


def test_a_group_folder_hands_its_group_down(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)
    safe_files.make_folder(tmp_path / "a", 0o750)
    assert (tmp_path / "a").stat().st_mode & stat.S_ISGID


# -- who could change a path ---------------------------------------------------------------------------------------


def test_a_path_of_mine_is_safe_and_so_is_what_is_not_there_yet(tmp_path: Path) -> None:
    assert safe_files.find_weakness(tmp_path) == ("", "")
    assert safe_files.find_weakness(tmp_path / "not" / "yet") == ("", "")


@pytest.mark.parametrize(("mode", "fix"), [(0o777, "chmod go-w"), (0o702, "chmod o-w")])
def test_each_folder_on_the_path_counts(tmp_path: Path, mode: int, fix: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a").chmod(mode)
    why, command = safe_files.find_weakness(tmp_path / "a" / "b")
    assert why.startswith(f"{tmp_path}/a: ") and command == f"{fix} {tmp_path}/a"


@needs_root
def test_a_group_other_than_my_private_one_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o775)
    assert safe_files.find_weakness(tmp_path / "a") == ("", "")
    os.chown(tmp_path / "a", 0, 54321)
    why, fix = safe_files.find_weakness(tmp_path / "a")
    assert (why, fix) == (f"{tmp_path}/a: its group has write access", f"chmod g-w {tmp_path}/a")


def test_in_a_sticky_folder_nobody_replaces_the_entries_of_others(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a").chmod(0o1777)
    assert safe_files.find_weakness(tmp_path / "a" / "b") == ("", "")


@needs_root
def test_a_folder_or_link_of_another_user_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert safe_files.find_weakness(tmp_path / "link" / "b") == ("", "")
    os.lchown(tmp_path / "link", 54321, 54321)
    why, fix = safe_files.find_weakness(tmp_path / "link" / "b")
    assert (why, fix) == (f"{tmp_path}/link: the symbolic link is owned by user 54321", "")
    os.chown(tmp_path / "a", 54321, 54321)
    why, fix = safe_files.find_weakness(tmp_path / "a" / "b")
    assert (why, fix) == (f"{tmp_path}/a: owned by user 54321", "")


def test_the_folders_that_a_link_leads_through_count(tmp_path: Path) -> None:
    (tmp_path / "open" / "b").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to("../open/b")
    why, _ = safe_files.find_weakness(tmp_path / "a" / "link")
    assert why.startswith(f"{tmp_path}/open: ")


def test_links_that_lead_in_a_circle_are_no_path(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert safe_files.find_weakness(tmp_path / "a") != ("", "")
