"""No step whose gradient is not finite is saved, evaluated or exported: as on a CPU, and one step late as on a GPU."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.training import checkpoint, resume
from clusterrun.worker.training.work import Batch
from tests.worker.small_training import Counting, go, rows

pytestmark = pytest.mark.usefixtures("signals_as_before")
LATE = pytest.mark.parametrize("late", [False, True], ids=["at once", "one step late"])
QUIET = {"global_batch_size": 16, "steps": 10, "eval_every": 0, "log_every": 1000}  # nothing else looks at a step


LOSS, GRADIENT = math.nan, -1.0
BOTH = pytest.mark.parametrize("poison", [LOSS, GRADIENT], ids=["loss", "gradient"])


class Poisoned(Counting):
    """Makes the loss of one step NaN, or its gradient alone; `act` runs while the next batch is put together."""

    def __init__(self, step: int, poison: float = LOSS, act: object = None) -> None:
        super().__init__(640)
        self.step = step
        self.value = poison
        self.act = act

    def batch(self, indices: Sequence[int]) -> Batch:
        step = len(self.asked) // 16 + 1
        batch = super().batch(indices)
        if step == self.step:
            batch.tensors["scale"][:] = self.value
        if step == self.step + 1 and callable(self.act):
            self.act()
        return batch

    def samples(self) -> str:
        """The samples of that step, as a message shows them."""
        return ", ".join(map(str, self.asked[16 * (self.step - 1) : 16 * self.step]))


def saved(folder: Path) -> list[int]:
    """The steps of the checkpoints, each of them proved to hold finite numbers only."""
    found = checkpoint.found(folder / "checkpoints")
    for _, path in found:
        assert all(tensor.isfinite().all() for tensor in resume.load(path).tensors.values())
    return [step for step, _ in found]


@LATE
@BOTH
@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_step_that_became_nan_is_not_saved_and_its_own_samples_are_named(
    tmp_path: Path, late: bool, poison: float, step: int
) -> None:
    data = Poisoned(step, poison)
    with pytest.raises(WorkerError) as caught:
        go(tmp_path, data, late=late, **QUIET, save_every=2)
    named = f"the loss of rank 0 is not finite at step {step} (samples of rank 0: {data.samples()})"
    if poison == GRADIENT:
        named = f"the gradient is not finite at step {step}"
    assert str(caught.value).startswith(f"{named}: try an lr lower than ")
    steps = [4, 2] if step == 5 else [2]
    assert saved(tmp_path) == steps
    assert (tmp_path / "checkpoints" / "latest").read_text() == f"step-{steps[0]:08d}\n"


def test_one_step_late_is_one_step_late(tmp_path: Path) -> None:
    """Else the tests here would show nothing of the branch that a GPU takes."""
    asked = []
    for late in (False, True):
        data = Poisoned(5, GRADIENT)
        with pytest.raises(WorkerError, match="at step 5:"):
            go(tmp_path / str(late), data, late=late, **QUIET)
        asked.append(len(data.asked) // 16)
    assert asked == [5, 6]


@LATE
@BOTH
def test_a_nan_in_the_last_step_is_neither_saved_nor_evaluated(tmp_path: Path, late: bool, poison: float) -> None:
    with pytest.raises(WorkerError, match=r"not finite at step 10\b"):
        go(tmp_path, Poisoned(10, poison), late=late, **QUIET, save_every=4)
    assert saved(tmp_path) == [8, 4]
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 4, 8]


@LATE
@BOTH
def test_a_nan_in_the_last_step_before_a_stop_is_not_saved(tmp_path: Path, late: bool, poison: float) -> None:
    data = Poisoned(5, poison, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    with pytest.raises(WorkerError, match=r"not finite at step 5\b"):
        go(tmp_path, data, late=late, **QUIET, save_every=4)
    assert saved(tmp_path) == [4]
    assert not (tmp_path / "attempt" / "stopped").exists()


@LATE
def test_a_stop_saves_the_last_step_when_it_is_finite(tmp_path: Path, late: bool) -> None:
    done, _ = go(tmp_path, Counting(640), late=late, **QUIET)
    assert done
    (tmp_path / "STOP").touch()
    assert not go(tmp_path, Counting(640), late=late, **QUIET | {"steps": 20})[0]
    assert json.loads((tmp_path / "attempt" / "stopped").read_text())["step"] == 10 == saved(tmp_path)[0]


@LATE
@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_skipped_step_leaves_the_row_of_its_neighbours_finite(
    tmp_path: Path, late: bool, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path, Poisoned(step), late=late, **QUIET | {"log_every": 4, "on_nan": "skip"})
    assert f"step {step}: the gradient is not finite; skipping this step" in capsys.readouterr().out
    assert all(math.isfinite(row["loss"]) for row in rows(tmp_path) if row["step"])


@LATE
def test_weights_that_overflow_are_not_saved(tmp_path: Path, late: bool) -> None:
    with pytest.raises(WorkerError, match=r"the weights are not finite after step 1: try an lr lower than 3e\+38"):
        go(tmp_path, late=late, **QUIET, lr=3e38, warmup=0, schedule="constant", save_every=1, weight_decay=10.0)
    assert saved(tmp_path) == []
