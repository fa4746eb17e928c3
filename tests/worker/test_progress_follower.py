"""What the supervisor learns of a training from the job's logs and from rank 0's record."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from clusterrun.run_folder import run_link, training_progress
from clusterrun.run_folder.rank_records import RankSlot
from clusterrun.run_folder.training_progress import TrainingProgress
from clusterrun.worker.job.progress_follower import MOST, LogTail, ProgressFollower
from clusterrun.worker.node.local_launcher import Labeler

NAN = "".join(f"0: step {n} loss nan lr 1e-4\n" for n in range(3))


class Followed:
    """A follower of one log, and what it has said."""

    def __init__(self, folder: Path, log: BinaryIO) -> None:
        self.folder, self.log, self.said = folder, log, list[str]()
        self.follower = ProgressFollower(folder, self.said.append, (log.fileno(),))

    def after(self, text: str | bytes) -> TrainingProgress | None:
        """The recorded progress after the log has grown by a text."""
        self.log.write(text.encode() if isinstance(text, str) else text)
        self.log.flush()
        self.follower.look()
        return training_progress.load(self.folder)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    (tmp_path / "log").write_text("0: step 700/900\n0: step 800/900\n")  # of an earlier launch
    with (tmp_path / "log").open("ab") as log:
        yield Followed(tmp_path, log)


def test_what_a_launch_prints_is_its_progress(followed: Followed) -> None:
    assert followed.after("0: step 10/900 loss 2.5\n0: step 2") is None
    progress = followed.after("0/900 loss 2.25\n1: step 21/900 loss 9\n")
    assert progress is not None
    assert (progress.step, progress.steps, progress.loss, progress.first_step) == (20, 900, 2.25, 10)


def test_each_loss_that_is_printed_between_two_looks_is_kept_for_the_curve(followed: Followed) -> None:
    followed.after("".join(f"0: step {n}/900 loss {10 - n}\n1: step {n}/900 loss 0\n" for n in range(1, 5)))
    followed.after("0: step 5/900 loss nan\n0: step 6/900 loss 3.5\n")
    assert training_progress.load_losses(followed.folder) == [(1, 9), (2, 8), (3, 7), (4, 6), (6, 3.5)]


def test_losses_that_are_nan_are_counted(followed: Followed) -> None:
    progress = followed.after("0: step 1/9 loss 2\n0: step 2/9 loss nan\n0: step 3/9 loss nan\n")
    assert progress is not None and (progress.loss, progress.nan_losses) == (None, 2)


SWINGS = [2.0 - math.cos(n / 2.5) for n in range(64)]


def test_a_loss_that_oscillates_is_said_once_and_recorded(followed: Followed) -> None:
    for n, loss in enumerate(SWINGS):
        followed.after(f"0: step {n}/900 loss {loss}\n")
    assert len(followed.said) == 1 and followed.said[0].startswith("warning: the loss oscillates: it rose by ")
    assert training_progress.load_warning(followed.folder) == followed.said[0].removeprefix("warning: ")


def test_a_launch_that_was_resumed_late_does_not_judge_its_losses(followed: Followed) -> None:
    followed.after("".join(f"0: step {n + 200}/900 loss {loss}\n" for n, loss in enumerate(SWINGS)))
    assert followed.said == [] and training_progress.load_warning(followed.folder) == ""


def test_a_bar_is_read_while_its_line_is_unfinished_and_never_where_srun_cut_it(followed: Followed) -> None:
    labeler, seen = Labeler(0, 2), list[int]()
    for count in range(1, 400):
        state = (
            f"\r{100 * count // 400:3}%|{'█' * (10 * count // 400):10}| {count}/400 [00:10<00:50,  1.66it/s, loss=0.3]"
        )
        progress = followed.after(labeler.feed(state.encode()))
        seen += [progress.step] if progress is not None else []
    assert sorted(seen) == seen and seen[-1] > 380
    assert progress is not None and (progress.steps, progress.loss) == (400, 0.3)


def test_a_bar_without_a_label_is_read(followed: Followed) -> None:
    followed.after("  1%|▏         | 4/400 [00:01<01:50,  3.6it/s]\r")
    progress = followed.after("  2%|▏         | 8/400 [00:02<01:48,  3.6it/s]\r  3%|▎         | 1")
    assert progress is not None and (progress.step, progress.steps) == (8, 400)


def test_the_first_page_at_wandb_that_is_printed_is_kept(followed: Followed) -> None:
    page = "https://wandb.ai/ann/lm/runs/k3v7qaab"
    followed.after(f"0: wandb: 🚀 View run at {page}\n0: wandb: 🚀 View run at {page}2\n")
    assert run_link.load(followed.folder) == page


def test_of_much_text_only_the_end_is_read(followed: Followed) -> None:
    text = "".join(f"0: step {n}/90000\n" for n in range(1, 50_000))
    assert len(text) > 2 * MOST
    progress = followed.after(text)
    assert progress is not None and (progress.step, progress.first_step) == (49_999, None)


def test_the_first_step_is_the_first_one_that_was_printed_however_late_the_first_look(followed: Followed) -> None:
    progress = followed.after("".join(f"0: step {n}/300 loss 1\n" for n in range(160, 200, 10)))
    assert progress is not None and (progress.first_step, progress.step) == (160, 190)
    progress = followed.after("0: step 200/300 loss 1\n")
    assert progress is not None and (progress.first_step, progress.step) == (160, 200)


def test_what_rank_0_reports_itself_comes_before_what_it_prints(followed: Followed) -> None:
    record = {"step": 3, "steps": 70, "stepped": 92.0, "first_step": 2, "first_step_at": 90.0, "loss": 1.5}
    RankSlot(followed.folder, 0, 0).write_progress(record)
    progress = followed.after("0: step 10/900\n0: step 20/900\n")
    assert progress == TrainingProgress(3, 92.0, 70, 1.5, 2, 90.0)


def test_the_speed_is_measured_from_a_step_past_the_slow_first_ones(followed: Followed) -> None:
    slot, speeds = RankSlot(followed.folder, 0, 0), []
    for step, stepped in (1, 90.0), (2, 94.0), (3, 98.0), (8, 103.0), (15, 110.0), (16, 111.0):
        slot.write_progress({"step": step, "steps": 70, "stepped": stepped, "first_step": 1, "first_step_at": 90.0})
        progress = followed.after("")
        speeds += [progress.steps_per_second if progress is not None else None]
    assert speeds == [None, None, None, None, 1.0, 1.0]


def test_a_script_that_counts_anew_is_measured_anew(followed: Followed) -> None:
    slot = RankSlot(followed.folder, 0, 0)
    for step, stepped, first_at in (100, 200.0, 90.0), (5, 206.0, 201.0), (25, 216.0, 201.0):
        slot.write_progress({"step": step, "stepped": stepped, "first_step": 1, "first_step_at": first_at})
        progress = followed.after("")
    assert progress is not None and progress.steps_per_second == 2.0


@pytest.mark.parametrize(("text", "warns"), [
    (NAN, True),
    ("{'loss': nan}\n{'loss': nan}\n{'loss': nan}\n", True),
    ("loss: tensor(nan, device='cuda:0')\n" * 3, True),
    ("train/loss=nan\n" * 3, True),
    ("x" * 3 * MOST + "\n" + NAN, True),
    (NAN + "0: step 4 loss 2.0\n", False),
    (NAN[: len(NAN) // 2], False),
    ("step 1 val_loss nan\nvalidation loss: nan\nval loss nan\neval/loss nan\n", False),
    ("the loss of nan\n" * 3, False),
    ("", False),
])  # fmt: skip
def test_losses_that_are_nan_up_to_the_end_are_warned_of_once(followed: Followed, text: str, warns: bool) -> None:
    followed.after(text)
    followed.after(text)
    assert [line for line in followed.said if "NaN" in line] == followed.said
    assert len(followed.said) == warns


def test_a_stream_that_is_no_file_is_not_read() -> None:
    ends = os.pipe()
    try:
        assert [*LogTail(ends[0]).new_lines()] == []
    finally:
        for end in ends:
            os.close(end)


def test_a_folder_that_takes_no_file_changes_nothing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        followed = Followed(tmp_path / "gone", log)
        assert followed.after("step 10/900\nstep 20/900\n") is None


def test_a_stream_that_was_closed_is_not_read(tmp_path: Path) -> None:
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    ProgressFollower(tmp_path, print, (closed,)).look()
    assert training_progress.load(tmp_path) is None
