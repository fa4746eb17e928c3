"""The micro batches of a rank, step by step; on a GPU a thread prepares and pins the next step's meanwhile."""

from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from .sampler import Sampler, seed_of
from .work import Batch, Tensors, Work


class MicroBatch(NamedTuple):
    """One micro batch of a rank: its slot in the step, and its samples; none if only other ranks have some left."""

    slot: int
    samples: list[int]
    batch: Batch


class Feed:
    """Makes a rank's micro batches. What is random in one depends on (seed, step, slot) only.

    With `rows`, all are filled up to so many. `ahead` forces the thread, or its absence.
    """

    def __init__(
        self,
        work: Work,
        sampler: Sampler,
        seed: int,
        rank: int,
        device: torch.device,
        rows: int,
        ahead: bool | None = None,
    ) -> None:
        self._work, self._sampler, self._seed, self._rank = work, sampler, seed, rank
        self._device, self._rows = device, rows
        self._thread: ThreadPoolExecutor | None = None
        self._next: Future[list[MicroBatch]] | None = None
        if ahead if ahead is not None else device.type == "cuda":
            self._thread = ThreadPoolExecutor(1, "clusterrun-feed", self._begin_thread)

    def step(self, number: int, last: int) -> list[MicroBatch]:
        """Return the micro batches of a step, and begin to make those of the next one, if this is not the `last`."""
        if self._thread is None:
            return self._load(number)
        current = self._next or self._thread.submit(self._load, number)
        micro_batches = current.result()
        self._next = self._thread.submit(self._load, number + 1) if number < last else None
        return micro_batches

    def tensors(self, batch: Batch) -> Tensors:
        """Return what the loss takes, on the device. Without a thread torch's default generator has to be seeded."""
        if self._thread is None:
            return prepared(self._work, batch, self._device, rows=self._rows)
        return to_device(batch.tensors, self._device)

    def _load(self, number: int) -> list[MicroBatch]:
        samples, slots = self._work.train, self._sampler.rank_slots(number, self._rank)
        loaded = [MicroBatch(slot, chosen, samples.batch(chosen or [0])) for slot, chosen in slots]
        if self._thread is None:
            return loaded
        return [micro._replace(batch=self._ready(number, micro)) for micro in loaded]

    def _ready(self, number: int, micro: MicroBatch) -> Batch:
        """Return a batch whose tensors are what the loss takes, in pinned memory."""
        random = torch.Generator().manual_seed(seed_of(self._seed, "step", number, micro.slot))
        tensors = prepare(self._work, micro.batch.tensors, random, rows=self._rows)
        if self._device.type == "cuda":
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return micro.batch._replace(tensors=tensors)

    def _begin_thread(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread: pinning would take memory of the first GPU


def prepare(work: Work, tensors: Tensors, random: torch.Generator, *, rows: int = 0, training: bool = True) -> Tensors:
    """Return what a task's loss takes of a batch, on the CPU."""
    return tensors if work.prepare is None else work.prepare(tensors, random, rows, training)


def prepared(work: Work, batch: Batch, device: torch.device, *, rows: int = 0, training: bool = True) -> Tensors:
    """Return what a task's loss takes of a batch, on the device, at once; it draws from torch's default generator."""
    return to_device(prepare(work, batch.tensors, torch.default_generator, rows=rows, training=training), device)


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """Move a micro batch to the device; from pinned memory without waiting."""
    if device.type == "cpu":
        return tensors
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
