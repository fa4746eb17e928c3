"""One at a time on a node (`--local-main-process-first`): its first rank goes ahead where all would do the same.

Python, triton, torch's compiler and tools like uv keep what they have made (byte code, kernels, environments), but
eight ranks that start together on empty caches each make it for themselves. The others then find it there.

Not by the run's store, which no process can reach before it imports torch, but by a socket of the node without a file.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..node.log import say
from .distenv import DistEnv, RunEnv
from .progress import here

SHARE = 0.5  # of the join timeout: the longest wait, so that the others still join in time
RETRY_S = 0.05
LEAST_TOLD_S = 1.0


class FirstOfNode:
    """Lets local rank 0 pass a stage first, and the other ranks of its node when it has, has ended, or a limit is over.

    Nobody waits before `open`, without the option, and on a node with one rank.
    """

    def __init__(self) -> None:
        self._dist: DistEnv | None = None
        self._lock = threading.Lock()
        self._others: list[socket.socket] = []  # of local rank 0
        self._first: socket.socket | None = None  # of the other ranks: connected to it
        self._passed = b""  # the names of the stages that local rank 0 has passed, a line each

    def open(self, dist: DistEnv, run: RunEnv) -> None:
        """Begin, if this run has the option; local rank 0 takes the others' connections from now on."""
        if not run.local_main_process_first or dist.local_world_size == 1:
            return
        self._dist, self._limit = dist, SHARE * run.join_timeout
        name = hashlib.sha256(f"first of node {dist.node_rank} {run.secret}".encode()).hexdigest()
        self._address = f"\0clusterrun-{name[:32]}"
        if dist.local_rank == 0:
            with suppress(OSError):  # the others wait until the limit then
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(self._address)
                listener.listen(dist.local_world_size)
                threading.Thread(target=self._serve, args=(listener,), name="clusterrun-first", daemon=True).start()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Let local rank 0 do first what follows. If it fails, the others go on when its process has ended."""
        self.wait(name)
        yield
        self.passed(name)

    def wait(self, name: str) -> None:
        """Wait until local rank 0 of this node has passed a stage; it waits for nobody itself."""
        if self._dist is not None and self._dist.local_rank:
            with here.during("loading"):
                self._wait(self._dist, name)

    def passed(self, name: str) -> None:
        """Let the other ranks of this node go on. Only local rank 0's first call counts."""
        line = f"{name}\n".encode()
        if self._dist is None or self._dist.local_rank or line in self._passed:
            return
        with self._lock:
            self._passed += line
            for other in self._others:
                with suppress(OSError):
                    other.sendall(line)

    def _serve(self, listener: socket.socket) -> None:
        # leave signals to the main thread, so that the user's handlers run without delay
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            other, _ = listener.accept()
            with self._lock, suppress(OSError):
                other.sendall(self._passed)
                self._others.append(other)

    def _wait(self, dist: DistEnv, name: str) -> None:
        began, in_time = time.monotonic(), True
        try:
            self._hear(f"{name}\n".encode(), began + self._limit)
        except TimeoutError:
            in_time = False
        seconds = time.monotonic() - began
        if dist.local_rank == 1 and (not in_time or (dist.node_rank == 0 and seconds >= LEAST_TOLD_S)):
            end = "" if in_time else " and wait no longer"
            say(f"{dist.node}: the other ranks waited {seconds:.0f} s for local rank 0 to {name}{end}")

    def _hear(self, line: bytes, deadline: float) -> None:
        """Return when local rank 0 has passed this stage, or has ended; raises TimeoutError."""
        while line not in self._passed:
            if self._first is None:
                self._first = self._connect(deadline)
            self._first.settimeout(max(RETRY_S, deadline - time.monotonic()))
            try:
                news = self._first.recv(1024)
            except ConnectionError:  # it ended before it took the connection
                return
            if not news:
                return
            self._passed += news

    def _connect(self, deadline: float) -> socket.socket:
        while time.monotonic() < deadline:
            first = socket.socket(socket.AF_UNIX)
            try:
                first.connect(self._address)
            except OSError:  # it has not started yet
                first.close()
                time.sleep(RETRY_S)
            else:
                return first
        raise TimeoutError


first_of_node = FirstOfNode()
"""The turns of this process, which is one rank."""
