"""Batches that a thread prepares are those that would be made without it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from clusterrun.worker.data.texts import Chunks
from clusterrun.worker.models import masked
from clusterrun.worker.models.token_loss import TokenLoss
from clusterrun.worker.training.feed import Feed
from clusterrun.worker.training.sampler import Sampler, reseed, seed_of
from clusterrun.worker.training.sizes import BatchSizes
from clusterrun.worker.training.work import Batch, Tensors, Work
from tests.worker.small_models import make_model

CPU = torch.device("cpu")
SIZES = BatchSizes(global_batch_size=8, micro_batch_size=2, grad_accum_steps=2, world_size=2)


def work_of(loss: TokenLoss, samples: Any) -> Work:
    return Work(make_model(), samples, samples, loss, prepare=loss.prepare, one_shape=True)


def batches(work: Work, ahead: bool, rows: int, rank: int = 1) -> list[tuple[int, list[int], float, Tensors]]:
    """All micro batches of a rank over two epochs."""
    sampler = Sampler(len(work.train), SIZES, 3, drop_last=False)
    feed = Feed(work, sampler, 3, rank, CPU, rows, ahead=ahead)
    found = []
    last = 2 * sampler.steps_per_epoch
    for step in range(1, last + 1):
        for slot, samples, batch in feed.step(step, last):
            reseed(seed_of(3, "step", step, slot), CPU)
            found.append((slot, samples, batch.weight, feed.tensors(batch)))
    return found


@pytest.mark.parametrize("rows", [0, 2])
def test_a_thread_makes_the_same_batches_noise_included(rows: int) -> None:
    tokens = torch.randint(4, 300, (13 * 16 + 1,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    loss = TokenLoss(make_model(), functools.partial(masked.label, mask_id=3, eps=0.1))
    work = work_of(loss, Chunks(tokens, 16))
    at_once, ahead = (batches(work, thread, rows) for thread in (False, True))
    torch.testing.assert_close(ahead, at_once, rtol=0, atol=0)
    assert {len(samples) for _, samples, _, _ in at_once} == {0, 2}  # the last step of an epoch has one sample fewer
    shapes = {tensors["input_ids"].shape for _, _, _, tensors in at_once}
    assert (shapes == {(2, 16)}) is (rows == 2)


def test_what_goes_wrong_in_the_thread_is_raised_in_the_step_that_needs_it() -> None:
    class Broken:
        def __len__(self) -> int:
            return 16

        def batch(self, indices: Sequence[int]) -> Batch:
            raise OSError("the disk is gone")

    feed = Feed(work_of(TokenLoss(make_model()), Broken()), Sampler(16, SIZES, 3, False), 3, 0, CPU, 0, ahead=True)
    with pytest.raises(OSError, match="the disk is gone"):
        feed.step(1, 2)
