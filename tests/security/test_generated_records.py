"""On whatever stands in a records folder, no verb dies, hangs or writes outside of my own state and my own runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.security.people import CODES, WAITS, Person, Town
from tests.security.records import Generator
from tests.security.unchanged import unchanged
from tests.support.patience import HUNG

BATCH = 20


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=[pytest.mark.faults, pytest.mark.timeout(1800)])])
def test_no_generated_record_makes_a_verb_die_hang_or_write_outside(town: Town, count: int) -> None:
    own = town.a.submit(WAITS, "--", str(town.a.home / "hello.sh"))
    records = town.a.project / ".clusterrun"
    generator = Generator(town, seed=20260101)
    faults: list[str] = []
    (town.folder / "away").mkdir()
    for start in range(0, count, BATCH):
        made = [generator.make(records / "runs", number) for number in range(start, min(start + BATCH, count))]
        (records.parent / "logs").mkdir(exist_ok=True)
        theirs = [path for path in (records / "runs").iterdir() if path.lstat().st_uid != town.a.user.uid]
        try:
            with unchanged(town.a.home, town.b.home, town.folder / "away", *theirs, but=(town.a.state, records)):
                faults += batch(town.a, made, own)
        except AssertionError as error:
            faults.insert(0, f"writes outside: {error}")
        if faults:
            break
        for path in (records / "runs").iterdir():  # the next ones get a folder of their own
            if path.name != Path(own["run_dir"]).name:
                path.rename(town.folder / f"done-{start}-{len(os.listdir(town.folder))}")
    assert town.marks(town.a) == []
    assert not faults, f"{len(faults)} faults, the first:\n" + "\n\n".join(faults[:8])


def batch(person: Person, made: list[tuple[str, str]], own: dict[str, Any]) -> list[str]:
    """Type each verb, and return what was wrong."""
    faults = []
    wholes = [
        ("list",),
        ("list", "--all"),
        ("list", "--json"),
        ("cancel", "--all", "--dry-run"),
        ("status", own["job_id"]),
    ]
    ones = [(verb, name) for run_id, job_id in made for verb, name in (
        ("status", run_id), ("logs", run_id), ("why", run_id), ("check", run_id), ("cancel", run_id),
        ("status", job_id), ("why", job_id))]  # fmt: skip
    for words in (*wholes, *ones):
        said = person.tries(*words, limit=HUNG)
        told = f"{' '.join(words)}: {said.status} after {said.took:.1f} s\n{said.err[-400:]}"
        if said.status is None:
            faults.append(f"hangs: {told}")
        elif said.status not in CODES or "Traceback" in said.err or "unexpected error" in said.err:
            faults.append(f"dies: {told}")
        elif words in wholes and said.status != 0:
            faults.append(f"serves nothing of the rest: {told}")
        elif words == ("list",) and own["job_id"] not in said.out.split():
            faults.append(f"does not show my own job: {told}\n{said.out[-400:]}")
        elif words in wholes[:2] and len(said.err.splitlines()) > 3:
            faults.append(f"says too much: {told}")
    return faults
