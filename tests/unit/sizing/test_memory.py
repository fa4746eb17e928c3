"""The memory of one GPU, by part."""

from __future__ import annotations

import pytest

from clusterrun.base.batches import LOGITS_AT_ONCE
from clusterrun.base.gpus import GIB, find_device
from clusterrun.sizing.memory import ModelSize, estimate_memory, guess_shape, memory_verdict

SMOLLM2_135M = ModelSize(134_515_008, 30, 576, 49_152)


def test_sixteen_bytes_per_parameter() -> None:
    found = estimate_memory(SMOLLM2_135M, 1, 2048, "fp32")
    fixed = found.weights[0] + found.gradients[0] + found.optimizer[0]
    assert fixed == 16 * SMOLLM2_135M.parameters
    assert found.weights[1] == found.weights[0], "no 16-bit copy in fp32"
    assert estimate_memory(SMOLLM2_135M, 1, 2048, "bf16").weights[1] == 6 * SMOLLM2_135M.parameters


def test_under_fsdp_each_gpu_has_its_part_and_what_it_gathers() -> None:
    model = ModelSize(8 * 10**9, 32, 4096, 128_000)
    alone, eight = (estimate_memory(model, 1, 2048, "bf16", shards=shards) for shards in (1, 8))
    n = model.parameters
    assert eight.optimizer == (n, n) and alone.optimizer == (8 * n, 8 * n)
    assert eight.weights == (n // 2 + 2 * n // 16, n // 2 + 2 * n), "two of 32 layers, or all of them, in bf16"
    assert eight.gradients == (n // 2, n // 2 + 4 * n // 16)
    assert eight.activations == alone.activations
    assert estimate_memory(model, 1, 2048, "fp32", shards=8).weights[1] == n // 2 + 4 * n


def test_a_second_copy_of_the_gradients() -> None:
    found = estimate_memory(SMOLLM2_135M, 1, 2048, "bf16", gradient_copies=2)
    assert found.gradients == (4 * SMOLLM2_135M.parameters, 8 * SMOLLM2_135M.parameters)


def test_activations_follow_the_micro_batch_and_fp32_needs_more() -> None:
    one, four = (estimate_memory(SMOLLM2_135M, micro, 2048, "bf16").activations for micro in (1, 4))
    assert four == (4 * one[0], 4 * one[1])
    full = estimate_memory(SMOLLM2_135M, 1, 2048, "fp32").activations
    assert full[0] > one[0] and full[1] > one[1]


def test_a_loss_in_pieces_leaves_the_logits_of_long_batches_out() -> None:
    whole, pieces = (
        estimate_memory(SMOLLM2_135M, 16, 2048, "bf16", whole_logits=whole).activations for whole in (True, False)
    )
    logits = 16 * 2048 * SMOLLM2_135M.vocabulary
    assert whole[0] - pieces[0] == 6 * (logits - LOGITS_AT_ONCE)
    assert whole[1] - pieces[1] == 14 * (logits - LOGITS_AT_ONCE)
    short = (estimate_memory(SMOLLM2_135M, 1, 1024, "bf16", whole_logits=whole) for whole in (True, False))
    assert len(set(short)) == 1


def test_eight_billion_parameters_fit_no_gpu_of_80_gigabytes() -> None:
    found = estimate_memory(guess_shape(8 * 10**9), 1, 2048, "fp16")
    assert memory_verdict(found, find_device("A100-80GB").memory_gib * GIB) == "never"
    assert memory_verdict(found, find_device("H200").memory_gib * GIB) == "maybe"
    assert memory_verdict(found, 1000 * GIB) == "yes"


def test_a_micro_batch_that_is_too_large() -> None:
    found = estimate_memory(SMOLLM2_135M, 512, 2048, "bf16")
    assert memory_verdict(found, 80 * GIB) == "no"


@pytest.mark.parametrize(
    ("parameters", "layers_x_width"), [(8 * 10**9, 32 * 4096), (124 * 10**6, 12 * 768), (1_711_400_000, 24 * 2048)]
)
def test_a_guessed_shape_is_near_a_real_one(parameters: int, layers_x_width: int) -> None:
    guess = guess_shape(parameters)
    assert guess.layers * guess.width == pytest.approx(layers_x_width, rel=0.25)
    assert guess_shape(1).layers == 1
