"""The index of ended runs: what it saves, and that it is believed only as far as the runs' own files agree."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.job import JobId
from clusterrun.records import ended_index, run_record
from clusterrun.records import store as stores
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from tests.support.opened import Opened
from tests.support.run_records import submitted

FAILED = {"state": "FAILED"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


def ended(store: Store, run: RunRecord, final: dict[str, str] | None = FAILED) -> RunRecord:
    """The run with an end that was seen, or (None) struck out."""
    return store.save_submission(run, replace(run.submission, final=final))


def names(store: Store) -> list[str]:
    return [run.name for run in store.open_runs()]


def index_of(store: Store) -> Path:
    return store.runs.with_name("over")


def test_a_run_that_has_ended_is_read_once(store: Store) -> None:
    submitted(store, 2)
    submitted(store, 1)
    over = ended(store, submitted(store, 3))
    assert names(store) == ["train1", "train2"]
    with Opened() as opened:
        assert names(store) == ["train1", "train2"]
        assert {one.name for one in store.summaries()} == {"train1", "train2", "train3"}
        assert store.by_job(JobId("999")) == []
    assert over.run_dir not in opened


def test_an_end_that_was_struck_out_is_seen(store: Store) -> None:
    run = ended(store, submitted(store), {"state": "PREEMPTED"})
    assert names(store) == []
    ended(store, run, None)
    assert names(store) == ["train1"]


def test_a_run_that_was_resumed_is_open_and_the_newest(store: Store) -> None:
    first = ended(store, submitted(store, 1))
    ended(store, submitted(store, 2))
    assert names(store) == []
    again = replace(first.submission, token="zzzzzzzzzzzzzzzz", job_id="", at=first.at + 99, final=None)
    store.stage_again(replace(first, submissions=(*first.submissions, again)), "#!/bin/bash\n")
    assert names(store) == ["train1"]
    assert max(store.summaries(), key=lambda one: one.age_key).name == "train1"


def test_the_next_job_that_a_run_submits_itself_removes_it_from_the_index(store: Store) -> None:
    run = ended(store, submitted(store, 1))
    other = ended(store, submitted(store, 2))
    assert names(store) == []
    submissions.unlist(run.run_dir)
    assert [*ended_index.load_index(store.runs)] == [other.run_id]


def test_a_run_that_changes_while_it_is_read_is_not_added(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(store, submitted(store))
    load = stores.load_strictly

    def slow(*arguments: Any, **more: Any) -> RunRecord:
        found = load(*arguments, **more)
        store.save_submission(run, replace(run.submission, final=None))
        return found

    monkeypatch.setattr(stores, "load_strictly", slow)
    store.open_runs()
    monkeypatch.undo()
    assert names(store) == ["train1"]


@pytest.mark.parametrize("crash", ["before the write", "after the write"])
def test_a_crash_while_a_run_changes_leaves_no_wrong_entry(
    store: Store, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    run = ended(store, submitted(store))
    assert names(store) == []
    write = submissions.write

    def killed(*arguments: Any, **more: Any) -> None:
        if crash == "after the write":
            write(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(submissions, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        ended(store, run, None)
    monkeypatch.undo()
    assert names(store) == ([] if crash == "before the write" else ["train1"])


def test_files_that_were_changed_by_hand_count_for_those_who_read_all(store: Store) -> None:
    run = ended(store, submitted(store))
    assert names(store) == [] and [one.submission.final for one in store.all()] == [FAILED]
    path = run.run_dir / "submissions" / f"{run.submission.token}.json"
    stores.write(path, json.dumps({**json.loads(path.read_text()), "final": None}))
    assert [one.submission.final for one in store.all()] == [None]
    ended(store, run)
    assert [one.submission.final for one in store.all()] == [FAILED]


def test_kept_records_are_what_the_runs_own_files_have(store: Store) -> None:
    name = 'odd "é🙂\udcff\x1b, x'
    for number, more in enumerate(({"name": name, "what": "a\tb"}, {"what": "check"}, {"name": "x" * 200}), 1):
        ended(store, submitted(store, number, **more), {"state": "FAILED", "figures": {"loss": 1.5}})  # type: ignore[dict-item, arg-type]
    own = [run_record.load(run.run_dir) for run in store.all()]
    assert store.all() == own
    assert sorted(store.summaries()) == sorted(ended_index.summarize(run) for run in own if run is not None)


def test_an_index_that_another_user_could_have_written_is_not_used(store: Store) -> None:
    run = ended(store, submitted(store))
    assert names(store) == []
    index_of(store).chmod(0o777)
    with Opened() as opened:
        assert names(store) == []
    assert run.run_dir in opened
    index_of(store).rename(index_of(store).with_name("elsewhere"))
    index_of(store).symlink_to("elsewhere")
    with Opened() as opened:
        assert names(store) == [] and len(store.all()) == 1
    assert run.run_dir in opened


def test_an_index_that_cannot_be_written_costs_only_time(store: Store) -> None:
    run = ended(store, submitted(store))
    index_of(store).write_text("a file in the way")
    with Opened() as opened:
        assert names(store) == names(store) == []
        assert len(store.summaries()) == len(store.all()) == 1
    assert run.run_dir in opened


def test_of_two_entries_of_a_run_none_is_believed(store: Store) -> None:
    run = ended(store, submitted(store))
    store.all()
    (entry,) = ended_index.load_index(store.runs).values()
    words = entry.split(",")[:-1]
    words[2], words[5] = "1999999999", "other"
    other = ",".join(words) + ","
    (index_of(store) / (other + ended_index._sum(other.encode()).decode())).touch()
    assert store.summaries() == [ended_index.summarize(run)]
    with Opened() as opened:
        assert store.summaries() == [ended_index.summarize(run)]
    assert run.run_dir not in opened


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (2, "soon"),
        (2, "9" * 30),
        (2, "\u0663"),
        (3, "foo"),
        (3, "\u00b2"),
        (4, "sweep"),
        (5, "=zz"),
        (5, "=00"),
        (5, "\x1b[1m"),
    ],
)
def test_a_name_that_a_cloned_project_brings_is_believed_only_in_the_form_that_is_written(
    store: Store, field: int, text: str
) -> None:
    run = ended(store, submitted(store))
    store.all()
    (entry,) = ended_index.load_index(store.runs).values()
    words = entry.split(",")[:-1]
    words[field] = text
    forged = ",".join(words) + ","
    (index_of(store) / entry).rename(index_of(store) / (forged + ended_index._sum(forged.encode()).decode()))
    assert store.summaries() == [ended_index.summarize(run)]


def bring_record(store: Store, wrong: dict[str, Any]) -> None:
    """Change values of the only run's record in the index, as one who clones a project could have done."""
    path = index_of(store) / ended_index.RECORDS
    entry, _, text = path.read_text().strip()[8:].partition(" ")
    record, sources = map(json.loads, text.split("\t"))
    whole = {**record, "sources": sources}
    (whole["submissions"][0] if wrong.keys() <= {"job_id", "script", "token"} else whole).update(wrong)
    sources = whole.pop("sources")
    line = f"{entry} {json.dumps(whole)}\t{json.dumps(sources)}".encode()
    path.write_bytes(ended_index._sum(line) + line + b"\n")


@pytest.mark.parametrize(
    "wrong",
    [{"name": 5}, {"at": "soon"}, {"sweep": "../.."}, {"cluster": "a/b"}, {"sources": {"env": 5}}, {"submissions": [5]},
     {"sources": [5]}, {"job_id": "../.."}, {"script": "../../x"}, {"token": "x"},
     {"run_id": "20261121-034501-k3v7qa"}],
)  # fmt: skip
def test_a_record_that_a_cloned_project_brings_in_the_index_is_checked_as_its_own_files_are(
    store: Store, wrong: dict[str, Any]
) -> None:
    run = ended(store, submitted(store))
    assert store.all() == [run_record.load(run.run_dir)]
    bring_record(store, wrong)
    assert store.all() == [run_record.load(run.run_dir)]


def test_the_sources_in_a_kept_record_are_read_only_by_those_who_need_them(store: Store) -> None:
    run = ended(store, submitted(store))
    store.all()
    bring_record(store, {"sources": {"env": 5}})
    with Opened() as opened:
        (found,) = store.all()
    assert run.run_dir not in opened
    with Opened() as opened:
        assert found.sources == run.sources
    assert run.run_dir in opened


def remove_all(folder: Path, text: str) -> None:
    shutil.rmtree(folder)


def remove_one(folder: Path, text: str) -> None:
    folder.joinpath(sorted(os.listdir(folder))[len(text) % len(os.listdir(folder))]).unlink()


def rename_one(folder: Path, text: str) -> None:
    """Damage a name: put a text in the middle of it."""
    old = sorted(os.listdir(folder))[len(text) % len(os.listdir(folder))]
    at = len(old) // 2
    (folder / old).rename(folder / (old[:at] + text + old[at + 1 :])[:250])


def add_rubbish(folder: Path, text: str) -> None:
    (folder / (text or "x")).touch()


def damage_records(folder: Path, text: str) -> None:
    path = folder / ended_index.RECORDS
    data = path.read_bytes()
    at = len(data) * (1 + len(text)) // 30
    path.write_bytes(data[:at] + os.fsencode(text) + data[at + 1 :])


def cut_records(folder: Path, text: str) -> None:
    path = folder / ended_index.RECORDS
    os.truncate(path, path.stat().st_size * len(text) // 25)


DAMAGES: tuple[Callable[[Path, str], None], ...] = (
    remove_all, remove_one, rename_one, add_rubbish, damage_records, cut_records,
)  # fmt: skip


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with open, ended and resumed runs, and their index."""
    project = tmp_path_factory.mktemp("model")
    store = Store(project, project / "state")
    for number in range(1, 8):
        run = submitted(store, number, name=f"train{number % 3}")
        if number % 3:
            run = ended(store, run)
        if number == 5:
            again = replace(run.submission, token="zzzzzzzzzzzzzzzz", job_id="205", at=run.at + 99, final=FAILED)
            store.save_submission(run, again)
    store.all()
    yield project


@given(
    damages=st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=4),
    text=st.text(st.characters(blacklist_characters="/\x00", blacklist_categories=["Cs"]), max_size=20),
    now_open=st.sets(st.integers(0, 6)),
)  # fmt: skip
@pytest.mark.usefixtures("fast_disk")
def test_a_lost_or_damaged_index_never_changes_an_answer(
    model: Path, tmp_path_factory: pytest.TempPathFactory, damages: list[Callable[[Path, str], None]], text: str,
    now_open: set[int],
) -> None:  # fmt: skip
    project = tmp_path_factory.mktemp("damaged") / "project"
    shutil.copytree(model, project)
    store = Store(project, project / "other-state")  # the user's index names the runs that were copied
    store.all()  # the copies have other times
    for damage in damages:
        try:
            damage(index_of(store), text)
        except (OSError, ValueError):  # an earlier one has removed it, or it is no name of a file
            continue
    runs = [run_record.load(folder) for folder in sorted(store.runs.iterdir())]
    for number in now_open:
        run = runs[number]
        assert run is not None
        runs[number] = ended(store, run, None) if run.submission.final else ended(store, run)
    own = [run for folder in store.runs.iterdir() if (run := run_record.load(folder)) is not None]
    for _ in range(2):  # the second time with the index that the first has made
        assert {run.run_id for run in store.open_runs()} == {r.run_id for r in own if r.submission.final is None}
        assert sorted(store.summaries()) == sorted(map(ended_index.summarize, own))
        assert store.all() == sorted(own, key=run_record.age_key)
        for run in own:
            assert [one.run_id for one in store.by_job(run.job_id or JobId("0"))] == [run.run_id]
