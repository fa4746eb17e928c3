"""What `clusterrun check JOBID` compares of a training: precision, batch sizes, steps, and the samples of all ranks.

Rank 0 writes `training.json` into the attempt's folder; `clusterrun/compare/expected.py` reads it on the login node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...run_folder import ends
from ..node.log import say
from ..rank.distenv import DistEnv, RunEnv
from .consensus import Consensus
from .sampler import Sampler

MOST_STEPS = 2000  # of the first epoch: enough to see ranks that share samples, and quick
FACTOR, MODULUS = 2_654_435_761, 2**31  # sums of a million hashes are exact as float64


def write_facts(
    sampler: Sampler, consensus: Consensus, dist: DistEnv, run: RunEnv, *, precision: str, requested: str, steps: int
) -> None:
    """Add the shares of all ranks, and write the facts on rank 0. All ranks call it."""
    covered = min(sampler.steps_per_epoch, MOST_STEPS)
    mine = [i for step in range(1, covered + 1) for _, samples in sampler.rank_slots(step, dist.rank) for i in samples]
    count, digest = consensus.sum(list(map(float, share(mine))))
    if dist.rank != 0:
        return
    every = [i for step in range(1, covered + 1) for samples in sampler.slots(step) for i in samples]
    sizes = sampler.sizes
    document: dict[str, Any] = {
        "precision": precision,
        "precision_requested": requested,
        "samples": sampler.samples,
        "micro_batch_size": sizes.micro_batch_size,
        "grad_accum_steps": sizes.grad_accum_steps,
        "drop_last": sampler.drop_last,
        "steps": steps,
        "steps_per_epoch": sampler.steps_per_epoch,
        "shared_steps": covered,
        "shared_samples": len(every),
        "seen_samples": int(count),
        "each_once": share(every) == (int(count), int(digest)),
    }
    add_facts(run, document)


def add_facts(run: RunEnv, facts: Mapping[str, Any]) -> None:
    """Add facts to training.json; an error is only reported."""
    if run.attempt_dir is None:
        return
    try:
        ends.write_training(run.attempt_dir, facts)
    except OSError as error:
        say(f"cannot write {ends.TRAINING}: {error.strerror}")


def share(samples: list[int]) -> tuple[int, int]:
    """Return the number of samples and a sum over them that changes if one is replaced by another."""
    return len(samples), sum((i + 1) * FACTOR % MODULUS for i in samples)
