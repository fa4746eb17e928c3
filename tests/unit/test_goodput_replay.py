"""The replay of Llama 3's failures: its arithmetic, and its target."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from benchmarks.goodput import FAILURES, TARGET, Cluster, goodput, kept, replay


def test_the_failures_are_those_of_the_paper() -> None:
    assert sum(FAILURES.values()) == Cluster().failures == 419


def test_without_failures_only_the_start_and_the_checkpoints_cost_time() -> None:
    it = replace(Cluster(), failures=1)
    lost = 1 - replay(it, random.Random(1))
    assert 0 < lost < 0.02


def test_only_what_a_written_checkpoint_holds_is_kept() -> None:
    it = Cluster()
    period = it.interval + it.stop
    assert kept(it, period) == 0.0  # its checkpoint is still being written
    assert kept(it, period + it.written) == pytest.approx(it.interval)
    assert kept(it, 0.0) == 0.0


def test_the_goodput_meets_its_target_and_falls_with_the_failures() -> None:
    it = Cluster()
    assert statistics.median(goodput(it)) >= TARGET > statistics.median(goodput(replace(it, failures=3 * 419)))
