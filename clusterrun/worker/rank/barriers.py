"""The two barriers on the run's store: all ranks join before the start, and all have returned before the end.

Neither is a collective, so the process group's timeout does not apply. rendezvous.py holds the store. Our keys have a
prefix, apart from those of the user's process groups. Anyone who can reach the store can read and write keys: what our
ranks post is signed (Seal), and unsigned values are ignored.

Tens of thousands of ranks share one store, so a rank makes a few requests and gets the result only. Rank 0 reads what
all ranks posted, and the rank that came first reports who is absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ...base.errors import WorkerError
from ...base.job import format_tasks
from ..node.log import say
from .distenv import DistEnv, RunEnv
from .failures import first_line
from .rendezvous import load_stores

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

RETRY_S = 0.5
STORE_ANSWER_S = 300.0  # a server that is still importing torch accepts connections before it answers
FIRST_POLL_S, SLOWEST_POLL_S = 0.01, 0.5  # between two polls of the store
REPORT_EVERY_S = 60.0
ACTED_S = 10.0  # until all ranks have acted on the result of the last barrier
VERDICT_S = 30.0  # from the join limit until the rank that came first has posted who is absent
UNLIKELY = "-"  # a value that no rank posts
KEEP_ALIVE_S = 60  # without data, until the kernel probes a connection
LONGEST_WAIT_S = 20 * 86_400.0  # torch counts milliseconds in 32 bits
Found = TypeVar("Found")


class SealedStore:
    """The run's store with signed values; `store` is torch's store under our prefix."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self.store = load_stores().PrefixStore(seal.prefix, store)
        self._whole = store
        self._seal = seal

    def post(self, key: str, text: str) -> None:
        self.store.set(key, self._seal.close(key, text))

    def claim(self, key: str, text: str) -> bool:
        """Post unless another rank has posted another value. Return whether the store now has this rank's value."""
        sealed = self._seal.close(key, text)
        found = self.store.compare_set(key, "", sealed)
        if self._seal.open(key, found) is None:  # somebody else's value
            self.store.set(key, sealed)
            return True
        return bool(found == sealed.encode())

    def post_first(self, key: str, text: str) -> str | None:
        """Post unless another rank was faster, and return what is posted."""
        return text if self.claim(key, text) else self.get(key)

    def get(self, key: str) -> str | None:
        """Return what one of our ranks posted, None if none did."""
        return self._read(key) if self.store.check([key]) else None

    def _read(self, key: str) -> str | None:
        """Return the value of a key that is there; torch's `get` would wait for it first, a request more.

        Not for a key that may be missing: this request wakes the ranks that wait for it (seen with torch 2.13).
        """
        return self._seal.open(key, self.store.compare_set(key, UNLIKELY, UNLIKELY))

    def get_all(self, keys: Sequence[str]) -> list[str] | None:
        """Return what our ranks posted at these keys, None if one is missing. It takes two requests in all."""
        if not self.store.check(list(keys)):
            return None
        texts = [self._seal.open(key, raw) for key, raw in zip(keys, self.store.multi_get(list(keys)), strict=True)]
        return None if None in texts else texts  # type: ignore[return-value]

    def is_first(self, what: str) -> bool:
        """Count this rank in, and return whether it is the first one. A stranger may count too: it must only inform."""
        return bool(self.store.add(f"{what}/count", 1) == 1)

    def wait(self, key: str, limit: float = LONGEST_WAIT_S) -> str | None:
        """Return what one of our ranks posts at a key within `limit` seconds, else None; the server does the waiting.

        No signal handler runs meanwhile: exit.py handles SIGTERM in a thread.
        """
        deadline = time.monotonic() + limit
        try:
            self.store.wait([key], timedelta(seconds=limit))
        except RuntimeError:
            if time.monotonic() < deadline:
                raise  # the store is gone
            return None
        found = self._read(key)
        return found if found is not None else _wait(lambda: self.get(key), deadline)  # a rank replaces a stranger's

    def other_keys(self) -> list[str]:
        """Return the keys that are not the worker's; none if this torch cannot list keys."""
        keys = self._whole.list_keys() if hasattr(self._whole, "list_keys") else []
        not_ranks = (f"{self._seal.prefix}/", "torch.rendezvous.")  # the second are those of torchrun's agents
        return [key for key in keys if not key.startswith(not_ranks)]


def connect(dist: DistEnv, run: RunEnv, limit: float) -> SealedStore:
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
                    f"cannot reach the run's store at {host}:{port} within {limit:.0f} s: {error.strerror or error}",
                    kind="network",
                ) from None
            time.sleep(RETRY_S)
    try:
        wait = timedelta(seconds=max(1.0, min(STORE_ANSWER_S, deadline - time.monotonic())))
        store = load_stores().TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=wait)
    except RuntimeError as error:
        text = f"the run's store at {host}:{port} is not responding: {first_line(error)}"
        raise WorkerError(text, kind="network") from None
    keep_alive(port)
    return SealedStore(store, Seal(run.secret))


def keep_alive(port: int) -> None:
    """Let the kernel probe this process's connections to a port: some networks drop those that are idle for minutes.

    torch does not do it, and a rank may wait for hours at the last barrier.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, no socket, or not connected
            descriptor = os.dup(int(name))
            try:
                with socket.socket(fileno=descriptor) as one:
                    descriptor = -1
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == port:
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_S)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)


def join(
    board: SealedStore,
    dist: DistEnv,
    run: RunEnv,
    facts: dict[str, Any],
    common: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda ranks: {},
) -> dict[str, Any]:
    """Post this rank's facts, wait for those of all ranks, and return the plan that rank 0 makes from them.

    The plan is `{"device_type": "cuda"|"cpu", "notice": str}` and what `common` returns for the facts of all ranks;
    rank 0's also has `"ranks": [facts of rank 0, …]`. Raises WorkerError naming the ranks that did not come within the
    join limit.
    """
    deadline = time.monotonic() + run.join_timeout
    ranks: list[dict[str, Any]] = []

    def make() -> str | None:
        everyone = board.get_all(_keys("join", dist))
        if everyone is None:
            return None
        ranks[:] = [json.loads(text) for text in everyone]
        return json.dumps(make_plan(ranks) | common(ranks))

    try:
        if not board.claim(f"place/{dist.rank}", f"{dist.host} {os.getpid()}"):
            raise WorkerError(f"join barrier: rank {dist.rank} joined twice because two launches share one store")
        board.post(f"join/{dist.rank}", json.dumps(facts))
        is_first = board.is_first("join")
        if dist.rank == 0 or is_first:
            poll = make if dist.rank == 0 else lambda: board.get("plan")
            plan = _wait(poll, deadline, _reporter(is_first, board, "join", dist, run))
            plan = board.post_first("plan", plan or json.dumps(_describe_failure(board, dist, run)))
        else:
            plan = board.wait("plan", run.join_timeout + VERDICT_S)
    except RuntimeError as error:
        raise WorkerError(f"join barrier: the run's store is gone: {first_line(error)}", kind="peer-lost") from None
    result = _read_plan(plan, run)
    return result | {"ranks": ranks} if dist.rank == 0 else result


def _read_plan(plan: str | None, run: RunEnv) -> dict[str, Any]:
    """Return the plan of the join barrier; raises WorkerError for the failure that is posted in its place."""
    if not plan:
        raise WorkerError(f"join barrier: rank 0 did not respond within {run.join_timeout:.0f} s")
    result: dict[str, Any] = json.loads(plan)
    if "failure" in result:
        kind = "ranks-missing" if result["values"] else ""
        raise WorkerError(f"join barrier: {result['failure']}", kind=kind, **result["values"])
    return result


def make_plan(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose between CUDA and the CPU for the whole job.

    CUDA needs a device per rank, since NCCL refuses two ranks on one device. Ranks with different choices would hang,
    so rank 0 chooses for all.
    """
    if not any(rank["visible"] for rank in ranks) and all(rank["device"] is None for rank in ranks):
        return {"device_type": "cpu", "notice": ""}
    if why := _why_no_cuda(ranks):
        return {"device_type": "cpu", "notice": f"{why}: all ranks run on the CPU with gloo"}
    return {"device_type": "cuda", "notice": ""}


def _why_no_cuda(ranks: list[dict[str, Any]]) -> str:
    """Return why the ranks cannot have a GPU each, empty if they can."""
    for rank in ranks:
        if rank["device"] is None:
            return f"no GPU is left for rank {rank['rank']} on {rank['node']} (visible GPUs: {rank['visible']})"
    users = Counter((rank["host"], rank["uuid"]) for rank in ranks if rank["uuid"])
    shared = [host for (host, _), count in users.items() if count > 1]
    return f"{shared[0]} has fewer GPUs than ranks" if shared else ""


def leave(
    dist: DistEnv,
    run: RunEnv,
    limit: float = 10.0,
    *,
    report: str = "",
    decide: Callable[[Sequence[str], Sequence[str]], str] = lambda reports, keys: "",
    act: Callable[[str], None] = lambda result: None,
) -> bool:
    """Wait until all ranks have returned: no collective, no timeout. Return False if there was nothing to wait for.

    Each rank leaves a `report`; rank 0 calls `decide` with the reports of all ranks and the store's other keys, and
    every rank calls `act` with the result. After a result that is not empty, no rank leaves before all have acted.

    It makes a new connection, as the first may be days old; `limit` (seconds) is for connecting. If the store is gone,
    or is not the one that this rank joined at, the rank exits at once; its end record says that it has returned. Ranks
    that are still saving are not affected: nothing ends them before the last one (srun --wait=0).
    """
    try:
        board = connect(dist, run, limit)
        if board.get("plan") is None:
            return False
        board.post(f"done/{dist.rank}", report)
        is_first = board.is_first("done")
        if dist.rank == 0 or is_first:
            poll = (lambda: _decide(board, dist, decide)) if dist.rank == 0 else (lambda: board.get("done"))
            result = _wait(poll, None, _reporter(is_first, board, "done", dist, run))
        else:
            result = board.wait("done")
    except (WorkerError, RuntimeError):
        return False
    act(result or "")
    if result:
        with contextlib.suppress(RuntimeError):
            board.post(f"acted/{dist.rank}", "")
            if dist.rank == 0:
                _wait(lambda: board.get_all(_keys("acted", dist)), time.monotonic() + ACTED_S)
                board.post("acted", "")
            board.wait("acted", 2 * ACTED_S)
    return True


def _decide(board: SealedStore, dist: DistEnv, decide: Callable[[Sequence[str], Sequence[str]], str]) -> str | None:
    """Post and return the result of the last barrier; None if a rank is absent."""
    reports = board.get_all(_keys("done", dist))
    if reports is None:
        return None
    result = decide(reports, board.other_keys())
    board.post("done", result)
    return result


def describe(ranks: list[int], dist: DistEnv, names: tuple[str, ...]) -> str:
    """Return ranks with their nodes: `ranks 4-5 on node2, rank 9 on node3` (block distribution)."""
    per_node = max(1, dist.world_size // len(names)) if names else dist.local_world_size
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // per_node, []).append(rank)
    parts = []
    for node, members in by_node.items():
        where = names[node] if node < len(names) else f"node {node}"
        parts.append(f"rank{'s' if len(members) > 1 else ''} {format_tasks(members)} on {where}")
    return ", ".join(parts)


def _keys(what: str, dist: DistEnv) -> list[str]:
    return [f"{what}/{rank}" for rank in range(dist.world_size)]


def _absent(board: SealedStore, what: str, dist: DistEnv) -> list[int]:
    return [rank for rank, key in enumerate(_keys(what, dist)) if board.get(key) is None]


def _report_absent(board: SealedStore, what: str, dist: DistEnv, run: RunEnv) -> None:
    absent = _absent(board, what, dist)
    if absent:
        to = "finish" if what == "done" else "join"
        say(f"rank {dist.rank}: waiting for {describe(absent, dist, run.node_names)} to {to}")


def _reporter(is_first: bool, board: SealedStore, what: str, dist: DistEnv, run: RunEnv) -> Callable[[], None]:
    """Return what the rank that came first reports while it waits; the others report nothing."""
    return (lambda: _report_absent(board, what, dist, run)) if is_first else (lambda: None)


def _describe_failure(board: SealedStore, dist: DistEnv, run: RunEnv) -> dict[str, Any]:
    """Return what is posted in place of a plan: the failure in words, and its values, which are empty without one."""
    absent = _absent(board, "join", dist)
    if not absent:
        return {"failure": "all ranks joined, but rank 0 did not respond", "values": {}}
    names = describe(absent, dist, run.node_names)
    text = f"{len(absent)} of {dist.world_size} ranks did not join within {run.join_timeout:.0f} s: {names}"
    return {"failure": text, "values": {"absent": len(absent), "all": dist.world_size, "names": names}}


def _wait(
    poll: Callable[[], Found | None], deadline: float | None, report: Callable[[], None] = lambda: None
) -> Found | None:
    """Call `poll` until it returns a value or the `deadline` (monotonic seconds; None: never) has passed.

    Calls `report` once a minute. The store's own `wait` prints a warning of torch every few seconds.
    """
    pause, due = FIRST_POLL_S, time.monotonic() + REPORT_EVERY_S
    while (found := poll()) is None:
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return None
        if now >= due:
            report()
            due += REPORT_EVERY_S
        time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - now)))
        pause = min(1.5 * pause, SLOWEST_POLL_S)
    return found


class Seal:
    """Signs values with a key derived from the run's token and the launch's secret.

    Only the job's processes know the secret, so a value that `open` accepts was written by one of them, for that key
    of the store and in this launch. Nothing is encrypted.
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"clusterrun " + secret.encode("utf-8", "surrogateescape")).digest()
        self.prefix = self._sign(b"prefix")[:32]  # of our keys in the store; cannot be guessed

    def close(self, name: str, text: str) -> str:
        """Return the signed text for the key `name`."""
        return self._sign(f"{name}\0{text}".encode()) + text

    def open(self, name: str, sealed: bytes) -> str | None:
        """Return the text if it was signed for the key `name`, else None."""
        signature, text = sealed[:64], sealed[64:]
        if not hmac.compare_digest(signature, self._sign(name.encode() + b"\0" + text).encode()):
            return None
        return text.decode()

    def _sign(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()
