"""Trains under limits of the address space, each in a fork: `… FOLDER CASES`.

CASES is JSON: a name, and the micro batch, "auto" or "fixed", and how many MiB more than it has the process may take.
Below FOLDER/NAME are then its status, its streams and its run.
"""

from __future__ import annotations

import dataclasses
import json
import os
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


def main() -> None:
    folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    # warm up: threads and libraries take their address space before the limit is set
    loss(Wide(), Ones().batch([0]).tensors).backward()
    for name, case in cases.items():
        (folder / name).mkdir()
        if os.fork() == 0:
            for stream, descriptor in (("out", 1), ("err", 2)):
                os.dup2(os.open(folder / name / stream, os.O_WRONLY | os.O_CREAT), descriptor)
            os._exit(run(folder / name, *case))
        (folder / name / "status").write_text(str(os.waitstatus_to_exitcode(os.wait()[1])))


def loss(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return model.layer(tensors["x"]).square().sum()


def run(folder: Path, micro: int, how: str, more: int) -> int:
    """Train under the limit and return the exit status."""
    config = Config(micro_batch_size=micro, auto_micro_batch=how == "auto")
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more * MIB, resource.RLIM_INFINITY))
    work = Work(Wide(), Ones(), Ones(), loss)
    status = 0
    try:
        train(work, config, distenv.resolve({}), RunEnv(run_dir=folder), torch.device("cpu"))
    except WorkerError as error:
        print(error, file=sys.stderr)
        status = error.status
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    main()
