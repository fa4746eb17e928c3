"""What a rank publishes for the watchdog: how far it is, since when, and its stacks on request."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.run_folder.rank_records import READS_PER_S
from clusterrun.worker.rank import collectives
from clusterrun.worker.rank.distenv import DistEnv
from clusterrun.worker.rank.progress import Progress, Recorder
from clusterrun.worker.rank.stacks import REQUEST, StackWriter
from tests.support.installed_command import until

PLACE = DistEnv(0, 0, 4, 2, 0, "node1", "host1", 0, "slurm", ("node1", 1))


def test_progress_is_a_change_of_phase_step_or_collectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}
    monkeypatch.setattr(collectives, "count", lambda: dict(counts))
    progress = Progress()
    one = Recorder(progress, PLACE, tmp_path, every=10.0)

    def advanced() -> float | None:
        one.write_if_due()
        return one.document()["advanced"]

    assert advanced() is None, "neither a step nor a collective is known"
    counts["0"] = 1
    first = advanced()
    assert first is not None and advanced() == pytest.approx(first, abs=0.01)
    for change in (lambda: counts.update({"0": 2}), lambda: setattr(progress, "step", 1), lambda: progress.enter("x")):
        before, at = one._advanced, time.monotonic()
        change()
        advanced()
        assert before is not None and one._advanced is not None and before < at <= one._advanced
    assert one.document()["collectives"] == {"0": 2}


def test_the_collectives_of_each_group_are_counted_and_odd_backends_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> int:
        raise RuntimeError("not supported")

    class Group:
        def __init__(self, count: Callable[[], int]) -> None:
            self._get_sequence_number_for_group = count

    groups = [Group(lambda: 7), Group(fail), Group(lambda: 2)]
    world = types.SimpleNamespace(
        pg_map=dict.fromkeys(groups), pg_names={each: str(n) for n, each in enumerate(groups)}
    )
    name = "torch.distributed.distributed_c10d"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(_world=world))  # type: ignore[arg-type]
    assert collectives.count() == {"0": 7, "2": 2}
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace())  # type: ignore[arg-type]
    assert collectives.count() == {}


def test_a_rank_that_stands_still_writes_its_stacks_on_request(tmp_path: Path) -> None:
    progress = Progress()
    progress.step = 3
    one = Recorder(progress, PLACE, tmp_path, every=0.2)
    (tmp_path / REQUEST).write_text('{"request": 1}')
    one.start()
    until((tmp_path / "stacks-rank-0.txt").exists, 20)
    progress.enter("ending")


def test_a_rank_that_advances_does_not_look_for_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int | None] = []
    monkeypatch.setattr(StackWriter, "write_if_requested", lambda self: looks.append(progress.step))
    progress = Progress()
    one = Recorder(progress, PLACE, tmp_path, every=10.0)
    for progress.step in (None, 1, 2):
        progress.enter("training")  # then a record is due
        one.poll()
    assert looks == [None], "a rank without steps or collectives may be stuck"


def test_ranks_together_open_a_bounded_number_of_files_a_second(tmp_path: Path) -> None:
    def look_interval(ranks: int) -> float:
        return Recorder(Progress(), replace(PLACE, world_size=ranks), tmp_path, every=10.0).look_interval

    assert look_interval(4) == 10.0 and 80_000 / look_interval(80_000) <= READS_PER_S
