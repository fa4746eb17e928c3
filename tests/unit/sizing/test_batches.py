"""Steps and learning rates by number of GPUs: the guides' tables, and the worker's own rules."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError, WorkerError
from clusterrun.sizing.batches import Training, batch_notes, plan_batches, solve_batch
from clusterrun.sizing.text import format_rate
from clusterrun.worker.training import schedule, sizes

GUIDE = Training(samples=29_500, micro_batch_size=4, lr=1.25e-6)


def test_the_guides_table_and_the_corrected_row() -> None:
    plans = plan_batches(GUIDE, [1, 2, 4, 8])
    assert [plan.global_batch for plan in plans] == [4, 8, 16, 32]
    assert [plan.steps_drop_last for plan in plans] == [7375, 3687, 1843, 921], "as the guides print it"
    assert [plan.steps_per_epoch for plan in plans] == [7375, 3688, 1844, 922], "with the last, smaller batch"
    assert [f"{100 * plan.share:.3g}%" for plan in plans] == ["100%", "50%", "25%", "12.5%"]


def test_the_guides_learning_rates() -> None:
    plans = plan_batches(GUIDE, [1, 2, 4])
    assert [format_rate(plan.lr_linear or 0) for plan in plans] == ["1.25e-6", "2.5e-6", "5.0e-6"]
    assert [format_rate(plan.lr_sqrt or 0) for plan in plans] == ["1.25e-6", "1.77e-6", "2.5e-6"]


def test_a_rate_for_another_batch() -> None:
    (plan,) = plan_batches(replace(GUIDE, base_batch_size=64, lr=1e-3), [16])
    assert (plan.lr_linear, plan.lr_sqrt) == (1e-3, 1e-3)


@pytest.mark.parametrize(("gpus", "warned"), [([1, 8], True), ([64, 128], False)])
def test_one_warning_below_a_batch_of_256(gpus: list[int], warned: bool) -> None:
    notes = batch_notes(GUIDE, plan_batches(GUIDE, gpus))
    assert (len(notes) == 1 and "below 256" in notes[0]) == warned
    assert batch_notes(replace(GUIDE, lr=None), plan_batches(GUIDE, gpus)) == []


def test_the_warning_names_where_it_ends() -> None:
    (note,) = batch_notes(GUIDE, plan_batches(GUIDE, [1, 32, 64]))
    assert "below 256 on up to 32 GPUs" in note


def test_a_warm_up_that_is_set_stays_and_a_suggested_one_fits() -> None:
    assert [plan.warmup for plan in plan_batches(replace(GUIDE, warmup=100), [1, 8])] == [100, 100]
    assert [plan.warmup for plan in plan_batches(GUIDE, [1, 8])] == [222, 28], "3 % of the steps"
    assert plan_batches(replace(GUIDE, steps=6), [1])[0].warmup == 6


def test_the_length_of_the_training() -> None:
    assert plan_batches(replace(GUIDE, epochs=2.5), [8])[0].total_steps == math.ceil(2.5 * 922)
    assert plan_batches(replace(GUIDE, epochs=2, drop_last=True), [8])[0].total_steps == 2 * 921
    assert plan_batches(replace(GUIDE, steps=1000), [8])[0].total_steps == 1000


def test_data_that_fills_no_batch() -> None:
    with pytest.raises(RequestError, match="3 samples cannot fill one global batch of 4"):
        plan_batches(replace(GUIDE, samples=3), [1, 2])
    training = replace(GUIDE, samples=5, lr=None)
    plans = plan_batches(training, [1, 2])
    assert [plan.steps_drop_last for plan in plans] == [1, 0] and [plan.steps_per_epoch for plan in plans] == [2, 1]
    assert batch_notes(training, plans) == [
        "with drop_last, an epoch on 2 GPUs has no steps: the data does not fill one batch"
    ]


def test_batches_that_do_not_divide() -> None:
    with pytest.raises(RequestError, match="30 cannot be split evenly over 4 GPUs") as error:
        solve_batch(Training(1, global_batch_size=30), 4)
    assert error.value.hint == "use --global-batch 28 or 32"
    with pytest.raises(RequestError, match="micro batches of 4") as error:
        solve_batch(Training(1, global_batch_size=10, micro_batch_size=4), 1)
    assert error.value.hint == "use --global-batch 8 or 12"
    with pytest.raises(RequestError, match="the batch size is not set"):
        solve_batch(Training(1), 1)
    with pytest.raises(RequestError) as error:
        solve_batch(Training(1, global_batch_size=32, micro_batch_size=2, grad_accum_steps=2), 4)
    assert error.value.hint == "omit the global batch, the micro batch or the accumulation, or use --gpus 8"


size = st.integers(0, 40)


@given(global_batch=size, micro=size, accum=size, gpus=st.integers(1, 12), default=st.integers(1, 32))
def test_the_batches_are_those_of_a_shipped_task(
    global_batch: int, micro: int, accum: int, gpus: int, default: int
) -> None:
    batches = Training(1, global_batch, micro, accum, default)
    try:
        real = sizes.solve(global_batch, micro, accum, gpus, default)
    except WorkerError:
        with pytest.raises(RequestError):
            solve_batch(batches, gpus)
        return
    assert solve_batch(batches, gpus) == (real.global_batch_size, real.micro_batch_size, real.grad_accum_steps)


@given(samples=st.integers(40, 5000), micro=st.integers(1, 5), gpus=st.integers(1, 8))
def test_steps_and_rates_are_those_of_a_shipped_task(samples: int, micro: int, gpus: int) -> None:
    from clusterrun.worker.training.sampler import (
        Sampler,  # imports torch: a second for whoever only collects the tests
    )

    (plan,) = plan_batches(Training(samples, micro_batch_size=micro, lr=1e-3), [gpus])
    batches = sizes.solve(0, micro, 0, gpus, 16)
    assert plan.steps_per_epoch == Sampler(samples, batches, 1, drop_last=False).steps_per_epoch
    assert plan.steps_drop_last == Sampler(samples, batches, 1, drop_last=True).steps_per_epoch
    assert plan.lr_linear == schedule.scaled(1e-3, "linear", plan.global_batch, micro)
    assert plan.lr_sqrt == schedule.scaled(1e-3, "sqrt", plan.global_batch, micro)
