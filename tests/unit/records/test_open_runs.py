"""Runs without a recorded end, and the cache of the others, which is valid only while nothing has changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.records import store as stores
from clusterrun.records.open_runs import open_runs
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.run_records import submitted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs whose records were read."""
    found: list[str] = []
    load = stores.load_strictly

    def counted(folder: Path, *above: Any, **how: Any) -> RunRecord:
        run = load(folder)
        found.append(run.name)
        return run

    monkeypatch.setattr(stores, "load_strictly", counted)
    return found


def ended(store: Store, run: RunRecord, final: dict[str, str] | None) -> RunRecord:
    """The run with an end that was seen, or (None) struck out; the clock of its folder moves on."""
    saved = store.save_submission(run, replace(run.submission, final=final))
    folder = run.run_dir / "submissions"
    os.utime(folder, ns=(0, folder.stat().st_mtime_ns + 1_000_000_000))
    return saved


def names(store: Store) -> list[str]:
    return [run.name for run in open_runs(store)]


def test_a_run_that_is_over_is_read_once(store: Store, read: list[str]) -> None:
    submitted(store, 2)
    submitted(store, 1)
    ended(store, submitted(store, 3), {"state": "FAILED"})
    assert names(store) == ["train1", "train2"] and sorted(read) == ["train1", "train2", "train3"]
    read.clear()
    assert names(store) == ["train1", "train2"] and sorted(read) == ["train1", "train2"]


def test_an_end_that_was_struck_out_is_seen(store: Store) -> None:
    run = ended(store, submitted(store), {"state": "PREEMPTED"})
    assert names(store) == []
    ended(store, run, None)
    assert names(store) == ["train1"]


@pytest.mark.parametrize("rubbish", ["", "[", "null\n", "[1]\n", '["a", "b"]\n', "\udcff\n", '["x", 1]'])
def test_rubbish_in_the_cache_hides_no_run(store: Store, rubbish: str) -> None:
    submitted(store, 1)
    ended(store, submitted(store, 2), {"state": "FAILED"})
    (store.index.with_name("over")).write_text(rubbish, "utf-8", "surrogateescape")
    assert names(store) == ["train1"]
    assert names(store) == ["train1"]


def test_a_cache_that_cannot_be_written_costs_only_time(store: Store, read: list[str]) -> None:
    ended(store, submitted(store), {"state": "FAILED"})
    store.index.with_name("over").mkdir()
    assert names(store) == names(store) == [] and read == ["train1", "train1"]
