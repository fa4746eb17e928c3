"""What rank 0 writes about a run: metrics, TensorBoard, W&B, lines for people."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.training.report import Report
from clusterrun.worker.training.settings import Training
from tests.support.patience import HUNG

ROOT = Path(__file__).resolve().parents[2]


def report(folder: Path, start: int = 0, rank: int = 0, **settings: Any) -> Report:
    return Report(rank, RunEnv(run_id="20261121-abc", run_dir=folder), Training(**settings), start, {"seed": 1})


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_other_ranks_write_and_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = report(tmp_path, rank=1)
    other.say("hello")
    other.row(1, 2, {"loss": 1.0})
    other.close()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_resumed_run_writes_each_step_once_and_drops_a_line_cut_by_a_crash(tmp_path: Path) -> None:
    first = report(tmp_path)
    for step in range(6):
        first.row(step, 9, {"loss": 1.0 + step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    second = report(tmp_path, start=3)
    second.row(4, 9, {"loss": 0.5})
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0.5)]


def test_a_value_that_is_no_number_is_still_json(tmp_path: Path) -> None:
    report(tmp_path).row(1, 2, {"loss": float("nan"), "grad_norm": float("inf"), "mfu": None})
    (row,) = rows(tmp_path)
    assert (row["loss"], row["grad_norm"]) == ("nan", "inf")
    assert "mfu" not in row


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    one = Report.__new__(Report)  # past the opening, which reads the file
    one.enabled, one.metrics, one.samples = True, tmp_path / "metrics.jsonl", None
    one._board = one._wandb = one._progress = None
    one.row(1, 2, {"loss": 1.0})
    assert "No space left on device" in capsys.readouterr().err


def test_tensorboard_holds_every_step_once_over_a_restart(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_accumulator

    first = report(tmp_path, tensorboard=True)
    for step in range(1, 6):
        first.row(step, 9, {"loss": float(step)})
    first.close()
    second = report(tmp_path, start=3, tensorboard=True)
    for step in (4, 5):
        second.row(step, 9, {"loss": 10.0 + step})
    second.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1), (2, 2), (3, 3), (4, 14), (5, 15)]


class Tracker(types.ModuleType):
    """Stands in for wandb: what is asked of it, not what it does."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__("wandb")
        self.calls: list[tuple[str, Any]] = []
        self.fails = fails

    def init(self, **asked: Any) -> Tracker:
        if self.fails:
            raise ConnectionError("api.wandb.ai\nno network")
        self.calls.append(("init", asked))
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, values)))

    def finish(self) -> None:
        self.calls.append(("finish", None))


def test_wandb_gets_the_runs_own_id_so_that_a_restart_goes_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker()
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    one = report(tmp_path, wandb="my-project")
    one.row(1, 2, {"loss": 1.0})
    one.close()
    (_, asked), logged, finished = tracker.calls
    assert (asked["project"], asked["id"], asked["resume"]) == ("my-project", "20261121-abc", "allow")
    assert logged == ("log", (1, {"loss": 1.0}))
    assert finished[0] == "finish"


def test_training_goes_on_without_wandb_where_it_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Tracker(fails=True))
    report(tmp_path, wandb="p").row(1, 2, {"loss": 1.0})
    assert "wandb.init failed (api.wandb.ai); continuing without W&B" in capsys.readouterr().err
    assert len(rows(tmp_path)) == 1


@pytest.mark.parametrize(("module", "settings"), [("wandb", {"wandb": "p"}), ("tensorboard", {"tensorboard": True})])
def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(WorkerError, match=f"pip install {module}"):
        report(tmp_path, **settings)


SCRIPT = """
from pathlib import Path
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.training.report import Report
from clusterrun.worker.training.settings import Training
report = Report(0, RunEnv(run_dir=Path({folder!r})), Training(), 0, {{}})
report.start(0, 40)
for step in range(1, 41):
    report.advance(step)
report.row(40, 40, {{"loss": 1.25}})
report.close()
"""


def test_a_terminal_gets_a_progress_line_and_a_file_does_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    plain = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HUNG, check=True).stdout
    assert plain == "step 40/40  loss 1.250\n"
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environ, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
    os.close(ours)
    assert process.returncode == 0, shown
    assert b"40/40" in shown
    assert b"training" in shown
    assert b"loss 1.250" in shown
