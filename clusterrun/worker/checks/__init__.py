"""The checks of `clusterrun check` and `submit --check`: the ranks measure nodes and links, and rank 0 judges.

There is no process group of the whole run meanwhile: one broken node must not hide the others. Each group of ranks is
opened, measured and closed on its own, with a short timeout. Every rank posts what it has found to the run's store
before each stage. Rank 0 writes `check.json`, which `clusterrun/compare/check_report.py` reads on the login node.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ...base.errors import WorkerError
from ...run_folder.check_findings import BROKEN, UNKNOWN
from ...run_folder.ends import has_failed
from ...run_folder.files import write_json
from ..node.log import say
from ..rank import barriers
from ..rank.distenv import DistEnv, RunEnv
from ..rank.failures import first_line
from ..rank.joining import choose_gloo_interface
from . import connect, links, node, report

STAGE_S, GRACE_S, NAMES_S = 60.0, 15.0, 20.0
OWN_VARIABLES = ("GLOO_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT")


class Effort(NamedTuple):
    """How much to measure: passes over the pairs, and the seconds for one size, a GEMM, and all links."""

    passes: int
    size_s: float
    gemm_s: float
    links_s: float


FULL, QUICK = Effort(2, 1.0, 0.6, 150.0), Effort(1, 0.3, 0.2, 25.0)


def check(dist: DistEnv, run: RunEnv, *, before_training: bool) -> None:
    """Measure, and raise WorkerError on every rank if something is wrong; before a training only if it is broken."""
    if dist.master is None:
        raise WorkerError("the check must run inside a clusterrun job: use `clusterrun check`")
    with _own_environment():
        verdict = _measure_and_judge(dist, run, before_training)
    if verdict is None:
        raise WorkerError("the check did not finish in time: rank 0 sent no result")
    if not verdict:
        return
    if dist.rank and run.attempt_dir is not None:  # rank 0 records it
        folder = run.attempt_dir
        barriers._wait(lambda: has_failed(folder) or None, time.monotonic() + GRACE_S)
    raise WorkerError(verdict)


@contextmanager
def _own_environment() -> Iterator[None]:
    """Undo what the check sets for its own process groups."""
    before = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
    yield
    for name in OWN_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(before)


def _measure_and_judge(dist: DistEnv, run: RunEnv, before_training: bool) -> str | None:
    """Return what ends the job, "" if nothing does, None if rank 0 does not say; the same on all ranks."""
    try:
        mine = _Measurement(dist, run, QUICK if before_training else FULL)
        board = barriers.connect(dist, run, run.join_timeout)
    except WorkerError as error:
        if before_training:
            raise
        say(f"rank {dist.rank}: {error}")
        return ""  # an error would end the ranks that still measure
    mine.finish(board)
    if dist.rank == 0:
        board.post("check/verdict", _conclude(mine, board, dist, run, before_training))
    limit = time.monotonic() + run.join_timeout + 4 * STAGE_S + mine.effort.links_s + 3 * GRACE_S
    verdict = barriers._wait(lambda: board.get("check/verdict"), limit)
    if mine.found["device"] is not None:  # the work measures its own use of memory
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(mine.found["device"])
    return verdict


class _Measurement:
    """What this rank has found. A thread measures: a collective may never return, and the main thread then reports."""

    def __init__(self, dist: DistEnv, run: RunEnv, effort: Effort) -> None:
        self.effort, self.began = effort, time.monotonic()
        self.found: dict[str, Any] = {
            "rank": dist.rank, "local_rank": dist.local_rank, "node": dist.node, "host": dist.host, "device": None,
            "stage": "", "errors": {}, "links": [],
        }  # fmt: skip
        self.ranks: list[dict[str, Any]] = []  # those that have come
        self._dist, self._run = dist, run
        self._listener: connect.Listener | None = None
        self._board = barriers.connect(dist, run, run.join_timeout)
        self._deadline = time.monotonic() + STAGE_S
        self._thread = threading.Thread(target=self._measure, name="clusterrun-check", daemon=True)
        self._thread.start()

    def finish(self, board: barriers.SealedStore) -> None:
        """Wait for the measurements, and post them."""
        rank = self._dist.rank
        while self._thread.is_alive() and time.monotonic() < self._deadline:
            self._thread.join(0.1)
        if self._thread.is_alive():
            self._fail("the measurement did not finish in time")
        else:
            self.found["stage"] = "done"
            if self._listener is not None:
                self._listener.close()
        if not self.ranks:
            board.post(f"check/{rank}", "null")
        board.post(f"check/{rank}/found", json.dumps(self.found))
        board.post(f"check/{rank}/done", "")

    def _begin(self, stage: str, limit: float = STAGE_S) -> None:
        self._deadline = time.monotonic() + limit + GRACE_S
        self.found["stage"] = stage
        self._board.post(f"check/{self._dist.rank}/found", json.dumps(self.found))

    def _fail(self, error: Exception | str) -> None:
        self.found["errors"][self.found["stage"]] = first_line(error) if isinstance(error, Exception) else str(error)

    def _measure(self) -> None:
        try:
            self._begin("node")
            try:
                self.found |= node.measure(self._dist, self._run)
            except Exception as error:  # a broken driver may raise anything
                self._fail(error)
            self._begin("join", self._run.join_timeout)
            self.ranks = self._join()
            self._measure_together()
        except Exception as error:
            self._fail(error)

    def _join(self) -> list[dict[str, Any]]:
        """Return the facts of all ranks that come within the join timeout, by rank; raises WorkerError."""
        dist, run, board = self._dist, self._run, self._board
        hosts = [dist.master[0] if dist.master else "", *run.node_names]
        choose_gloo_interface(dist, run)
        self._listener = connect.Listener(hosts)
        board.post(f"check/{dist.rank}", json.dumps(self._facts() | {"place": self._listener.place}))
        deadline = time.monotonic() + run.join_timeout
        if dist.rank == 0:
            keys = [f"check/{rank}" for rank in range(dist.world_size)]
            barriers._wait(
                lambda: board.get_all(keys), deadline,
                lambda: barriers._report_absent(board, "check", dist, run),
            )  # fmt: skip
            board.post("check", json.dumps([*filter(None, (json.loads(board.get(key) or "null") for key in keys))]))
        plan = barriers._wait(lambda: board.get("check"), deadline + GRACE_S / 2)
        if plan is None:
            raise WorkerError("rank 0 did not join the check")
        ranks: list[dict[str, Any]] = json.loads(plan)
        if dist.rank not in [rank["rank"] for rank in ranks]:
            raise WorkerError(f"this rank joined the check too late: the other ranks waited {run.join_timeout:.0f} s")
        return ranks

    def _facts(self) -> dict[str, Any]:
        """Return what the other ranks need of this one, but where it accepts connections."""
        found, dist = self.found, self._dist
        # nodes of the local scheduler have no address
        found |= {"name": dist.node if dist.source == "slurm" else dist.host, "addresses": connect.own_addresses()}
        gpu = None if found["device"] is None else found["gpu"].get("uuid") or f"cuda:{found['device']}"
        return {name: found[name] for name in ("rank", "node", "name", "local_rank", "device")} | {"gpu": gpu}

    def _measure_together(self) -> None:
        dist, store, found, ranks, effort = self._dist, self._board.store, self.found, self.ranks, self.effort
        # NCCL refuses two ranks on one GPU
        gpus = {(rank["node"], rank["gpu"]) for rank in ranks if rank["gpu"]}
        found["backend"] = backend = "nccl" if len(gpus) == len(ranks) else "gloo"
        if dist.local_rank == 0:
            self._begin("names")
            found["resolved"] = connect.resolve(sorted({rank["name"] for rank in ranks}), NAMES_S)
        meeting = links.Meeting(store, len(ranks))
        stages: tuple[tuple[str, float, Callable[[], None]], ...] = (
            ("clock", STAGE_S, lambda: found.update(clock=time.time())),  # all ranks have met a moment ago
            ("gemm", STAGE_S, lambda: found.update(gemm=node.gemm(found["device"], effort.gemm_s))),
            ("links", effort.links_s + 2 * GRACE_S,
             lambda: links.measure_all(dist, store, meeting, ranks, backend, effort, found["links"])),
        )  # fmt: skip
        for stage, limit, measure in stages:
            self._begin(stage, limit)
            try:
                if meeting.meet(stage, NAMES_S + GRACE_S) or stage != "clock":
                    measure()
            except Exception as error:  # what breaks is the result
                self._fail(error)


def _conclude(
    mine: _Measurement, board: barriers.SealedStore, dist: DistEnv, run: RunEnv, before_training: bool
) -> str:
    """Judge what all ranks found, print it, write `check.json`, and return what ends the job: "" if nothing does."""
    found = report.make(*_collect(mine, board, dist, run), run.check_gpus or 0)
    if run.attempt_dir is not None:
        write_json(run.attempt_dir / "check.json", found)
    wrong = [one for one in found["findings"] if one["status"] != UNKNOWN]
    if before_training:
        for one in wrong:
            say(f"check: {one['status']}: {one['text']}; {one['action']}")
        wrong = [one for one in wrong if one["status"] == BROKEN]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" * (len(wrong) > 1)
        return f"the check found a problem: {wrong[0]['text']}{more}"
    seconds = time.monotonic() - mine.began
    say(f"check: no broken node or link found ({seconds:.0f} s)")
    return ""


def _collect(
    mine: _Measurement, board: barriers.SealedStore, dist: DistEnv, run: RunEnv
) -> tuple[list[dict[str, Any]], list[str]]:
    came = [rank["rank"] for rank in mine.ranks]
    limit = time.monotonic() + mine.effort.links_s + 4 * GRACE_S
    barriers._wait(lambda: board.get_all([f"check/{rank}/done" for rank in came]), limit)
    every = range(dist.world_size if came else 1)  # if this rank hung, nobody measured anything together
    posted = [board.get(f"check/{rank}/found") for rank in every]
    names = run.node_names or (dist.node,)
    per_node = max(1, dist.world_size // len(names))
    return [json.loads(text) for text in posted if text], [names[rank // per_node] for rank in every]
