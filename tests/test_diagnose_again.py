"""The command to type after a failure: the run submitted again as it was typed, with what is to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.diagnose.again import again
from clusterrun.records import RunRecord
from clusterrun.store import Store
from tests.recording import submitted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


def asked(store: Store, **sources: tuple[Any, str]) -> RunRecord:
    run = submitted(store, sources={name.replace("_", "-"): value for name, value in sources.items()})
    (run.run_dir / "spec.json").write_text(json.dumps({"work": {"kind": "script"}}))
    return run


def test_run_is_submitted_again_as_it_was_typed_with_what_changes(store: Store) -> None:
    run = asked(
        store,
        nodes=(2, "--nodes"),
        mem=("64G", "--mem"),
        partition=("gpu", "clusterrun.toml"),
        set=({"lr": "1"}, "--set"),
        requeue=(False, "--no-requeue"),
    )
    assert (
        again("clusterrun submit … --mem SIZE", run)
        == "clusterrun submit --nodes 2 --set lr=1 --no-requeue --mem 128G -- train.py --lr 1"
    )


@pytest.mark.parametrize(
    ("limit", "longer"),
    [("90", "3:00:00"), ("2:00:00", "4:00:00"), ("1-12", "72:00:00"), ("1:30", "0:03:00"), ("soon", "LONGER")],
)
def test_time_limit_is_doubled(store: Store, limit: str, longer: str) -> None:
    run = asked(store, time=(limit, "--time"))
    assert again("clusterrun submit … --time LONGER", run) == f"clusterrun submit --time {longer} -- train.py --lr 1"


def test_node_is_kept_off_besides_those_kept_off_before(store: Store) -> None:
    run = asked(store, exclude=("n1", "--exclude"), nodelist=("n2,n3", "--nodelist"))
    assert again("clusterrun submit … --exclude n2", run) == "clusterrun submit --exclude n1,n2 -- train.py --lr 1"


def test_option_is_taken_away(store: Store) -> None:
    run = asked(store, master_port=(29500, "--master-port"), nodes=(2, "--nodes"))
    assert again("clusterrun submit … (without --master-port)", run) == "clusterrun submit --nodes 2 -- train.py --lr 1"
