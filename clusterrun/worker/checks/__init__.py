"""The measurements of `clusterrun check`: each rank measures its node and its links, and writes `rank-N.check`.

The ranks form no process group of the whole run before they measure: one broken node must not hide the others. Each
group of ranks is opened, measured and closed on its own, with a short timeout. A rank writes its file after every
stage, so that a measurement that hangs leaves the earlier ones. `clusterrun/check/nodes.py` judges the files on the
login node; nothing is judged here.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import barriers
from ..distenv import DistEnv, RunEnv
from ..end_records import VERSION, write_json
from ..errors import WorkerError

LONGEST_STAGE_S = {"node": 60.0, "join": 0.0, "names": 30.0, "clock": 30.0, "gemm": 60.0, "links": 180.0}
GRACE_S = 15.0


class Findings:
    """What this rank has measured so far; each stage replaces the file, and has a deadline."""

    def __init__(self, dist: DistEnv, run: RunEnv) -> None:
        self._file = Path(run.attempt_dir or ".") / f"rank-{dist.rank}.check"
        self._deadline = float("inf")
        self._extra_s = {"join": run.join_timeout}
        self.found: dict[str, Any] = {
            "version": VERSION,
            "rank": dist.rank,
            "local_rank": dist.local_rank,
            "node": dist.node,
            "host": dist.host,
            "device": None,
            "stage": "",
            "errors": {},
            "links": [],
        }

    def begin(self, stage: str) -> None:
        """Write what was measured, and begin a stage."""
        self.found["stage"] = stage
        self._deadline = time.monotonic() + LONGEST_STAGE_S.get(stage, 30.0) + self._extra_s.get(stage, 0.0) + GRACE_S
        self.write()

    def stop(self) -> None:
        """End the watch."""
        self._deadline = float("inf")

    def fail(self, stage: str, error: object) -> None:
        """Record why a stage was not measured."""
        self.found["errors"][stage] = (str(error).splitlines() or [type(error).__name__])[0][:300]

    def write(self) -> None:
        """Replace the file; raises OSError."""
        write_json(self._file, self.found)

    def watch(self) -> None:
        """End this rank when a stage exceeds its deadline, from a daemon thread: a collective may never return."""
        threading.Thread(target=self._end_when_late, name="clusterrun-check", daemon=True).start()

    def _end_when_late(self) -> None:
        while time.monotonic() < self._deadline:
            time.sleep(0.5)
        stage = self.found["stage"]
        self.fail(stage, "did not end in time")
        print(f"clusterrun: check: {stage} did not end in time", file=sys.stderr, flush=True)
        self.write()
        os._exit(0)  # another status would end the ranks that still measure


def main(dist: DistEnv, run: RunEnv) -> int:
    """Measure everything and return the exit status of this rank: 0 once it has written what it found."""
    findings = Findings(dist, run)
    findings.begin("node")
    findings.watch()
    from . import node

    found = findings.found
    try:
        found.update(node.measure(dist, run))
    except Exception as error:  # a broken driver may raise anything
        findings.fail("node", error)
    findings.begin("join")
    try:
        ranks = _join(dist, run, found)
        _measure_together(dist, run, findings, ranks)
    except (WorkerError, RuntimeError) as error:
        findings.fail(found["stage"], error)
    findings.begin("done")
    findings.stop()
    return 0


def _measure_together(dist: DistEnv, run: RunEnv, findings: Findings, ranks: list[dict[str, Any]]) -> None:
    from . import links, names, node

    found = findings.found
    found["joined"] = [rank["rank"] for rank in ranks]
    # NCCL refuses two ranks on one GPU
    on_cuda = None not in (gpus := {rank["gpu"] and (rank["node"], rank["gpu"]) for rank in ranks})
    on_cuda = on_cuda and len(gpus) == len(ranks)
    found["backend"] = "nccl" if on_cuda else "gloo"
    if dist.local_rank == 0:
        findings.begin("names")
        found["resolved"] = names.resolve_all(sorted({rank["name"] for rank in ranks}), LONGEST_STAGE_S["names"])
    board = barriers.connect(dist, run, 30.0)
    meeting = links.Meeting(board.store, [rank["rank"] for rank in ranks])
    stages: tuple[tuple[str, Callable[[], None]], ...] = (
        ("clock", lambda: found.update(clock=links.clock(board.store, dist.rank, ranks))),
        ("gemm", lambda: found.update(gemm=node.gemm(found["device"]))),
        ("links", lambda: links.measure_all(dist, board.store, meeting, ranks, on_cuda, found["links"])),
    )
    for stage, measure in stages:
        findings.begin(stage)
        try:
            meeting.meet(stage, LONGEST_STAGE_S["names"] + GRACE_S)
            measure()
        except Exception as error:  # what breaks is the result
            findings.fail(stage, error)


def _join(dist: DistEnv, run: RunEnv, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of all ranks that came within the join timeout, by rank; raises WorkerError."""
    from .connect import Listener, choose_gloo_interface
    from .names import own_addresses

    hosts = [dist.master[0] if dist.master else "", *run.node_names]
    if not os.environ.get("GLOO_SOCKET_IFNAME"):
        choose_gloo_interface(hosts)
    name = dist.node if dist.source == "slurm" else dist.host  # nodes of the local scheduler have no address
    mine = {
        "rank": dist.rank,
        "node": dist.node,
        "name": name,
        "local_rank": dist.local_rank,
        "device": found["device"],
        "gpu": None if found["device"] is None else found["gpu"].get("uuid") or f"cuda:{found['device']}",
        "place": Listener(hosts).place,
    }
    found["name"], found["addresses"] = name, own_addresses()
    if dist.master is None:
        raise WorkerError("no store to meet the other ranks; use `clusterrun check`")
    deadline = time.monotonic() + run.join_timeout
    board = barriers.connect(dist, run, run.join_timeout)
    board.post(f"check/{dist.rank}", json.dumps(mine))
    if dist.rank == 0:
        keys = [f"check/{rank}" for rank in range(dist.world_size)]
        barriers._wait(lambda: board.get_all(keys), deadline)
        came = [text for key in keys if (text := board.get(key)) is not None]
        board.post("check", json.dumps([json.loads(text) for text in came]))
    plan = barriers._wait(lambda: board.get("check"), deadline + GRACE_S / 2)
    if plan is None:
        raise WorkerError("rank 0 did not come")
    ranks: list[dict[str, Any]] = json.loads(plan)
    if dist.rank not in [rank["rank"] for rank in ranks]:
        raise WorkerError(f"it came after the {run.join_timeout:.0f} s that the other ranks waited")
    return ranks
