"""The watchdog's look at the losses in the job's logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.worker.job.losses import TAIL, is_nan

NAN = "".join(f"0: step {n} loss nan lr 1e-4\n" for n in range(3))


@pytest.mark.parametrize(("text", "expected"), [
    ("0: step 1 loss 2.0\n" + NAN, True),
    ("{'loss': nan}\n{'loss': nan}\n{'loss': nan}\n", True),
    ("loss: tensor(nan, device='cuda:0')\n" * 3, True),
    ("train/loss=nan\n" * 3, True),
    ("x" * 3 * TAIL + "\n" + NAN, True),
    (NAN + "0: step 4 loss 2.0\n", False),
    (NAN[: len(NAN) // 2], False),
    (NAN + "x" * 2 * TAIL, False),  # another thing is printed since
    ("step 1 val_loss nan\nvalidation loss: nan\nval loss nan\neval/loss nan\n", False),
    ("the loss of nan\n" * 3, False),
    ("", False),
])  # fmt: skip
def test_losses_that_are_nan_up_to_the_end_are_noticed(tmp_path: Path, text: str, expected: bool) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        assert is_nan((0,), (descriptor,)) is expected
    finally:
        os.close(descriptor)


def test_a_stream_that_is_no_file_is_not_read() -> None:
    ends = os.pipe()
    try:
        assert not is_nan((0, 0), ends)
    finally:
        for end in ends:
            os.close(end)


@pytest.mark.parametrize(("begin", "expected"), [(0, True), (len(NAN), False), (len(NAN) + 1, True)])
def test_losses_of_an_earlier_launch_do_not_count(tmp_path: Path, begin: int, expected: bool) -> None:
    log = tmp_path / "log"
    log.write_text(NAN)
    with log.open("ab") as file:
        assert is_nan((begin,), (file.fileno(),)) is expected, "a log that is shorter than it was is a new one"
