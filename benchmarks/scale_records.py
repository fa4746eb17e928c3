"""The records of 80,000 ranks on 10,000 nodes: what they and their readers cost, and when a stopped rank is named.

The files are real, and so are the recorder and the watchdog; no rank runs. For `benchmarks.scale_sim`.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from clusterrun.records.progress import SCREEN, SUMMARY, read_ranks
from clusterrun.run_folder import rank_records
from clusterrun.run_folder.rank_records import ANNOUNCE_S, SILENT_INTERVALS
from clusterrun.state.show import ranks_line
from clusterrun.worker.job import hung_step, watchdog
from clusterrun.worker.job.watchdog import SAMPLED, look_pace
from clusterrun.worker.node import probe
from clusterrun.worker.rank import orphans
from clusterrun.worker.rank.distenv import DEFAULT_PROGRESS_INTERVAL, DistEnv
from clusterrun.worker.rank.progress import Progress, Recorder

NODES, PER_NODE = 10_000, 8
VERSIONS = {"python": "3.11.7", "torch": "2.13.0+cu130", "nccl": "2.28.3", "driver": "580.65.06", "machine": "0" * 36}


def facts_of(rank: int) -> dict[str, Any]:
    """Return the facts of a rank as a GPU node posts them."""
    node = f"gpu-rack{rank // PER_NODE // 16:03}-{rank // PER_NODE:05}"
    place = {"rank": rank, "local_rank": rank % PER_NODE, "node_rank": rank // PER_NODE, "node": node, "host": node}
    gpu = {"visible": PER_NODE, "device": rank % PER_NODE, "uuid": f"GPU-{rank:036}"}
    return place | gpu | VERSIONS | {"pid": 4711 + rank, "task": rank, "cores": 192}


def rank_of(number: int, world: int, port: int) -> DistEnv:
    facts = facts_of(number)
    return DistEnv(
        number, facts["local_rank"], world, PER_NODE, facts["node_rank"], facts["node"], facts["host"], number,
        "slurm", ("127.0.0.1", port),
    )  # fmt: skip


class MetadataCount:
    """Counts the operations below a folder that a file system's metadata server gets: all but reads and writes."""

    EVENTS = ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.link", "os.mkdir", "os.chmod")

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.operations = 0
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in self.EVENTS and str(arguments[0]).startswith(self._folder):
            self.operations += 1

    def of(self, action: Callable[[], Any]) -> int:
        """Return the operations of an action."""
        before = self.operations
        action()
        return self.operations - before


def simulate_records(folder: Path) -> dict[str, float]:
    """Write the heartbeats of all ranks as they do, and return what they and their readers cost.

    With spare nodes, so that the ranks look at the supervisor; the ranks advance.
    """
    (folder / "attempt_number").write_text("1\n")
    os.environ |= {"CLUSTERRUN_SPARE_NODES": "1", "SLURM_JOB_ID": "1"}
    os.environ |= {"CLUSTERRUN_ATTEMPT_NUMBER": "1", "CLUSTERRUN_ATTEMPT_NUMBER_FILE": str(folder / "attempt_number")}
    (folder / orphans.ALIVE).write_text("{}")
    progress = Progress()
    progress.enter("training")
    progress.steps = 100_000
    progress.gpu = lambda: {
        "name": "NVIDIA H100 80GB HBM3", "use": 97, "memory_gib": 71.25, "memory_total_gib": 79.65, "temperature": 61
    }  # fmt: skip
    recorders = []
    progress.step = 1234
    for rank in range(NODES * PER_NODE):
        one = Recorder(progress, rank_of(rank, NODES * PER_NODE, 1), folder, DEFAULT_PROGRESS_INTERVAL)
        one.poll()
        if rank < PER_NODE:
            recorders.append(one)
        else:
            one.slot.close()
    files = len([*folder.glob("node-*")]) / NODES

    def beat() -> None:
        progress.enter("training")  # then a record is due
        for one in recorders:
            one.poll()

    count = MetadataCount(folder)
    one, pace = recorders[0], look_pace(DEFAULT_PROGRESS_INTERVAL, NODES)
    per_s = count.of(beat) * NODES / one.interval
    per_s += count.of(one.look) * NODES * PER_NODE / one.look_interval
    per_s += count.of(lambda: rank_records.read(folder)) / pace
    per_s += SAMPLED * count.of(lambda: rank_records.read_node(folder, 0)) / look_pace(DEFAULT_PROGRESS_INTERVAL, 1)
    return {
        "files": files,
        "metadata": per_s,
        "interval": one.interval,
        "pace": pace,
        "read": shortest(lambda: ranks_line(read_ranks(folder, SUMMARY), time.time())),
        "read_screen": shortest(lambda: read_ranks(folder, SCREEN)),
        "look": shortest(lambda: rank_records.read(folder)),
    }


def announce(folder: str, nodes: range, frozen: int, stopped: float) -> None:
    """Write as the ranks of these nodes do once they have stood still: all but the frozen one announce it."""
    random = Random(nodes.start)
    due = {rank: random.uniform(0, ANNOUNCE_S + 1.2) for node in nodes for rank in ranks_of(node) if rank != frozen}
    for rank in sorted(due, key=due.__getitem__):
        time.sleep(max(0.0, stopped + SILENT_INTERVALS * DEFAULT_PROGRESS_INTERVAL + due[rank] - time.time()))
        put_record(Path(folder), rank, {"time": time.time(), "advanced": stopped, "still": True})


def ranks_of(node: int) -> range:
    return range(node * PER_NODE, (node + 1) * PER_NODE)


def put_record(folder: Path, rank: int, document: dict[str, Any]) -> None:
    """Write the record of a rank at step 50."""
    node = facts_of(rank)["node"]
    known = {"interval": 107.0, "phase": "training", "node": node, "pid": 4711 + rank, "step": 50, "stepped": 0.0}
    slot = rank_records.RankSlot(folder, rank, rank % PER_NODE)
    slot.write_progress(known | {"collectives": {"0": 100}} | document)
    slot.close()


def simulate_frozen_rank(folder: Path) -> float:
    """Return the seconds from the stop of one of 80,000 ranks until the watchdog has named it.

    The records are real files and so is the watchdog; the look at the rank's process is a stub: no Slurm runs here.
    """
    frozen = NODES * PER_NODE // 2 + 3
    stopped = time.time()
    first = {"first_step": 1, "first_step_at": -98.0}  # steps of two seconds
    for rank in range(NODES * PER_NODE):
        put_record(folder, rank, {"time": stopped, "advanced": stopped - 1.0} | first)
    names: list[str] = []
    hung_step.probe = lambda job, marks: {mark.pid: probe.STOPPED for mark in marks if mark.rank == frozen}  # type: ignore[assignment]
    context = multiprocessing.get_context("spawn")
    options = SimpleNamespace(local=True, hang_timeout=None, spare_nodes=0, max_restarts=1)
    job: Any = SimpleNamespace(
        attempt_dir=folder, options=options, token="", nodes=range(NODES), earlier_starts=1, record=None
    )
    with subprocess.Popen(["sleep", "600"]) as launch:
        guard = watchdog.Watchdog(job, launch, NODES * PER_NODE, names.append, lambda: False, ends_it=True)
        guard.start()
        stopped = time.time()
        half = NODES // 2
        writers = [
            context.Process(target=announce, args=(str(folder), nodes, frozen, stopped))
            for nodes in (range(half), range(half, NODES))
        ]
        for writer in writers:
            writer.start()
        launch.wait(600)
        took = time.time() - stopped
        for writer in writers:
            writer.join()
        guard.close(0)
        for thread in threading.enumerate():
            if thread.name == "clusterrun-watchdog":
                thread.join()  # else it writes to the folder while that is deleted
    print(names[0][:160])
    assert f"rank {frozen} on " in names[0]
    return took


def shortest(action: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of three calls."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)
