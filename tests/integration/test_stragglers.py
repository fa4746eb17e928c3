"""A rank that is slowed down is named, by what the ranks of a real training publish; without it, nobody is."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.records.progress import RankProgress, read_ranks
from clusterrun.state.show import find_stragglers
from tests.support.patience import HUNG

from .conftest import Starter, write_llama

# beside other tests on two cores, the system slows ranks too
pytestmark = pytest.mark.alone

RANKS, SLOWED = 4, 2
STOPPED_S, RUNNING_S = 0.03, 0.01  # of the rank that is slowed down, in turns


class Slowing(threading.Thread):
    """Stops and continues a process in turns, until `close`: it gets a quarter of the time."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._over = pid, threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            os.kill(self._pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(self._pid, signal.SIGCONT)
            self._over.wait(RUNNING_S)

    def close(self) -> None:
        self._over.set()
        self.join()


def wait_for(
    process: subprocess.Popen[str], attempt: Path, is_there: Callable[[list[RankProgress]], bool]
) -> list[RankProgress]:
    """Return the heartbeats once they are as wanted."""
    until = time.monotonic() + 3 * HUNG
    while time.monotonic() < until and process.poll() is None:
        found = read_ranks(attempt)
        if len(found) == RANKS and is_there(found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"it did not come: {find_stragglers(read_ranks(attempt))} {read_ranks(attempt)}")


def is_only_the_slowed(ranks: list[RankProgress]) -> bool:
    return [one.rank for one, _ in find_stragglers(ranks)] == [SLOWED]


def test_the_slow_rank_is_named_and_while_none_is_slow_nobody(step: Starter, tmp_path: Path) -> None:
    from clusterrun.worker.training.throughput import WINDOW  # imports torch

    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    write_llama(tmp_path / "m", **shape, **heads, tie_word_embeddings=True, max_position_embeddings=64)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i} is {i * i} and {i % 7}\n" for i in range(4000)))
    attempt = tmp_path / "runs" / "one" / "attempt"
    named: list[tuple[RankProgress, float]] = []

    def during(process: Any, helper: object) -> None:
        def has_trained(ranks: list[RankProgress]) -> bool:
            return all((one.step or 0) >= 2 * WINDOW and one.compute_s is not None for one in ranks)

        def is_calm(ranks: list[RankProgress]) -> bool:
            return has_trained(ranks) and not find_stragglers(ranks)  # a busy system slows ranks too, but not for long

        calm = wait_for(process, attempt, is_calm)
        pid = calm[SLOWED].pid
        assert pid is not None
        slowing = Slowing(pid)
        slowing.start()
        try:
            named.extend(find_stragglers(wait_for(process, attempt, is_only_the_slowed)))
        finally:
            slowing.close()
            process.send_signal(signal.SIGTERM)

    settings = {"steps": 100_000, "seq_len": 64, "vocab": 300, "model": tmp_path / "m", "data": text, "eval_every": 0,
                "global_batch_size": 32}  # fmt: skip
    words = [f"{key}={value}" for key, value in settings.items()]
    step(1, RANKS, "task", "lm", *words, run="runs/one", during=during, environ={"CLUSTERRUN_PROGRESS_INTERVAL": "0.5"})
    assert [speed < 0.7 for _, speed in named] == [True]
