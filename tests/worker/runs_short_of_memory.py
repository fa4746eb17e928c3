"""Trains under a limit of the address space, MORE MiB above what the process has: `… MICRO AUTO FOLDER MORE`."""

from __future__ import annotations

import dataclasses
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch._dynamo  # each optimizer imports it: not under the limit

from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank import distenv
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.training.loop import train
from clusterrun.worker.training.settings import Training
from clusterrun.worker.training.work import Batch, Work

MIB = 2**20
ROW = 4 * MIB  # bytes of activation for a sample


@dataclasses.dataclass(frozen=True)
class Config(Training):
    steps: int = 2
    eval_every: int = 0


class Wide(torch.nn.Module):
    """One small layer with a large output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, ROW // 4)


class Ones:
    """Samples that are all the same."""

    def __len__(self) -> int:
        return 64

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch({"x": torch.ones(len(indices), 4)}, float(len(indices)), len(indices))


def main() -> int:
    micro, auto, folder = int(sys.argv[1]), sys.argv[2] == "auto", Path(sys.argv[3])
    config = Config(micro_batch_size=micro, auto_micro_batch=auto)
    work = Work(Wide(), Ones(), Ones(), lambda model, tensors: model.layer(tensors["x"]).square().sum())
    # warm up: threads and libraries take their address space before the limit is set
    work.loss(work.model, Ones().batch([0]).tensors).backward()
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[4]) * MIB, resource.RLIM_INFINITY))
    try:
        train(work, config, distenv.resolve({}), RunEnv(run_dir=folder), torch.device("cpu"))
    except WorkerError as error:
        print(error, file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
