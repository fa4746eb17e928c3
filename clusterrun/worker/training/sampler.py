"""The order of samples: a function of the seed and the step, so that there is no state to save."""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass

import torch

from ...base.errors import WorkerError
from ...base.units import plural
from .sizes import BatchSizes


@dataclass(frozen=True)
class Sampler:
    """Maps (seed, step, slot) to samples, where a slot is a micro batch's place in the global batch.

    Every sample comes once per epoch. The last global batch of an epoch is smaller, or dropped with `drop_last`. With
    the same micro batch size, another world size gets the same slots.
    """

    samples: int
    sizes: BatchSizes
    seed: int
    drop_last: bool

    def __post_init__(self) -> None:
        if self.steps_per_epoch == 0:
            raise WorkerError(
                f"{plural(self.samples, 'sample')} cannot fill one global batch of {self.sizes.global_batch_size:,}:"
                " set a smaller global_batch_size, or drop_last=false"
            )

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(self.samples, self.sizes.global_batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def slots(self, step: int) -> list[list[int]]:
        """Return the sample indices of each slot of a step. Steps count from 1; an incomplete batch has fewer slots."""
        epoch, batch = divmod(step - 1, self.steps_per_epoch)
        size, micro = self.sizes.global_batch_size, self.sizes.micro_batch_size
        samples = _permutation(self.samples, self.seed, epoch)[batch * size : (batch + 1) * size].tolist()
        return [samples[i : i + micro] for i in range(0, len(samples), micro)]

    def rank_slots(self, step: int, rank: int) -> list[tuple[int, list[int]]]:
        """Return this rank's (slot, sample indices) of a step: as many on each rank, some perhaps empty."""
        slots = self.slots(step)
        world = self.sizes.world_size
        return [
            (slot, slots[slot] if slot < len(slots) else [])
            for slot in range(rank, math.ceil(len(slots) / world) * world, world)
        ]


@functools.lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> torch.Tensor:
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed_of(seed, "epoch", epoch)))


def seed_of(*parts: int | str) -> int:
    """Hash numbers and strings into one 63-bit seed, the same on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def reseed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of this device. `torch.manual_seed` seeds all devices and takes 0.2 ms."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
