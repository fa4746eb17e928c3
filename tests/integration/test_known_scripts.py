"""Scripts written for torchrun, for transformers' Trainer and for accelerate run on 2 nodes x 2 ranks as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

LINE = re.compile(r"rank (\d) of (\d+) untrained ([0-9a-f]{64}) trained ([0-9a-f]{64}) samples (\[.*\])")


@pytest.mark.parametrize("script", ["torchrun_script.py", "trainer_script.py", "accelerate_script.py"])
def test_a_known_script_trains_one_model_on_four_ranks(step: Callable, script: str) -> None:
    forked = script == "trainer_script.py"  # which imports most
    done = step(2, 2, "script", "--", script, "--steps", "3", environ={"HF_HUB_OFFLINE": "1"}, forked=forked)
    assert done.status == 0, done.err
    found = [match.groups() for rank in range(4) for line in done.lines(rank) if (match := LINE.fullmatch(line))]
    # each says so itself, on its own lines
    assert [(rank, world) for rank, world, *_ in found] == [(str(rank), "4") for rank in range(4)], done.out
    untrained, trained = [row[2] for row in found], [row[3] for row in found]
    assert len(set(trained)) == 1 and trained[0] not in untrained
    assert "process group" not in done.err
    assert [end["joined_group"] for end in done.ends().values()] == [True] * 4
    taken = [sample for row in found for sample in json.loads(row[4])]
    assert len(taken) >= 4 * 3 * 4 and len(set(taken)) == len(taken)  # 3 steps of 4, and no sample on two ranks


@pytest.mark.parametrize("script", ["separate_script.py", "accelerate_alone.py"])
def test_ranks_that_train_apart_are_reported_once(step: Callable, script: str) -> None:
    done = step(1, 2, "script", "--", script, forked=True)
    assert done.status == 0, done.err
    (line,) = [line for line in done.err.splitlines() if "process group" in line]
    assert line.startswith("0: clusterrun: rank 0: no rank used a process group: the job ran as 2 separate programs")
    assert [end["joined_group"] for end in done.ends().values()] == [False] * 2


def test_a_run_that_is_stopped_before_it_joins_gives_no_alarm(step: Callable) -> None:
    required = {"CLUSTERRUN_PROCESS_GROUP": "required"}
    done = step(1, 2, "script", "--", "stopped_script.py", environ=required, forked=True)
    assert done.status == 0 and "process group" not in done.err, done.err
