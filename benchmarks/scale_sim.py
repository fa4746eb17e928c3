"""How a run of 80,000 ranks loads its store, its environment, its log and its file system: `make scale-sim`.

Synthetic ranks, cheap clients in one loop (store_clients.py), join a real store and leave it: through real
connections, without Slurm and without torch's process groups. Prints each figure beside its target. In a network
namespace of its own, so that torch's reverse look-up of every connection fails at once where there is no name server.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import store_clients
from benchmarks.scale_records import NODES, PER_NODE, facts_of, rank_of, simulate_frozen_rank, simulate_records
from clusterrun.worker.job import staged_env, step, supervisor
from clusterrun.worker.job.stall import SHORTEST
from clusterrun.worker.rank import barriers, joining, rendezvous
from clusterrun.worker.rank.distenv import RunEnv

CONNECTED, LEAVING = 10_000, 16_000  # ranks of the simulated join, and of the simulated last barrier
RUN = RunEnv(secret="of the simulation", join_timeout=120.0)  # noqa: S106  (it guards nothing)
PLAN = json.dumps({"device_type": "cuda", "notice": ""})


class CountingStore:
    """A store that counts the requests of its client, and the bytes that they carry."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests = self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def counted(*arguments: Any) -> Any:
            found = call(*arguments)
            self.requests += 1
            self.bytes += sum(len(one) for one in (*arguments, found) if isinstance(one, str | bytes))
            return found

        return counted


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def store_process() -> Iterator[tuple[int, int]]:
    """Yield the port and the process of a store that the job's own helper holds."""
    helper = subprocess.Popen(
        [sys.executable, "-u", rendezvous.__file__, "--host", "127.0.0.1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert helper.stdout is not None
        yield int(helper.stdout.readline()), helper.pid
    finally:
        helper.kill()
        helper.wait()


def simulate_join(world: int) -> dict[str, float]:
    """Return the seconds of one join of `world` ranks, from the first connection of a cheap client, and its requests.

    Rank 0, which makes the plan, rank 1, which comes first and therefore polls, and rank 2, whose requests are counted,
    are real: torch's client in a thread. All others are clients in one loop, as in the last barrier.
    """
    check_joining()
    barriers.keep_alive = lambda port: None  # it looks at all descriptors of its process
    joined: list[float] = []
    counted: list[CountingStore] = []

    def act(number: int) -> None:
        dist = rank_of(number, world, port)
        board = barriers.connect(dist, RUN, RUN.join_timeout)
        if number == 2:
            board.store = CountingStore(board.store)
            counted.append(board.store)
        barriers.join(board, dist, RUN, facts_of(number))
        joined.append(time.monotonic())

    real = [threading.Thread(target=act, args=(number,), daemon=True) for number in (1, 0, 2)]
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with store_process() as (port, _), pool:
        probe = barriers.connect(rank_of(0, world, port), RUN, RUN.join_timeout)
        real[0].start()
        while probe.store.add("join/count", 0) == 0:
            time.sleep(0.01)
        for one in real[1:]:
            one.start()
        others = [joining_client(number) for number in range(3, world)]
        began, _, last = pool.submit(store_clients.join, port, RUN.secret, PLAN, others).result()
        for one in real:
            one.join()
    assert len(joined) == len(real)
    return {"join": max(last, *joined) - began, "requests": counted[0].requests, "bytes": counted[0].bytes}


def joining_client(number: int) -> tuple[int, str, str]:
    """Return a rank's number, the place that it claims, and its facts, as `barriers.join` posts them."""
    facts = facts_of(number)
    return number, f"{facts['host']} {os.getpid()}", json.dumps(facts)


def check_joining() -> None:
    """Exit if a rank sends other requests to join than our cheap clients do."""
    rank = CONNECTED - 1

    def join(proxy: int) -> None:
        dist = rank_of(rank, CONNECTED, proxy)
        board = barriers.connect(dist, RUN, RUN.join_timeout)
        barriers.join(board, dist, RUN, facts_of(rank))
        del board.store  # closes its connection

    with store_process() as (port, _):
        post_plan(port).is_first("join")
        sent = store_clients.record(port, join)
    require_same(sent, store_clients.Encoder(RUN.secret, PLAN).join(*joining_client(rank)))


def simulate_leave(world: int) -> dict[str, float]:
    """Return the seconds of one last barrier of `world` ranks.

    Rank 0, which decides, and rank 1, which comes first and therefore polls, are real: torch's client in a thread. All
    others, which wait, are clients in one loop (store_clients.py). They are cheap because in a run each rank has a
    machine of its own, while here all share two cores with the store: as threads they took most of the time. The
    release begins when rank 0 has read all reports, and ends when the last rank has read its last reply; rank 0 polls
    for the reports and checks them before that ("seen").
    """
    check_leaving()
    released: list[float] = []
    complete: list[tuple[float, float]] = []  # when rank 0 saw all reports, and the store's processor time

    def act(number: int) -> None:
        assert barriers.leave(rank_of(number, world, port), RUN, decide=note)
        released.append(time.monotonic())

    def note(reports: Sequence[str], keys: Sequence[str]) -> str:
        complete.append((time.monotonic(), processor_seconds(server)))
        return ""

    real = [threading.Thread(target=act, args=(number,), daemon=True) for number in (1, 0)]
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with store_process() as (port, server), pool:
        board = post_plan(port)
        real[0].start()
        while board.store.add("done/count", 0) == 0:
            time.sleep(0.01)
        began = time.monotonic()
        real[1].start()
        _, reported, waiting = pool.submit(store_clients.leave, port, RUN.secret, PLAN, range(2, world)).result()
        for one in real:
            one.join()
        used = processor_seconds(server)
    assert len(released) == len(real)
    last = max(waiting, *released)
    seen, used_before = complete[0]
    return {
        "leave": last - began,
        "seen": seen - reported,
        "release": last - seen,
        "waiting": waiting - seen,
        "server": used - used_before,
    }


def check_leaving() -> None:
    """Exit if a rank sends other requests at the last barrier than our cheap clients do."""
    rank = LEAVING - 1
    with store_process() as (port, _):
        board = post_plan(port)
        board.is_first("done")
        board.post("done", "")
        sent = store_clients.record(port, lambda proxy: barriers.leave(rank_of(rank, LEAVING, proxy), RUN))
    require_same(sent, store_clients.Encoder(RUN.secret, PLAN).leave(rank))


def require_same(sent: bytes, exchanges: Sequence[store_clients.Exchange]) -> None:
    """Exit if a real rank sent other requests than a cheap client does; the nonce of the ping may differ."""
    ours = b"".join(one.requests for one in exchanges)
    nonce = store_clients.NONCE
    if sent[: nonce.start] + sent[nonce.stop :] != ours[: nonce.start] + ours[nonce.stop :]:
        sys.exit(
            "the clients of benchmarks/store_clients.py no longer send what a rank does:\n"
            f"a rank: {sent!r}\nthey:   {ours!r}"
        )


def post_plan(port: int) -> barriers.SealedStore:
    """Post the plan as rank 0 does when all have joined, and return the store."""
    board = barriers.connect(rank_of(0, LEAVING, port), RUN, RUN.join_timeout)
    board.claim("plan", PLAN)
    return board


def longest_variable() -> int:
    """Return the length of the longest variable that the ranks of 10,000 nodes get from us."""
    options, _ = supervisor.parse(["--nodes", str(NODES), "--tasks-per-node", str(PER_NODE)])
    job = argparse.Namespace(
        options=options, run_dir=Path("/project/.clusterrun/runs/20261123-120000-abcdef"), name="123456",
        attempt_dir=Path("/project/.clusterrun/runs/20261123-120000-abcdef/attempts/a.0.0"), earlier_starts=0,
        staged=staged_env.StagedEnvironment(),
    )  # fmt: skip
    nodes = [facts_of(node * PER_NODE)["node"] for node in range(NODES)]
    before = dict(os.environ)
    variables = step.environment(job, nodes, "10.0.0.1", "")  # type: ignore[arg-type]
    return max(len(name) + len(value) for name, value in variables.items() if before.get(name) != value)


def banner_lines() -> int:
    """Return the lines of the table of ranks in the log of 80,000 ranks."""
    ranks = [facts_of(rank) for rank in range(NODES * PER_NODE)]
    plan = {"device_type": "cuda", "notice": "", "ranks": ranks}
    with contextlib.redirect_stdout(io.StringIO()) as printed, tempfile.TemporaryDirectory() as folder:
        joining.announce(plan, RunEnv(attempt_dir=Path(folder)))
        size = (Path(folder) / "start.json").stat().st_size
        json.loads((Path(folder) / "start.json").read_bytes())
    print(f"start.json of {len(ranks):,} ranks: {size / 2**20:.0f} MiB")
    return len(printed.getvalue().splitlines())


def show(what: str, value: float, target: float, unit: str) -> bool:
    """Print a figure beside its target, and return whether it is met."""
    met = value <= target
    print(f"{what:66} {value:10,.2f} {unit:8} target {target:8,.0f}  {'met' if met else 'NOT MET'}", flush=True)
    return met


def main() -> None:
    """Print all figures; exit 1 if one misses its target."""
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    met = [
        show("longest environment variable at 10,000 nodes", longest_variable() / 1024, 64, "KiB"),
        show("lines of the table of 80,000 ranks", banner_lines(), 50, "lines"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        records = simulate_records(Path(folder))
    print(
        f"a heartbeat of each rank in {records['interval']:.0f} s; the supervisor reads all in {records['look']:.1f} s,"
        f" every {records['pace']:.0f} s"
    )
    met += [
        show("files per node in the attempt's folder", records["files"], 1, ""),
        show("metadata operations of all ranks and the supervisor", records["metadata"], 200, "/s"),
        show("status: reading 80,000 heartbeats", records["read"], 1, "s"),
        show("top: reading what a row of each rank shows", records["read_screen"], 1, "s"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        named = simulate_frozen_rank(Path(folder))
    met.append(
        show("80,000 ranks: from the stop of one until it is named (limit of a step + 10 s)", named, SHORTEST + 10, "s")
    )
    joined = simulate_join(CONNECTED)
    met += [
        show(f"{CONNECTED:,} ranks: from the first connection until all have joined", joined["join"], 15, "s"),
        show("requests of a rank that joins, at most", joined["requests"], 6, ""),
        show("keys and values that it sends and receives, at most", joined["bytes"], 1024, "B"),
    ]
    left = simulate_leave(LEAVING)
    print(f"{LEAVING:,} ranks: the last barrier with all its new connections: {left['leave']:.1f} s")
    print(f"rank 0, which polls, had read all reports {left['seen']:.2f} s after the last one")
    met.append(show(f"{LEAVING:,} ranks: from then until all are released", left["release"], 1, "s"))
    print(
        f"the store used {left['server']:.2f} s of processor time for it; ranks that wait were released after"
        f" {left['waiting']:.2f} s. The first rank polls instead. The other ranks are cheap clients in one process,"
        " because a real rank has its own machine."
    )
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
