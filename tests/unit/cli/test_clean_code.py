"""clean and saved code: what no kept run needs is deleted, with the contents that nothing else has."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from clusterrun.records import cleaning, code_store
from clusterrun.records.code_store import Snapshot
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.support.command_desk import Desk, Said
from tests.support.git_projects import write_files
from tests.support.listed_jobs import run
from tests.support.run_records import attempt, claim, end

LONG_AGO = time.time() - 90 * 86400


def with_code(desk: Desk, number: int, text: str, *, over: bool = True) -> tuple[RunRecord, Path]:
    """A run and the folder of its saved code: its own file, and a file that all runs share."""
    made = run(Store(desk.project, desk.state), number)
    write_files(desk.project, {"train.py": text, "same.py": "same\n"})
    digest = code_store.save(desk.project, desk.project, [("train.py", ""), ("same.py", "")])
    record = Snapshot(root=str(desk.project), digest=digest).to_json()
    (made.run_dir / "snapshot.json").write_text(json.dumps(record))
    if over:
        claim(made)
        attempt(made, end=end(1))
    tree = code_store.tree_folder(desk.project, digest)
    age(desk)
    return made, tree


def age(desk: Desk) -> None:
    """All saved code was used long ago."""
    for path in (desk.project / ".clusterrun/snapshots").rglob("*"):
        if not path.is_file() or path.name.startswith(code_store.NEW) or path.name == "manifest":
            os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)


def contents(desk: Desk) -> set[str]:
    folder = desk.project / ".clusterrun/snapshots/objects"
    return {path.read_text() for path in folder.rglob("*") if path.is_file()}


def clean(desk: Desk, *words: str) -> Said:
    return desk.type("clean", "--older-than", "1h", "--yes", *words)


def test_the_code_of_a_run_that_is_over_is_deleted_with_its_contents(desk: Desk) -> None:
    made, tree = with_code(desk, 1, "one\n")
    said = clean(desk)
    assert said.status == 0 and said.out.endswith("in 1 folder\n"), said
    assert not tree.exists() and contents(desk) == set() and (made.run_dir / "snapshot.json").exists()
    assert [*tree.parent.iterdir()] == []


def test_what_an_active_run_needs_is_kept(desk: Desk) -> None:
    _, tree = with_code(desk, 1, "one\n")
    _, shared = with_code(desk, 2, "two\n")
    with_code(desk, 3, "two\n", over=False)
    clean(desk)
    assert not tree.exists() and (shared / "files/train.py").read_text() == "two\n"
    assert contents(desk) == {"two\n", "same\n"}


def test_the_code_of_a_recent_submission_is_kept(desk: Desk) -> None:
    _, tree = with_code(desk, 1, "one\n")
    os.utime(tree)
    clean(desk)
    assert tree.exists()


def test_code_that_a_submit_uses_meanwhile_is_kept(desk: Desk) -> None:
    _, tree = with_code(desk, 1, "one\n")
    (item,) = cleaning.find_code(desk.project, (), time.time())
    os.utime(tree)
    assert not cleaning.delete_code(item) and (tree / "files/train.py").exists()


def test_code_into_which_a_run_has_written_is_kept_and_named(desk: Desk) -> None:
    _, tree = with_code(desk, 1, "one\n")
    write_files(tree / "files", {"__pycache__/train.cpython-311.pyc": "x"})
    age(desk)
    write_files(tree / "files", {"out/model.bin": "weights"})
    os.utime(tree, (LONG_AGO, LONG_AGO))
    said = clean(desk)
    assert f"keeping the saved code {tree.name}: a run has written to the file {tree}/files/out/model.bin\n" in said.err
    (tree / "files/out/model.bin").unlink()
    clean(desk)
    assert not tree.exists(), "Python's caches do not count"


def test_nothing_is_deleted_while_a_record_cannot_be_read(desk: Desk) -> None:
    _, tree = with_code(desk, 1, "one\n")
    other, _ = with_code(desk, 2, "two\n", over=False)
    (other.run_dir / "snapshot.json").write_text("{")
    assert (
        "keeping all saved code: cannot read snapshot.json in the folder of job 102\n" in clean(desk).err
        and tree.exists()
    )


def test_what_killed_commands_left_is_deleted(desk: Desk) -> None:
    _, tree = with_code(desk, 1, "one\n", over=False)
    for name in (".new-0123", ".deleted-0123456789abcdef0123"):
        write_files(tree.parent / name, {"files/x.py": "x"})
    write_files(desk.project, {".clusterrun/snapshots/objects/.new-0123": "x"})
    age(desk)
    clean(desk)
    assert [path.name for path in tree.parent.iterdir()] == [tree.name] and contents(desk) == {"one\n", "same\n"}


def test_a_dry_run_shows_the_size_that_it_would_free(desk: Desk) -> None:
    _, tree = with_code(desk, 1, "x" * 100_000)
    with_code(desk, 2, "two\n", over=False)
    said = clean(desk, "--dry-run", "--json")
    ((found,),) = [said.data["would_delete"]]
    assert found["path"] == str(tree) and 100_000 <= found["bytes"] < 120_000 and tree.exists()
    assert "saved code" in clean(desk, "--dry-run").out


def test_a_disk_error_is_reported_and_the_rest_deleted_the_next_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tree = with_code(desk, 1, "one\n")

    def fail(*arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", fail)
        said = clean(desk)
    assert said.status == 1 and "Permission denied" in said.err and not tree.exists()
    age(desk)
    assert clean(desk).status == 0 and [*tree.parent.iterdir()] == []
