"""A file that is written whole: what is in its place at each moment, and what is left after an error."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from clusterrun.run_folder import atomic, files


class NotNow(Exception):
    """This process may no longer write."""


def may_not() -> None:
    raise NotNow


def test_a_file_has_the_old_content_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic.replace(path, b"old")
    with atomic.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a"]


def test_nothing_is_renamed_where_this_process_may_not_write(tmp_path: Path) -> None:
    atomic.replace(tmp_path / "a", b"old")
    for name in ("a", "b"):
        with pytest.raises(NotNow):
            atomic.replace(tmp_path / name, b"new", check=may_not)
        with pytest.raises(NotNow):
            atomic.create_once(tmp_path / name, b"new", check=may_not)
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_the_mode_is_exactly_the_one_named_or_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic.replace(tmp_path / "ours", b"", 0o664)
        atomic.replace(tmp_path / "theirs", b"", mode=None)
        assert atomic.create_once(tmp_path / "once", b"", mode=None)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"ours": 0o664, "theirs": 0o640, "once": 0o640}


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to("target")
    atomic.replace(tmp_path / "link", b"new")
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "kept"


def test_of_many_who_create_a_file_one_does(tmp_path: Path) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        if atomic.create_once(tmp_path / "a", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["a"] and [(tmp_path / "a").read_text()] == [str(number) for number in won]


def test_without_hard_links_a_file_is_created_once_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", no_links)
    assert atomic.create_once(tmp_path / "a", b"first") and not atomic.create_once(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first" and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(("number", "is_lost"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_is_no_error_and_a_lost_write_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_lost: bool
) -> None:
    fsync = os.fsync

    def of_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_only)
    if is_lost:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            atomic.replace(tmp_path / "a", b"new")
    else:
        atomic.replace(tmp_path / "a", b"new")
        assert (tmp_path / "a").read_bytes() == b"new"


def test_a_document_of_a_run_is_read_as_it_was_written_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write_json(path, {"a": [1, None, "\u00e9"], "b": float("nan")})
    assert files.read_json(path) == {"a": [1, None, "\u00e9"], "b": None}
    for text in ("", "{", "[1]", '"a"', "[" * 100_000, "\x00"):
        path.write_text(text)
        assert files.read_json(path) is None
    path.unlink()
    assert files.read_json(path) is None
    os.mkfifo(path)
    assert files.read_json(path) is None, "and does not wait for a writer"


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o640), (0o770, 0o640)])
def test_a_document_has_the_mode_that_its_folder_asks_for(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    files.write_json(tmp_path / "x.json", {})
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == file
