"""The goodput of a run with Llama 3's failure rates, replayed: `python -m benchmarks.goodput`, in `make scale-sim`.

A seeded simulation of 54 days on 16,384 GPUs in which each of 419 failures ends the launch, and clusterrun starts the
ranks again. Only the rate and the kinds of failures are those of Llama 3: DDP needs a model that fits on one GPU. Each
assumption is printed with its source; those without a measurement are called assumed. Goodput is the time of training
steps that were kept, by all the time of the allocation.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from dataclasses import dataclass, replace

from clusterrun.run_folder import rank_records
from clusterrun.worker.job import hung_step, stall, watchdog
from clusterrun.worker.rank.distenv import DEFAULT_PROGRESS_INTERVAL

DAY = 86_400.0
TARGET = 0.95
RUNS, SEED = 200, 12
PAPER = "The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.4, table 5"
#: The unexpected interruptions of the paper: how many, and how a launch meets them.
FAILURES = {
    "process": 54 + 7 + 2,  # software bug, NCCL watchdog timeout, dependency
    "gpu": 148 + 72 + 19 + 17 + 6 + 6 + 2 + 2,  # GPU, HBM3, SRAM, GSP, silent corruption, heat, CPU, memory
    "node": 32 + 3 + 3 + 2 + 2,  # host maintenance, SSD, power supply, chassis, IO board
    "network": 35 + 7,  # switch or cable, NIC
}


@dataclass(frozen=True)
class Cluster:
    """What is assumed: times in seconds, sizes in GB, rates in GB/s."""

    days: float = 54.0
    nodes: int = 2048
    spare_nodes: int = 32
    failures: int = 419
    parameters: float = 3e9
    start: float = 30.0
    join: float = 25.0
    communicators: float = 30.0
    first_step: float = 20.0
    requeue: float = 300.0
    storage: float = 2000.0
    node_read: float = 5.0
    hashing: float = 1.5
    host_copy: float = 10.0
    write: float = 2.0

    @property
    def size(self) -> float:
        """The size of a checkpoint in GB: weights and both of Adam's moments in 4 bytes."""
        return 12 * self.parameters / 1e9

    @property
    def load(self) -> float:
        """Seconds to verify and load a checkpoint: rank 0 hashes it, then each node reads it once."""
        return self.size / self.hashing + max(self.nodes * self.size / self.storage, self.size / self.node_read)

    @property
    def stop(self) -> float:
        """Seconds that training stops for a checkpoint; it is written in the background."""
        return self.size / self.host_copy

    @property
    def written(self) -> float:
        """Seconds until a checkpoint is on disk."""
        return self.size / self.write

    @property
    def interval(self) -> float:
        """Seconds of training between two checkpoints, by Young's formula; never so short that writes pile up."""
        return max(math.sqrt(2 * self.stop * self.days * DAY / self.failures), self.written)

    @property
    def launch(self) -> float:
        """Seconds from the start of the ranks to the end of their first step."""
        return self.start + self.join + self.communicators + self.load + self.first_step


def detection(it: Cluster) -> dict[str, float]:
    """Return the seconds until a failure ends the launch, at the most, by the constants of the watchdog."""
    heartbeat = max(DEFAULT_PROGRESS_INTERVAL, 8 * it.nodes / rank_records.MOST_WRITES_PER_S)
    look = watchdog.look_pace(DEFAULT_PROGRESS_INTERVAL, it.nodes)
    silent = max(stall.SILENT_S, rank_records.SILENT_INTERVALS * heartbeat)
    return {
        "process": 2.0,
        "gpu": 2.0,
        "node": silent + look + hung_step.PROBE_S,
        "network": stall.SHORTEST + heartbeat + look + watchdog.EVIDENCE_S,
    }


def assumptions(it: Cluster) -> list[tuple[str, str, str]]:
    """Return each assumption, its value and its source."""
    detected = detection(it)
    return [
        ("failures", f"{it.failures} in {it.days:.0f} days, at random moments", PAPER),
        ("kinds", ", ".join(f"{count} {kind}" for kind, count in FAILURES.items()), "the same, grouped here"),
        ("nodes", f"{it.nodes} x 8 GPUs, {it.spare_nodes} spare ones in the allocation", "the paper; spares assumed"),
        ("a process that dies", f"after {detected['process']:.0f} s", "bound of `make faults`, row 1, in the lab"),
        ("a lost node", f"{detected['node']:.0f} s", "the watchdog: three heartbeats, a look, the probe"),
        ("a network that hangs", f"{detected['network']:.0f} s", "the watchdog: limit, a heartbeat, a look, stacks"),
        ("a broken GPU", "ends the next launch too, at its start", "assumed: then the site has drained its node"),
        ("start of the ranks, imports", f"{it.start:.0f} s", "assumed; 4 s to the first step of 2 ranks here"),
        ("join", f"{it.join:.0f} s", "bound of `make scale-sim` for 10,000 ranks (15 s), in proportion"),
        ("NCCL communicators", f"{it.communicators:.0f} s", "MegaScale, arXiv 2402.15627: below 30 s at 10,000 GPUs"),
        ("first step", f"{it.first_step:.0f} s", "assumed, without torch.compile"),
        ("model", f"{it.parameters / 1e9:.0f} billion parameters", "training state of 48 GB per GPU, of 80"),
        ("checkpoint", f"{it.size:.0f} GB", "12 bytes per parameter"),
        ("load a checkpoint", f"{it.load:.0f} s",
         f"assumed: sha256 {it.hashing} GB/s, a node {it.node_read:.0f} GB/s; storage {it.storage:,.0f} GB/s (paper)"),
        ("training stops for a checkpoint", f"{it.stop:.1f} s", f"assumed: a copy at {it.host_copy:.0f} GB/s"),
        ("a checkpoint is written in", f"{it.written:.0f} s", f"assumed: {it.write:.0f} GB/s, in the background"),
        ("checkpoint interval", f"{it.interval:.0f} s", "Young: sqrt(2 x stop x time between failures)"),
        ("spares used up", f"{it.requeue:.0f} s for a requeue with new nodes", "assumed"),
    ]  # fmt: skip


def replay(it: Cluster, draw: random.Random) -> float:
    """Return the goodput of one simulated run, as a share of its time."""
    end, spares, useful = it.days * DAY, it.spare_nodes, 0.0
    kinds = draw.choices(list(FAILURES), weights=list(FAILURES.values()), k=it.failures)
    trains, detected = it.launch, detection(it)  # from when on it trains
    for at, kind in zip(sorted(draw.uniform(0, end) for _ in kinds), kinds, strict=True):
        if at > trains:
            useful += kept(it, at - trains)
        wait = detected[kind] + it.launch
        if kind == "gpu":
            wait += detected[kind] + it.start
        if kind in ("gpu", "node"):
            spares -= 1
        if spares < 0:
            spares, wait = it.spare_nodes, wait + it.requeue
        trains = max(trains, at + wait)  # after a failure during a start, the ranks start again
    rest = max(0.0, end - trains)
    return (useful + rest * it.interval / (it.interval + it.stop)) / end


def kept(it: Cluster, trained: float) -> float:
    """Return the seconds of training that are in a checkpoint on disk after so many seconds since a start."""
    period = it.interval + it.stop
    return math.floor(max(0.0, trained - it.written) / period) * it.interval


def goodput(it: Cluster) -> list[float]:
    """Return the goodput of many simulated runs, sorted."""
    draw = random.Random(SEED)
    return sorted(replay(it, draw) for _ in range(RUNS))


def main() -> None:
    """Print the assumptions and the goodput; exit 1 below the target."""
    it = Cluster()
    for name, value, source in assumptions(it):
        print(f"  {name:32} {value:44} {source}")
    found = goodput(it)
    typical = statistics.median(found)
    print(
        f"goodput of {RUNS} simulated runs: median {typical:.1%}, {found[0]:.1%} to {found[-1]:.1%}"
        f"  target {TARGET:.0%}  {'met' if typical >= TARGET else 'NOT MET'}"
    )
    others = {
        "1 billion parameters": replace(it, parameters=1e9),
        "4 billion parameters": replace(it, parameters=4e9),
        "starts that take 100 s longer": replace(it, start=it.start + 100),
        "six times the GPUs and the failures": replace(it, nodes=6 * it.nodes, failures=6 * it.failures),
    }
    for what, other in others.items():
        print(f"  with {what:36} {statistics.median(goodput(other)):.1%}")
    sys.exit(0 if typical >= TARGET else 1)


if __name__ == "__main__":
    main()
