"""The two barriers on the held store: everyone is here before the start, everyone has returned before the end.

Neither is a collective and neither knows the process group's time-out. The store is the job's own (rendezvous.py);
our keys stand under a prefix of their own, so that the user's own groups find it clean. The store lets anyone who
reaches it read, list, set and delete keys: what our ranks post is sealed (seal.py), and what is not is not there.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as torch_dist

from .distenv import DistEnv, RunEnv
from .errors import WorkerError
from .seal import Seal

RETRY_S = 0.5
STORE_ANSWER_S = 300.0  # a server still importing torch on a loaded node has the connection but does not answer yet
FIRST_LOOK_S, SLOWEST_LOOK_S = 0.01, 0.5  # between two looks at the store while waiting
SAY_EVERY_S = 60.0
Found = TypeVar("Found")


class Board:
    """The run's store as our ranks use it: `store` is torch's, under our prefix; what is posted here is sealed."""

    def __init__(self, store: torch_dist.Store, seal: Seal) -> None:
        self.store = torch_dist.PrefixStore(seal.prefix, store)
        self._seal = seal

    def post(self, key: str, text: str) -> None:
        self.store.set(key, self._seal.close(key, text))

    def claim(self, key: str, text: str) -> bool:
        """Post unless another rank has posted something else there; tells whether this one's word stands."""
        mine = self._seal.close(key, text)
        found = self.store.compare_set(key, "", mine)
        if self._seal.open(key, found) is None:  # planted by a stranger
            self.store.set(key, mine)
            return True
        return bool(found == mine.encode())

    def read(self, key: str) -> str | None:
        """What one of our ranks posted, None where none did."""
        return self._seal.open(key, self.store.get(key)) if self.store.check([key]) else None

    def read_all(self, keys: Sequence[str]) -> list[str] | None:
        """What our ranks posted at all these keys, None while one is missing: two questions, whatever their number."""
        if not self.store.check(list(keys)):
            return None
        texts = [self._seal.open(key, raw) for key, raw in zip(keys, self.store.multi_get(list(keys)), strict=True)]
        return None if None in texts else texts  # type: ignore[return-value]


def connect(dist: DistEnv, run: RunEnv, limit: float) -> Board:
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
    return Board(store, Seal(run.secret))


def join(board: Board, dist: DistEnv, facts: dict[str, Any], limit: float, names: tuple[str, ...]) -> dict:
    """Post this rank's facts, wait for everyone's, and return the plan that rank 0 draws from them.

    `names` are the nodes in node-rank order, so that absent ranks can be placed. The plan is
    `{"device_type": "cuda"|"cpu", "notice": str, "ranks": [facts of rank 0, …]}`. Raises WorkerError naming the
    ranks that did not come within `limit` seconds.
    """
    deadline = time.monotonic() + limit
    try:
        if not board.claim(f"join/{dist.rank}", json.dumps(facts)):
            raise WorkerError(f"join barrier: rank {dist.rank} is there twice: two launches share one store")
        if dist.rank == 0:
            everyone = _wait(
                lambda: board.read_all(_keys("join", dist)), deadline, lambda: _say(board, "join", dist, names)
            )
            if everyone is not None:
                board.post("plan", json.dumps(draw_plan([json.loads(text) for text in everyone])))
        plan = _wait(lambda: board.read("plan"), deadline, lambda: _say(board, "join", dist, names))
        if plan is None and (absent := _absent(board, "join", dist)):
            raise WorkerError(
                f"join barrier: {len(absent)} of {dist.world_size} ranks did not come within {limit:.0f} s: "
                + describe(absent, dist, names)
            )
        plan = plan or _wait(lambda: board.read("plan"), time.monotonic() + 30)
        if plan is None:
            raise WorkerError("join barrier: all ranks came, but rank 0 did not say how to go on")
        return json.loads(plan)
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


def leave(dist: DistEnv, run: RunEnv, limit: float = 10.0) -> bool:
    """Hold this rank until all ranks have returned: no collective, no time-out. False where it did not have to wait.

    A new connection, because the first may be days old; `limit` (seconds) is for making it. Where the store is gone,
    or is not the one that this rank joined at, the rank leaves at once: it has returned, and its own end record says
    so. That harms no rank that still saves: nothing ends the others before the last one (srun --wait=0).
    """
    try:
        board = connect(dist, run, limit)
        if board.read("plan") is None:
            return False
        board.post(f"done/{dist.rank}", "")
        if dist.rank == 0:
            _wait(lambda: board.read_all(_keys("done", dist)), None, lambda: _say(board, "done", dist, run.node_names))
            board.post("done", "")
        _wait(lambda: board.read("done"), None, lambda: _say(board, "done", dist, run.node_names))
    except (WorkerError, RuntimeError):
        return False
    return True


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


def _keys(what: str, dist: DistEnv) -> list[str]:
    return [f"{what}/{rank}" for rank in range(dist.world_size)]


def _absent(board: Board, what: str, dist: DistEnv) -> list[int]:
    return [rank for rank, key in enumerate(_keys(what, dist)) if board.read(key) is None]


def _say(board: Board, what: str, dist: DistEnv, names: tuple[str, ...]) -> None:
    """Say who is awaited, in one line of the lowest rank that is there."""
    if any(board.read(f"{what}/{rank}") is not None for rank in range(dist.rank)):
        return
    absent = _absent(board, what, dist)
    if absent:
        verb = "come" if what == "join" else "return"
        print(
            f"clusterrun: rank {dist.rank}: waiting for {describe(absent, dist, names)} to {verb}",
            file=sys.stderr,
            flush=True,
        )


def _wait(
    look: Callable[[], Found | None], deadline: float | None, say: Callable[[], None] = lambda: None
) -> Found | None:
    """Look until something is found or it is `deadline` (monotonic seconds; None: for ever); calls `say` once a minute.

    By looking and not by the store's own `wait`, for which torch prints a warning every few seconds.
    """
    pause, due = FIRST_LOOK_S, time.monotonic() + SAY_EVERY_S
    while (found := look()) is None:
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return None
        if now >= due:
            say()
            due += SAY_EVERY_S
        time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - now)))
        pause = min(1.5 * pause, SLOWEST_LOOK_S)
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
