"""What `status` says of the model that a built-in task has left, and of losses that go wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import Outcome
from clusterrun.records.end_records import unknown_status
from clusterrun.records.store import Store
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import state_lines, status_json
from tests.support.run_records import attempt, submitted

WHY = "3 evaluations without a lower held-out loss (early_stopping=3)"


def shown(folder: Path, file: str, document: Any, name: str, outcome: Outcome = Outcome.DONE) -> tuple[str, Any]:
    """The line of `status` with this name, and what --json has, for a run with this file in its attempt's folder."""
    run = submitted(Store(folder, folder / "state"))
    (run.run_dir / "attempts").mkdir(exist_ok=True)
    (attempt(run, 0, 0) / file).write_text(json.dumps(document))
    state = RunState(run, replace(unknown_status(run, ""), state="X", outcome=outcome))
    lines = [line.strip() for line in state_lines(state)]
    return next((line for line in lines if line.startswith(f"{name}  ")), ""), status_json(state)[name]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"model_step": 125, "model_val_loss": 2.2144}, "model  step 125, the lowest held-out loss: 2.214"),
        ({"model_step": 150}, "model  step 150"),
        (
            {"model_step": 100, "model_val_loss": 2, "ended_early": WHY},
            "model  step 100, the lowest held-out loss: 2",
        ),
        ({"model_step": "x", "model_val_loss": [], "ended_early": 1}, ""),
        ({}, ""),
    ],
)
def test_a_finished_task_says_which_step_its_model_is_of(tmp_path: Path, facts: dict[str, Any], line: str) -> None:
    text, as_json = shown(tmp_path, "training.json", {"steps": 150, **facts}, "model")
    assert text == line
    assert (as_json is not None) == bool(line)
    assert line == "" or as_json["step"] == facts["model_step"]


def test_an_early_end_is_explained(tmp_path: Path) -> None:
    facts = {"model_step": 100, "model_val_loss": 2, "ended_early": WHY}
    run = submitted(Store(tmp_path, tmp_path / "state"))
    (run.run_dir / "attempts").mkdir(exist_ok=True)
    (attempt(run, 0, 0) / "training.json").write_text(json.dumps(facts))
    state = RunState(run, replace(unknown_status(run, ""), state="COMPLETED", outcome=Outcome.DONE))
    assert f"    early  ended by {WHY}" in state_lines(state)
    assert status_json(state)["model"] == {"step": 100, "val_loss": 2, "scores": None, "ended_early": WHY}


def test_the_scores_of_a_finished_task_are_those_of_its_model_and_not_of_its_last_step(tmp_path: Path) -> None:
    facts = {"model_step": 100, "model_val_loss": 2, "model_scores": {"accuracy_code": 0.9375, "f1_code": "x"}}
    run = submitted(Store(tmp_path, tmp_path / "state"))
    (run.run_dir / "attempts").mkdir(exist_ok=True)
    (attempt(run, 0, 0) / "training.json").write_text(json.dumps(facts))
    (run.run_dir / "metrics.jsonl").write_text(json.dumps({"step": 150, "accuracy_code": 0.5}) + "\n")
    job = unknown_status(run, "")
    ended, running = replace(job, state="X", outcome=Outcome.DONE), replace(job, state="X", outcome=Outcome.RUNNING)
    for status, score in ((ended, "0.9375"), (running, "0.5")):
        assert f"   scores  accuracy_code {score}" in state_lines(RunState(run, status))


def test_a_warning_of_the_losses_is_shown_whatever_became_of_the_job(tmp_path: Path) -> None:
    text = "the loss oscillates: it rose by 0.5 or more and fell again 3 times"
    for outcome in (Outcome.RUNNING, Outcome.DONE):
        (tmp_path / outcome.value).mkdir()
        progress = {"step": 5, "stepped": 1.0, "warning": text}
        assert shown(tmp_path / outcome.value, "progress.json", progress, "warning", outcome) == (
            f"warning  {text}",
            text,
        )


def test_the_scores_of_a_task_have_a_line(tmp_path: Path) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    row = {"step": 300, "r2_price": 0.99861, "mae_price": 15244.3, "exact_set": 1.0}
    (run.run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    lines = [line.strip() for line in state_lines(RunState(run, unknown_status(run, "")))]
    assert "scores  r2_price 0.9986, mae_price 15,244, exact_set 1" in lines


def test_a_task_that_failed_after_its_last_step_has_no_model(tmp_path: Path) -> None:
    assert shown(tmp_path, "training.json", {"model_step": 150}, "model", Outcome.FAILED) == ("", None)


def test_what_the_model_wrote_before_and_after_the_training_is_shown_side_by_side(tmp_path: Path) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    texts = [(0, "Once", "zzz\nqq"), (0, "Hi", "only once"), (300, "Once", "upon a time " * 9)]
    samples = [{"step": step, "prompt": prompt, "text": text} for step, prompt, text in texts]
    (run.run_dir / "samples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in samples))
    lines = [line.strip() for line in state_lines(RunState(run, unknown_status(run, "")))]
    at = lines.index("samples  prompt  step 0  step 300")
    assert lines[at + 1] == "Once    zzz qq  upon a time upon a time upon a time…"
    assert not any("only once" in line for line in lines), "it has one text"
