"""The store of saved code: each content once, a folder of links per snapshot, and no half-written one."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.records import cleaning, code_store
from clusterrun.records.code_store import FILES, NEW, TooLarge, load_manifest, save, tree_folder
from tests.support.git_projects import git, write_files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".clusterrun").mkdir(parents=True)
    write_files(tmp_path / "project", {"train.py": "a\n", "src/model.py": "b\n", "src/copy.py": "b\n"})
    return tmp_path / "project"


FILES_OF_IT = [("train.py", ""), ("src/model.py", ""), ("src/copy.py", "")]


def objects(project: Path) -> list[Path]:
    return [path for path in (project / ".clusterrun/snapshots/objects").rglob("*") if path.is_file()]


def saved(project: Path, digest: str) -> Path:
    return tree_folder(project, digest) / FILES


def test_a_snapshot_has_the_files_read_only_and_each_content_once(project: Path) -> None:
    files = saved(project, save(project, project, FILES_OF_IT))
    assert (files / "train.py").read_text() == "a\n" and (files / "src/model.py").samefile(files / "src/copy.py")
    assert len(objects(project)) == 2 and (files / "train.py").stat().st_mode & 0o777 == 0o444
    (files / "src" / "__pycache__").mkdir()  # Python may write there


def test_the_saved_file_keeps_its_content_when_the_project_changes(project: Path) -> None:
    files = saved(project, save(project, project, FILES_OF_IT))
    write_files(project, {"train.py": "changed\n"})
    assert (files / "train.py").read_text() == "a\n"


def test_the_same_files_are_the_same_snapshot_and_only_a_change_is_copied(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(project, project, FILES_OF_IT)
    assert save(project, project, FILES_OF_IT) == first
    write_files(project, {"train.py": "changed\n"})
    before = {path.stat().st_ino for path in objects(project)}
    second = save(project, project, FILES_OF_IT)
    assert second != first and len({path.stat().st_ino for path in objects(project)} - before) == 1
    assert (saved(project, first) / "train.py").read_text() == "a\n"


def test_a_content_that_git_knows_is_not_read_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(project, "init", "-q")
    listed = [(path, git(project, "hash-object", path).strip()) for path, _ in FILES_OF_IT]
    digest = save(project, project, listed)
    assert save(project, project, FILES_OF_IT) == digest, "its id is git's"
    monkeypatch.setattr(code_store, "_copy", None)
    assert save(project, project, listed) == digest


def test_the_executable_bit_is_kept(project: Path) -> None:
    plain = save(project, project, FILES_OF_IT)
    (project / "train.py").chmod(0o755)
    digest = save(project, project, FILES_OF_IT)
    assert digest != plain and os.access(saved(project, digest) / "train.py", os.X_OK)
    assert (saved(project, plain) / "train.py").stat().st_mode & 0o111 == 0


def test_links_inside_are_kept_and_those_that_leave_are_left_out(project: Path) -> None:
    links = {"src/in.py": "../train.py", "folder": "src", "out.py": "../other.py", "deep": "src/../../x", "abs": "/etc"}
    for name, target in links.items():
        (project / name).symlink_to(target)
    files = saved(project, save(project, project, [*FILES_OF_IT, *((name, "") for name in links)]))
    assert os.readlink(files / "src/in.py") == "../train.py" and (files / "folder" / "model.py").read_text() == "b\n"
    assert not {"out.py", "deep", "abs"} & (load_manifest(files.parent) or {}).keys()


def test_what_is_not_saved_is_found_beside_the_saved_files(project: Path) -> None:
    write_files(project, {"data/x.bin": "1\n", "src/cache/y": "2\n", ".git/config": "", "src/__pycache__/z": ""})
    files = saved(project, save(project, project, FILES_OF_IT))
    write_files(project, {"data/later.bin": "3\n"})
    assert (files / "data/later.bin").read_text() == "3\n" and (files / "src/cache/y").read_text() == "2\n"
    assert not {".git", ".clusterrun", "src"} & {path.name for path in files.iterdir() if path.is_symlink()}
    assert not (files / "src/__pycache__").exists()


@pytest.mark.parametrize("name", ["a\nb.py", os.fsdecode(b"\xff.py"), " "])
def test_any_file_name_is_saved(project: Path, name: str) -> None:
    write_files(project, {name: "x\n"})
    digest = save(project, project, [(name, "")])
    assert (saved(project, digest) / name).read_text() == "x\n"
    assert [*(load_manifest(tree_folder(project, digest)) or ())] == [name]


def test_what_is_gone_or_no_file_is_left_out(project: Path) -> None:
    os.mkfifo(project / "pipe")
    digest = save(project, project, [("gone.py", ""), ("train.py/x.py", ""), ("src", ""), ("pipe", ""), ("../x", "")])
    assert load_manifest(tree_folder(project, digest)) == {}


def test_too_much_is_refused_with_the_largest_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(project, {"big.bin": "x" * 1000})
    monkeypatch.setattr(code_store, "LIMIT", 500)
    with pytest.raises(TooLarge) as caught:
        save(project, project, [*FILES_OF_IT, ("big.bin", "")])
    assert caught.value.largest[0] == (1000, "big.bin") and objects(project) == []


def test_a_full_disk_leaves_no_half_snapshot(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_at(name: str) -> Callable[..., Any]:
        def full(*args: Any, **named: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device", name)

        return full

    for owner, name in ((code_store, "_link"), (code_store, "_copy")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail_at(name))
            with pytest.raises(OSError, match="No space left"):
                save(project, project, FILES_OF_IT)
        folder = project / ".clusterrun/snapshots"
        assert not [path for path in folder.rglob("*") if path.name.startswith(NEW)]
        assert not [*(folder / "trees").iterdir()]
        write_files(project, {"train.py": f"{name}\n"})
    assert (saved(project, save(project, project, FILES_OF_IT)) / "train.py").read_text() == "_copy\n"


def test_a_file_that_changes_while_it_is_copied_is_copied_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, calls = code_store._copy, []

    def changing(source: Path, target: Path, algorithm: str) -> tuple[str, int]:
        calls.append(source)
        found = copy(source, target, algorithm)
        return ("", found[1]) if len(calls) == 1 else found

    monkeypatch.setattr(code_store, "_copy", changing)
    digest = save(project, project, [("train.py", "")])
    assert len(calls) == 2 and (saved(project, digest) / "train.py").read_text() == "a\n"
    monkeypatch.setattr(code_store, "_copy", lambda *args: ("", 0))
    write_files(project, {"train.py": "other\n"})
    with pytest.raises(OSError, match="keeps changing"):
        save(project, project, [("train.py", "")])


def test_a_cut_object_is_stored_again(project: Path) -> None:
    git(project, "init", "-q")
    blob = git(project, "hash-object", "train.py").strip()
    save(project, project, [("train.py", blob)])
    place = project / ".clusterrun/snapshots/objects" / blob[:2] / blob[2:]
    place.unlink()
    place.write_text("")
    write_files(project, {"new.py": "n\n"})
    digest = save(project, project, [("train.py", blob), ("new.py", "")])
    assert (saved(project, digest) / "train.py").read_text() == "a\n"


def test_an_object_that_is_deleted_meanwhile_is_stored_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, deleted = os.link, []

    def delete_first(source: Path, target: Path) -> None:
        if not deleted:
            deleted.append(source)
            Path(source).unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", delete_first)
    digest = save(project, project, FILES_OF_IT)
    assert deleted and (saved(project, digest) / "train.py").read_text() == "a\n"


def test_without_hard_links_the_files_are_copied(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    files = saved(project, save(project, project, FILES_OF_IT))
    assert (files / "train.py").read_text() == "a\n" and (files / "train.py").stat().st_mode & 0o777 == 0o444


def test_submits_at_once_make_one_snapshot(project: Path) -> None:
    write_files(project, {f"f{number}.py": f"{number}\n" for number in range(100)})
    listed = [(f"f{number}.py", "") for number in range(100)]
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(save(project, project, listed))) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert [path.name for path in (project / ".clusterrun/snapshots/trees").iterdir()] == [found[0]]
    assert len([path for path in saved(project, found[0]).iterdir() if not path.is_symlink()]) == 100


def test_a_folder_of_another_user_is_refused(project: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    (project / ".clusterrun/snapshots").mkdir()
    os.chown(project / ".clusterrun/snapshots", 1234, 1234)
    with pytest.raises(PermissionError, match="owned by"):
        save(project, project, FILES_OF_IT)


def test_a_manifest_that_is_missing_or_damaged(project: Path) -> None:
    assert load_manifest(tree_folder(project, "0" * 20)) is None
    digest = save(project, project, FILES_OF_IT)
    (tree_folder(project, digest) / "manifest").write_bytes(b"100644\0abc")
    assert load_manifest(tree_folder(project, digest)) == {}


def test_what_a_run_changed_or_deleted_is_put_back_and_its_file_is_kept(project: Path) -> None:
    files = saved(project, save(project, project, FILES_OF_IT))
    content = (files / "train.py").read_text()
    (files / "train.py").rename(files / "moved")
    write_files(files, {"train.py": "result\n"})
    (files / "src/model.py").unlink()
    assert saved(project, save(project, project, FILES_OF_IT)) == files
    assert (files / "train.py").read_text() == content and (files / "src/model.py").read_text() == "b\n"
    (changed,) = files.glob("train.py.changed-*")
    assert changed.read_text() == "result\n"
    assert cleaning.find_added(files.parent) in (str(changed), str(files / "moved"))


def test_a_content_that_root_changed_in_place_is_stored_anew(project: Path) -> None:
    files = saved(project, save(project, project, FILES_OF_IT))
    content = (files / "train.py").read_bytes()
    (files / "train.py").chmod(0o644)
    (files / "train.py").write_bytes(b"x" * len(content))
    save(project, project, FILES_OF_IT)
    assert (files / "train.py").read_bytes() == content


def test_a_folder_that_is_gone_from_the_project_can_be_made_again(project: Path) -> None:
    write_files(project, {"outputs/a": ""})
    files = saved(project, save(project, project, FILES_OF_IT))
    shutil.rmtree(project / "outputs")
    save(project, project, FILES_OF_IT)
    (files / "outputs").mkdir()
