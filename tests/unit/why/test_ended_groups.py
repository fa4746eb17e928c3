"""Why a job ended whose ranks never used a process group."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.records.store import Store
from clusterrun.why import ended
from tests.support.ended_runs import Slurm, over, ranks_on, write_logs
from tests.support.rank_files import put_end
from tests.support.run_records import attempt, end, submitted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "logs").mkdir()
    return Store(tmp_path, tmp_path / "state")


LINE = "no rank used a process group: the job ran as 8 separate programs, and each may …"
LOG = f"0: clusterrun: rank 0: {LINE}\n"


def apart(**values: object) -> dict[str, object]:
    """Rank 0's end record in a run whose ranks never met."""
    values |= {"line": LINE}
    return {"rank": 0, "status": 0, "any_joined_group": False, "kind": "no-process-group", "values": values}


def test_ranks_that_never_met_are_the_cause_of_a_completed_job(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n2"), end=end(0))
    put_end(folder, 0, apart())
    write_logs(run, LOG)
    answer = ended.explain(Slurm(), over(run, "COMPLETED", 0))
    assert (answer.kind, answer.rank) == ("no-process-group", None)
    assert "COMPLETED, but no rank used a process group: the job ran as 8 separate programs" in answer.sentence
    assert [one.number for one in answer.evidence] == [1] and "--independent" in answer.advice


def test_ranks_that_started_a_world_each_are_told_which(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n2"), end=end(0))
    own = "a world of its own by torchrun, of 2 ranks"
    put_end(folder, 0, apart(own_world=own))
    write_logs(run, LOG)
    cause = ended.explain(Slurm(), over(run, "COMPLETED", 0))
    assert cause.sentence.endswith(f"the job ran as 8 separate programs (each rank started {own})")
    assert "--launcher none" in cause.advice


def test_a_program_that_did_not_train_is_shown_by_its_last_line(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n2"), end=end(0))
    put_end(folder, 0, apart(idle=True))
    write_logs(run, LOG)
    (run.logs / "train_101.out").write_text("0: rank  node    device\n0:    0  n1  cpu\n0: no GPU. Exiting.\n\n")
    cause = ended.explain(Slurm(), over(run, "COMPLETED", 0))
    assert cause.sentence.endswith("the last line that its program printed: no GPU. Exiting.")
    assert cause.evidence[0].text == "no GPU. Exiting."


@pytest.mark.parametrize(
    ("joined", "more"),
    [
        (True, {}),
        (None, {}),
        (False, {"sources": {"independent": (True, "--independent")}}),
        (False, {"nodes": 1, "workers_per_node": 1}),
    ],
)
def test_nothing_went_wrong_with_ranks_that_met_or_need_not(store: Store, joined: object, more: dict) -> None:
    run = submitted(store, **more)
    folder = attempt(run, start=ranks_on("n1", "n2"), end=end(0))
    put_end(folder, 0, {"rank": 0, "status": 0, "any_joined_group": joined})
    write_logs(run, "")
    assert ended.explain(Slurm(), over(run, "COMPLETED", 0)).kind == "none"


def test_a_group_that_was_required_is_the_cause_of_a_failure(store: Store) -> None:
    run = submitted(store)
    error = "--require-group: no rank used a process group: the job ran as 8 separate programs; turn on the script's …"
    values = {"what": "no rank used a process group: the job ran as 8 separate programs"}
    failure = {"rank": 0, "node": "n1", "error": error, "kind": "no-process-group", "values": values}
    attempt(run, start=ranks_on("n1", "n2"), end=end(1), first_failure=failure)
    write_logs(run, f"0: clusterrun: rank 0: {error}\nsrun: error: n1: task 0: Exited with exit code 1\n")
    answer = ended.explain(Slurm(), over(run))
    assert (answer.kind, answer.rank) == ("no-process-group", None)
    assert ended.in_one_line(over(run)) == "no rank used a process group: the job ran as 8 separate programs"
