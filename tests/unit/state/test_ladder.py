"""The report of a ladder: same loss, steps as 1/N, speed-up, and the rung that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.submissions import SubmissionRecord
from clusterrun.state.ladder import Ladder
from clusterrun.state.reconcile import RunState


def rung(folder: Path, number: int, ranks: int, rows: list[Any], state: str = "COMPLETED", **facts: Any) -> RunState:
    run_dir = folder / str(number)
    attempt = run_dir / "attempts" / "t.0.0"
    attempt.mkdir(parents=True)
    (attempt / "training.json").write_text(json.dumps({"grad_accum_steps": 1, **facts}))
    if rows:
        text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        (run_dir / "metrics.jsonl").write_text(text)
    run = RunRecord(
        run_id=f"r{number}", run_dir=run_dir, root=folder, name="lm", what="lm", scheduler="local", cluster="local",
        user="me", at=1, nodes=1, workers_per_node=ranks, shared=False, sources={},
        submissions=(SubmissionRecord(token="t", at=1),),
    )  # fmt: skip
    status = JobStatus(id=JobId(f"L{number}"), state=state, outcome=outcome_of(state), elapsed=10)
    return RunState(run, status)


def rows(loss: float, speed: float, last: int = 20) -> list[Any]:
    first = {"step": 1, "loss": 7.0, "tokens_per_second": 1.0}
    later = range(10, last + 1, 10)
    logged = [{"step": n, "loss": loss, "tokens_per_second": speed} for n in later]
    return [{"step": 0, "val_loss": 7.0}, first, *logged]


def report(*states: RunState) -> Ladder:
    return Ladder(states, lambda state: f"why {state.status.id}")


def test_same_loss_and_speed_up(tmp_path: Path) -> None:
    found = report(
        rung(tmp_path, 1, 1, rows(6.0, 100), micro_batch_size=4, grad_accum_steps=4, steps_per_epoch=50),
        rung(tmp_path, 2, 4, rows(6.001, 350, last=100), micro_batch_size=4, steps_per_epoch=50),
    )
    heading, *lines = found.lines()
    assert heading.split() == "RUNG JOBID RANKS NODES BATCH STEPS/EPOCH LOSS TOKENS/S SPEED-UP TIME STATE".split()
    assert lines[1].split() == ["2", "L2", "4", "1", "16", "50", "6.0010", "350", "3.50", "0:10", "COMPLETED"]
    assert lines[2:] == [
        "same loss at step 20, within 2% (largest difference 0.02%)",
        "3.50x speed-up with 4x the ranks: scaling efficiency 88%",
    ]
    assert found.json()["common_step"] == 20 and found.json()["stopped_at"] is None


def test_another_loss_is_named_with_both_values(tmp_path: Path) -> None:
    states = [rung(tmp_path, n, n, rows(loss, 1), micro_batch_size=4 // n) for n, loss in ((1, 6.0), (2, 6.5))]
    assert (
        "DIFFERENT loss at step 20 with the same global batch: 6.5000 on 2 ranks, 6.0000 on 1"
        in report(*states).lines()
    )


def test_steps_per_epoch_fall_as_the_global_batch_grows(tmp_path: Path) -> None:
    sizes = ((1, 7375), (2, 3688))
    states = [rung(tmp_path, n, n, rows(6.0 / n, 1), micro_batch_size=4, steps_per_epoch=steps) for n, steps in sizes]
    assert (
        report(*states).verdicts[0]
        == "steps per epoch fall as 1/N on N ranks because the global batch grows: 7375, 3688"
    )
    states.append(rung(tmp_path, 4, 4, rows(1.0, 1), micro_batch_size=4, steps_per_epoch=7375))
    assert report(*states).verdicts[0] == "WRONG steps per epoch: 7375, 3688, 7375; 1844 expected on 4 ranks"


def test_the_rung_that_failed_is_named_with_its_cause(tmp_path: Path) -> None:
    found = report(
        rung(tmp_path, 1, 1, []), rung(tmp_path, 2, 2, [], state="FAILED"), rung(tmp_path, 3, 4, [], state="CANCELLED")
    )
    heading, *_, last = found.lines()
    assert heading.split() == ["RUNG", "JOBID", "RANKS", "NODES", "TIME", "STATE"], "a script has no losses"
    assert last == "stopped at rung 2 of 3: job L2 is FAILED: why L2"
    assert found.json()["stopped_at"] == "L2" and found.json()["cause"] == "why L2"


def test_damaged_metrics_are_left_out(tmp_path: Path) -> None:
    bad = [
        "[" * 100_000 + "\n",
        "7\n",
        '{"step": true, "loss": 1}\n',
        '{"step": 10, "loss": "nan", "epoch": {}}\n',
        "{",
    ]
    found = report(rung(tmp_path, 1, 1, bad), rung(tmp_path, 2, 2, rows(6.0, 1)))
    assert found.common_step is None and found.verdicts == []
    assert len(found.lines()) == 3
