"""The three batch sizes, the order of samples, and the learning rate."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import WorkerError
from clusterrun.worker.training.sampler import Sampler
from clusterrun.worker.training.schedule import learning_rate, scaled
from clusterrun.worker.training.sizes import BatchSizes, solve

small = st.integers(1, 12)


@given(micro=small, accum=small, world=small)
def test_any_two_sizes_give_the_third(micro: int, accum: int, world: int) -> None:
    whole = BatchSizes(micro * accum * world, micro, accum, world)
    assert solve(0, micro, accum, world, 16) == whole
    assert solve(whole.global_batch_size, micro, 0, world, 16) == whole
    assert solve(whole.global_batch_size, 0, accum, world, 16) == whole
    assert solve(whole.global_batch_size, micro, accum, world, 16) == whole


@given(total=st.integers(1, 300), micro=st.integers(0, 12), accum=st.integers(0, 12), world=small)
def test_sizes_always_multiply_to_the_global_batch(total: int, micro: int, accum: int, world: int) -> None:
    try:
        sizes = solve(total, micro, accum, world, 16)
    except WorkerError as error:
        assert error.status == 2
        return
    assert sizes.micro_batch_size * sizes.grad_accum_steps * world == sizes.global_batch_size == total


def test_the_micro_batch_alone_means_no_accumulation() -> None:
    assert solve(0, 2, 0, 4, 16) == BatchSizes(8, 2, 1, 4)  # the guides' "2 per GPU, effective 8 on 4 GPUs"


@pytest.mark.parametrize("world", [1, 3, 5, 16, 64])
def test_with_no_size_given_every_world_can_train(world: int) -> None:
    sizes = solve(0, 0, 0, world, 16)
    assert sizes.grad_accum_steps == 1
    assert 16 <= sizes.global_batch_size < 16 + world or sizes.global_batch_size == world


def test_an_impossible_global_batch_names_the_nearest_ones() -> None:
    with pytest.raises(WorkerError, match="use global_batch_size=28 or 32"):
        solve(30, 0, 0, 4, 16)
    with pytest.raises(WorkerError, match=r"use global_batch_size=24 or 36, or micro_batch_size=2"):
        solve(32, 3, 0, 4, 16)
    with pytest.raises(WorkerError, match="use global_batch_size=4"):
        solve(3, 0, 0, 4, 16)


def test_three_sizes_that_disagree_name_the_product() -> None:
    with pytest.raises(WorkerError, match="set global_batch_size=16"):
        solve(32, 2, 2, 4, 16)


orders = st.builds(
    Sampler,
    st.integers(40, 200),
    st.builds(lambda m, a, w: BatchSizes(m * a * w, m, a, w), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 3),
    st.booleans(),
)


@given(sampler=orders)
def test_every_sample_comes_once_per_epoch_over_all_ranks(sampler: Sampler) -> None:
    seen = [
        [
            i
            for step in range(1, sampler.steps_per_epoch + 1)
            for _, samples in sampler.rank_slots(step, rank)
            for i in samples
        ]
        for rank in range(sampler.sizes.world_size)
    ]
    together = [i for mine in seen for i in mine]
    assert len(together) == len(set(together))
    dropped = sampler.samples % sampler.sizes.global_batch_size if sampler.drop_last else 0
    assert len(together) == sampler.samples - dropped


@given(sampler=orders, step=st.integers(1, 60))
def test_ranks_take_the_same_number_of_micro_batches(sampler: Sampler, step: int) -> None:
    assert len({len(sampler.rank_slots(step, rank)) for rank in range(sampler.sizes.world_size)}) == 1


@given(st.integers(40, 200), st.integers(1, 4), st.integers(1, 40), st.booleans())
def test_two_ranks_see_the_slots_of_one_rank_with_two_accumulations(n: int, micro: int, step: int, drop: bool) -> None:
    two = Sampler(n, BatchSizes(2 * micro, micro, 1, 2), 1, drop)
    one = Sampler(n, BatchSizes(2 * micro, micro, 2, 1), 1, drop)
    assert two.slots(step) == one.slots(step)
    filled = {slot: samples for rank in (0, 1) for slot, samples in two.rank_slots(step, rank) if samples}
    assert filled == dict(one.rank_slots(step, 0))


def test_each_epoch_has_its_own_order() -> None:
    sampler = Sampler(64, BatchSizes(64, 64, 1, 1), 1, False)
    assert sorted(sampler.slots(1)[0]) == sorted(sampler.slots(2)[0])
    assert sampler.slots(1) != sampler.slots(2)


def test_too_few_samples_for_a_full_batch_are_refused_with_drop_last_only() -> None:
    sizes = BatchSizes(16, 16, 1, 1)
    assert Sampler(3, sizes, 1, False).steps_per_epoch == 1
    with pytest.raises(WorkerError, match="drop_last=false"):
        Sampler(3, sizes, 1, True)


@pytest.mark.parametrize(("gpus", "steps"), [(1, 7375), (2, 3687), (4, 1843), (8, 921)])
def test_steps_per_epoch_are_the_guides_with_drop_last_and_one_more_without(gpus: int, steps: int) -> None:
    sizes = solve(0, 4, 0, gpus, 16)
    assert Sampler(29_500, sizes, 1, True).steps_per_epoch == steps
    assert Sampler(29_500, sizes, 1, False).steps_per_epoch == math.ceil(29_500 / (4 * gpus))


@pytest.mark.parametrize(("global_batch", "lr"), [(8, 2.5e-6), (16, 5.0e-6)])
def test_linear_scaling_gives_the_rates_of_the_guide(global_batch: int, lr: float) -> None:
    assert scaled(1.25e-6, "linear", global_batch, 4) == pytest.approx(lr)


def test_square_root_scaling_doubles_the_rate_for_a_fourfold_batch() -> None:
    assert scaled(1e-4, "sqrt", 64, 16) == pytest.approx(2e-4)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_rate_warms_up_in_a_line_and_never_exceeds_its_top(schedule: str) -> None:
    rates = [learning_rate(step, 100, 1.0, 10, schedule) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert max(rates) == 1.0
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
