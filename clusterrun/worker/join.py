"""The two barriers on the held store: everyone is here before the start, everyone has returned before the end.

Neither is a collective and neither knows the process group's time-out. The store is the job's own (rendezvous.py);
our keys stand under the prefix `clusterrun`, so that the user's own groups find it clean.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as torch_dist

from .distenv import DistEnv
from .errors import WorkerError

PREFIX = "clusterrun"
SLICE = timedelta(seconds=5)  # waits are cut into slices so that Python gets to run its signal handlers
RETRY_S = 0.5
STORE_ANSWER_S = 300.0  # a server still importing torch on a loaded node has the connection but does not answer yet


def connect(dist: DistEnv, limit: float) -> torch_dist.Store:
    """Connect to the held store within `limit` seconds; raises WorkerError naming host and port."""
    assert dist.master is not None
    host, port = dist.master
    deadline = time.monotonic() + limit
    while True:  # a plain connection first: torch retries too, but fills the log with warnings
        try:
            socket.create_connection((host, port), timeout=max(1.0, min(10.0, limit))).close()
            break
        except OSError as error:
            if time.monotonic() + RETRY_S > deadline:
                raise WorkerError(
                    f"cannot reach the run's store at {host}:{port} within {limit:.0f} s: {error.strerror or error}"
                ) from None
            time.sleep(RETRY_S)
    try:
        wait = timedelta(seconds=max(1.0, min(STORE_ANSWER_S, deadline - time.monotonic())))
        store = torch_dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=wait)
    except RuntimeError as error:
        raise WorkerError(f"the run's store at {host}:{port} does not answer: {_first_line(error)}") from None
    return torch_dist.PrefixStore(PREFIX, store)


def join(store: torch_dist.Store, dist: DistEnv, facts: dict[str, Any], limit: float, names: tuple[str, ...]) -> dict:
    """Post this rank's facts, wait for everyone's, and return the plan that rank 0 draws from them.

    `names` are the nodes in node-rank order, so that absent ranks can be placed. The plan is
    `{"device_type": "cuda"|"cpu", "notice": str, "ranks": [facts of rank 0, …]}`. Raises WorkerError naming the
    ranks that did not come within `limit` seconds.
    """
    deadline = time.monotonic() + limit
    try:
        if store.add(f"join/seat/{dist.rank}", 1) > 1:
            raise WorkerError(f"join barrier: rank {dist.rank} is there twice: two launches share one store")
        store.set(f"join/{dist.rank}", json.dumps(facts))
        if store.add("join/count", 1) == dist.world_size:
            store.set("join/all", "1")
        if not _wait(store, "join/all", deadline):
            absent = [r for r in range(dist.world_size) if not store.check([f"join/{r}"])]
            raise WorkerError(
                f"join barrier: {len(absent)} of {dist.world_size} ranks did not come within {limit:.0f} s: "
                + describe(absent, dist, names)
            )
        if dist.rank == 0:
            everyone = store.multi_get([f"join/{r}" for r in range(dist.world_size)])
            store.set("join/plan", json.dumps(draw_plan([json.loads(raw) for raw in everyone])))
        if not _wait(store, "join/plan", deadline + 30):
            raise WorkerError("join barrier: all ranks came, but rank 0 did not say how to go on")
        return json.loads(store.get("join/plan"))
    except RuntimeError as error:
        raise WorkerError(f"join barrier: the run's store is gone: {_first_line(error)}") from None


def draw_plan(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Decide for the whole job between CUDA and the CPU.

    CUDA needs a device of its own for every rank: two NCCL ranks on one device are refused. One mixed decision
    would hang the job, so that it is taken once, by rank 0.
    """
    if all(r["device"] is None for r in ranks) and not any(r["visible"] for r in ranks):
        return {"device_type": "cpu", "notice": "", "ranks": ranks}
    lacking = [r for r in ranks if r["device"] is None]
    shared = [key for key, n in Counter((r["host"], r["uuid"]) for r in ranks if r["uuid"]).items() if n > 1]
    notice = ""
    if lacking:
        r = lacking[0]
        notice = f"rank {r['rank']} on {r['node']} has no device of its own ({r['visible']} visible there)"
    elif shared:
        notice = f"{shared[0][0]} has fewer devices than ranks"
    if notice:
        return {"device_type": "cpu", "notice": f"{notice}: the whole job runs on CPU and gloo", "ranks": ranks}
    return {"device_type": "cuda", "notice": "", "ranks": ranks}


def leave(dist: DistEnv, limit: float = 10.0) -> None:
    """Hold this rank until all ranks have returned: no collective, no time-out.

    A new connection, because the first may be days old; `limit` (seconds) is for making it. Raises WorkerError
    when the store is gone.
    """
    store = connect(dist, limit)
    try:
        if store.add("done/count", 1) >= dist.world_size:
            store.set("done/all", "1")
        while not _wait(store, "done/all", time.monotonic() + 3600):
            pass
    except RuntimeError as error:
        raise WorkerError(f"the run's store is gone before all ranks returned: {_first_line(error)}") from None


def describe(ranks: list[int], dist: DistEnv, names: tuple[str, ...]) -> str:
    """Name ranks and their nodes in few words: `ranks 4-5 on node2, rank 9 on node3` (block distribution)."""
    per_node = max(1, dist.world_size // len(names)) if names else dist.local_world_size
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // per_node, []).append(rank)
    parts = []
    for node, members in by_node.items():
        where = names[node] if node < len(names) else f"node {node}"
        parts.append(f"rank{'s' if len(members) > 1 else ''} {_spans(members)} on {where}")
    return ", ".join(parts)


def _spans(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _wait(store: torch_dist.Store, key: str, deadline: float) -> bool:
    """Wait for a key until `deadline` (monotonic seconds); False when it did not come. Network errors pass through."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        try:
            store.wait([key], min(SLICE, timedelta(seconds=max(left, 0.01))))
            return True
        except torch_dist.DistNetworkError:
            raise
        except torch_dist.DistStoreError:
            continue  # this slice is over


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
