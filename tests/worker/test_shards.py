"""A checkpoint in shards: written by all ranks or by none, read by any number, and nothing in it is trusted."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from safetensors.torch import load_file, save_file

from clusterrun.base.errors import WorkerError
from clusterrun.run_folder.attempt_number import Superseded
from clusterrun.worker import tasks
from clusterrun.worker.training import checkpoint, loop, shards
from clusterrun.worker.training.checkpoint import Snapshot
from clusterrun.worker.training.ddp import own_part
from tests.support.patience import HUNG
from tests.worker.small_training import go, rows

pytestmark = pytest.mark.usefixtures("signals_as_before")


@pytest.fixture(autouse=True)
def own_group() -> Iterator[None]:
    """Close the process group that a training on one rank opens."""
    yield
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


class Ranks:
    """What `Consensus` does for ranks that are threads."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self._board, self._barrier = rank, board, barrier

    def gather(self, value: Any) -> list[Any]:
        self._board[self.rank] = json.loads(json.dumps(value))
        self._barrier.wait(HUNG)
        values = list(self._board)
        self._barrier.wait(HUNG)
        return values

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]


def shard(rank: int) -> Snapshot:
    """Two of the four rows of a weight, each with its own number."""
    own = torch.arange(4.0)[2 * rank : 2 * rank + 2, None].repeat(1, 3)
    return Snapshot(5, {"w": own}, {}, {"run_id": "r1"}, "{}", offsets={"w": [2 * rank, 0]})


def write_with_two_ranks(folder: Path, check: Any = lambda: None, fail: int | None = None) -> list[Any]:
    """Write a checkpoint from two threads; return the path, None or error of each. Rank `fail` has no such folder."""
    board, barrier = [None, None], threading.Barrier(2)
    ends: list[Any] = [None, None]

    def one(rank: int) -> None:
        group: Any = Ranks(rank, board, barrier)
        if rank == fail:
            real = group.broadcast
            group.broadcast = lambda value: real(value) + "-elsewhere"
        try:
            ends[rank] = shards.write_together(folder, shard(rank), check, group)
        except Exception as error:
            ends[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HUNG)
    return ends


def test_two_ranks_write_one_folder_that_is_verified_as_any_other(tmp_path: Path) -> None:
    path, nothing = write_with_two_ranks(tmp_path)
    assert (path, nothing) == (tmp_path / "step-00000005", None)
    checkpoint.verify(path)
    assert sorted(os.listdir(path)) == [
        "config.json", "manifest.json", "shard-00000.safetensors", "shard-00001.safetensors", "state.json",
    ]  # fmt: skip
    assert load_file(path / "shard-00001.safetensors")["w"].tolist() == [[2.0] * 3, [3.0] * 3]
    (path / "shard-00001.safetensors").write_bytes(b"x")
    assert checkpoint.newest_valid(tmp_path)[0] is None


def test_an_error_of_one_rank_leaves_no_checkpoint_and_names_the_rank(tmp_path: Path) -> None:
    error, nothing = write_with_two_ranks(tmp_path, fail=1)
    assert str(error) == "[Errno 0] rank 1: No such file or directory" and nothing is None
    assert os.listdir(tmp_path) == []


def test_an_attempt_that_was_superseded_lets_the_other_ranks_go_on(tmp_path: Path) -> None:
    def check() -> None:
        raise Superseded("a newer attempt runs")

    error, nothing = write_with_two_ranks(tmp_path, check)
    assert isinstance(error, Superseded) and nothing is None


def test_one_rank_trains_in_bf16_over_float32_weights_and_resumes_bitwise(tmp_path: Path) -> None:
    settings = {"parallel": "fsdp", "precision": "bf16", "save_every": 6, "keep_last": 9}
    assert go(tmp_path / "whole", **settings)[0]
    last = Path("checkpoints") / "step-00000012" / "shard-00000.safetensors"
    saved = load_file(tmp_path / "whole" / last)
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert "embed.weight" in saved and "state.head.bias.exp_avg_sq" in saved
    torch_dist.destroy_process_group()

    shutil.copytree(tmp_path / "whole" / "checkpoints" / "step-00000006", tmp_path / "cut/checkpoints/step-00000006")
    go(tmp_path / "cut", **settings)
    assert rows(tmp_path / "cut")[0]["step"] == 7
    assert (tmp_path / "cut" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()


def test_a_checkpoint_of_the_other_kind_is_refused_with_what_to_set(tmp_path: Path) -> None:
    for saved, wanted in (("fsdp", "ddp"), ("ddp", "fsdp")):
        go(tmp_path / saved, parallel=saved)
        torch_dist.is_initialized() and torch_dist.destroy_process_group()
        with pytest.raises(WorkerError, match=f"was saved with parallel={saved}: set parallel={saved}, or") as caught:
            go(tmp_path / saved, parallel=wanted)
        assert caught.value.status == 2


def test_what_the_manifest_does_not_list_and_another_model_are_refused(tmp_path: Path) -> None:
    go(tmp_path, parallel="fsdp")
    torch_dist.destroy_process_group()
    path = tmp_path / "checkpoints" / "step-00000012"
    save_file({"embed.weight": torch.zeros(16, 8)}, path / "more.safetensors")
    with pytest.raises(WorkerError, match=r"has more\.safetensors, which its manifest\.json does not list"):
        go(tmp_path, parallel="fsdp", steps=14)
    torch_dist.destroy_process_group()
    (path / "more.safetensors").unlink()
    model = torch.nn.Linear(8, 16)
    with pytest.raises(WorkerError, match=r"belongs to a different model: the checkpoint lacks 8 tensors \(weight"):
        shards.load(path, model, torch.optim.AdamW(model.parameters()))


def test_the_best_weights_are_kept_in_the_shards_and_put_back_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    def evaluate(model: Any, *given: Any) -> dict[str, float]:
        seen.append(own_part(model.model.head.weight.detach()).clone())
        return {"val_loss": (5.0, 2.0, 3.0, 3.0)[len(seen) - 1]}  # before step 1, and after steps 4, 8 and 12

    monkeypatch.setattr(loop, "evaluate", evaluate)
    settings = {"parallel": "fsdp", "eval_every": 4, "save_every": 8, "keep_last": 9}
    _, work = go(tmp_path, **settings)
    best = seen[1]
    assert torch.equal(own_part(work.model.head.weight), best) and not torch.equal(best, seen[3])
    torch_dist.destroy_process_group()
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000012")
    del seen[3:]
    _, work = go(tmp_path, **settings)
    assert torch.equal(own_part(work.model.head.weight), best)
    assert work.card == {"model_step": 4, "model_val_loss": 2.0}


def test_a_compiled_model_in_parts_is_refused_at_submission() -> None:
    with pytest.raises(WorkerError, match="compile=true needs parallel=ddp"):
        tasks.prepare("lm", ["compile=true", "parallel=fsdp"], world_size=2)
