"""A loss that swings is told from one that is only noisy, falls in steps, or has spikes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from clusterrun.base.oscillation import describe
from clusterrun.base.printed_progress import LOSSES
from clusterrun.base.series import Thinned

Curve = Callable[[random.Random, list[float]], list[float]]
CURVES = 300  # of each kind


def falling(rng: random.Random) -> list[float]:
    """A loss without noise that falls, fast or slowly, to any part of its first value, or hardly at all."""
    count = rng.choice([30, 40, 64, 100, 150, 400])
    start = rng.uniform(0.5, 11)
    end, speed, power = start * rng.uniform(0.0005, 1), rng.uniform(0.5, 12) / count, rng.uniform(0.1, 0.6)
    if rng.random() < 0.5:
        return [end + (start - end) * math.exp(-speed * i) for i in range(count)]
    return [end + (start - end) * (1 + i) ** -power for i in range(count)]


def noise_in_logarithms(rng: random.Random, loss: list[float]) -> list[float]:
    size = rng.uniform(0, rng.choice([0.02, 0.1, 0.3, 0.7, 1.2]))
    return [value * math.exp(rng.gauss(0, size)) for value in loss]


def noise_of_any_size(rng: random.Random, loss: list[float]) -> list[float]:
    size = rng.uniform(0, 0.95)
    return [value * rng.uniform(1 - size, 1 + size) for value in loss]


def noise_with_long_tails(rng: random.Random, loss: list[float]) -> list[float]:
    size = rng.uniform(0, 0.5)
    return [value * math.exp(max(-5, min(5, size * rng.gauss(0, 1) / abs(rng.gauss(0, 1))))) for value in loss]


def two_spikes(rng: random.Random, loss: list[float]) -> list[float]:
    spiked = noise_in_logarithms(random.Random(rng.random()), loss)
    for _ in range(2):
        at, height, lasting = rng.randrange(len(loss)), rng.uniform(0, 2) * loss[0], rng.uniform(0.3, len(loss) / 15)
        for i in range(at, len(loss)):
            spiked[i] += height * math.exp((at - i) / lasting)
    return spiked


def bad_batches(rng: random.Random, loss: list[float]) -> list[float]:
    return [value * rng.uniform(0.8, 1.2) * (rng.uniform(2, 10) if rng.random() < 0.03 else 1) for value in loss]


def slow_drift(rng: random.Random, loss: list[float]) -> list[float]:
    memory, size, at = rng.uniform(0.5, 0.98), rng.uniform(0.01, 0.1), 0.0
    drifting = []
    for value in loss:
        at = memory * at + rng.gauss(0, size * math.sqrt(1 - memory**2))
        drifting.append(value * math.exp(at))
    return drifting


def easy_and_hard_data_by_turns(rng: random.Random, loss: list[float]) -> list[float]:
    size, period = rng.uniform(0, 0.11), rng.uniform(5, len(loss) / 2)
    return [value * (1 + size * math.sin(2 * math.pi * i / period)) for i, value in enumerate(loss)]


def mean_of_each_epoch_so_far(rng: random.Random, loss: list[float]) -> list[float]:
    period, noisy = rng.randrange(5, len(loss) // 2), noise_of_any_size(rng, loss)
    epochs = [noisy[i - i % period : i + 1] for i in range(len(noisy))]
    return [sum(seen) / len(seen) for seen in epochs]


def two_kinds_of_data(rng: random.Random, loss: list[float]) -> list[float]:
    return [value * (1 if rng.random() < 0.5 else rng.uniform(1.5, 3)) for value in loss]


def almost_learned(rng: random.Random, loss: list[float]) -> list[float]:
    low = [0.001 * loss[0] + value * (0.001 if i > len(loss) / 5 else 1) for i, value in enumerate(loss)]
    return [value * (rng.uniform(1, 30) if rng.random() < 0.1 else rng.uniform(0.5, 2)) for value in low]


def seen(losses: Sequence[float]) -> list[float]:
    """The losses that the job keeps of a series."""
    kept = Thinned[float](LOSSES)
    for loss in losses:
        kept.add(loss)
    return kept.values


@pytest.mark.parametrize(
    "curve",
    [noise_in_logarithms, noise_of_any_size, noise_with_long_tails, two_spikes, bad_batches, slow_drift,
     easy_and_hard_data_by_turns, mean_of_each_epoch_so_far, two_kinds_of_data, almost_learned],
)  # fmt: skip
def test_no_normal_curve_is_said_to_oscillate(curve: Curve) -> None:
    rng = random.Random(curve.__name__)
    for number in range(CURVES):
        losses = seen(curve(rng, falling(rng)))
        assert describe(losses) == "", (number, losses)


def waves(count: int, period: float, low: float = 2.0, high: float = 5.0, noise: float = 0.03) -> list[float]:
    rng = random.Random(1)
    swing = [(1 - math.cos(2 * math.pi * i / period)) / 2 for i in range(count)]
    return [(low + (high - low) * part) * math.exp(rng.gauss(0, noise)) for part in swing]


@pytest.mark.parametrize("count", [60, 128, 1000, 16_000])
def test_a_loss_that_swings_is_described_with_what_to_try(count: int) -> None:
    assert describe(seen(waves(count, count / 4))).startswith("the loss oscillates: it rose by 1.")


def test_a_loss_that_leaps_up_again_and_again_oscillates() -> None:
    leaps = [1.5 + 4 * math.exp(-(i % 15) / 4) * (i > 14) for i in range(64)]
    assert describe([4.0, 3.5, 3.0, *leaps]) == (
        "the loss oscillates: it rose by 1.5 or more and fell again 3 times;"
        " try a longer warm-up, a lower learning rate, or gradient accumulation"
    )


def test_what_is_past_too_short_too_small_or_another_quantity_is_not_described() -> None:
    swinging = waves(60, 15)
    assert describe(swinging)
    assert describe([*swinging, *[2.0] * 70]) == ""  # it has ceased
    assert describe(swinging[:29]) == ""
    assert describe([10.0] * 3 + waves(60, 15, 1.0, 2.0)) == ""  # a tenth of the first loss
    assert describe(waves(60, 30)) == ""  # twice
    assert describe([*swinging, -0.1]) == describe([*swinging, math.inf]) == describe([]) == ""


def test_losses_of_any_size_are_judged_alike() -> None:
    for scale in (1e-300, 1e-9, 1e9, 1e300):
        assert describe([scale * loss for loss in waves(60, 15)])
    assert describe([1e-308, 1e308] * 40) == ""
