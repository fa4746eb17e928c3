"""How a rank ends: markers in every way out that Python can see, and no rank leaves before all have returned."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType, TracebackType

from . import end_records
from .distenv import DistEnv, RunEnv

TERMINATED = 128 + signal.SIGTERM
EXIT_GRACE_S = 5.0  # what a failing rank's own threads and atexit handlers get before it leaves without them


class Ending:
    """The end of this rank, decided once: `succeed()` or `fail(…)`, carried out when the interpreter exits.

    The last barrier stands in an atexit handler registered before any of the user's: it runs after their threads
    have ended and their handlers have run, as all of that still belongs to their work.
    """

    def __init__(self, dist: DistEnv, run: RunEnv) -> None:
        self.dist = dist
        self.run = run
        self.joined = False  # set once this rank has been through the join barrier
        self.status: int | None = None
        self._first = False  # of all ranks, this one failed first
        self._pid = os.getpid()
        self._exiting = False
        self._closing = threading.Lock()
        self._forking = threading.local()  # the forking thread's signal mask
        self._handler = self._on_term  # one object, to be recognised by `is`
        self._wakeup, self._wakeup_in = socket.socketpair()

    def install(self) -> None:
        """Take SIGTERM and the interpreter's exit; call once, from the main thread, before user code."""
        atexit.register(self._at_exit)
        # a child that gets SIGTERM before it has let go of our descriptor would end this rank: hold the signal back
        os.register_at_fork(before=self._hold_term, after_in_parent=self._release_term, after_in_child=self._in_child)
        signal.signal(signal.SIGTERM, self._handler)
        # a rank inside a collective runs no Python handler, but C code still writes to this descriptor
        self._wakeup_in.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_in.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="clusterrun-sigterm", daemon=True).start()

    def succeed(self) -> int:
        """Record that the work has returned; the marker is written after the last barrier."""
        self.status = 0
        return 0

    def fail(self, status: int, error: str, trace: TracebackType | None = None) -> int:
        """Record a failure, write its markers at once, and return `status` (never changed by a failing write)."""
        self.status = status
        if status != TERMINATED and self.run.attempt_dir is not None:  # who is being stopped is not the cause
            file, line = end_records.locate(trace)
            document = {
                "rank": self.dist.rank,
                "node": self.dist.node,
                "status": status,
                "error": error,
                "file": file,
                "line": line,
                "time": time.time(),
            }
            try:
                self._first = end_records.claim_first_failure(self.run.attempt_dir, document)
            except OSError as problem:
                self._say(f"cannot write first_failure.json: {problem}")
        self._mark(status, error)
        if not self._exiting:
            timer = threading.Timer(EXIT_GRACE_S, os._exit, [status])
            timer.daemon = True
            timer.start()
        return status

    def fail_saying(self, status: int, error: str, even_second: bool = True) -> int:
        """As `fail`, and say it in one line, which need not stand in the log once per rank.

        Silent where another rank has failed with the same words, or, without `even_second`, with any.
        """
        with self._closing:  # the SIGTERM that ends the other ranks must not come before the line
            self.fail(status, error)
            told = None if self._first else self._told()
            if told is None or (even_second and told != error):
                self._say(error)
        return status

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child on its way out is not this rank
        self._exiting = True
        if self.status == 0 and self.joined:
            from . import barriers

            if not barriers.leave(self.dist, self.run) and self.dist.rank == 0:
                self._say("the run's store is gone: ranks end without waiting for each other")
        if self.status == 0:
            self._mark(0, None)
        elif self.status is not None:
            _flush()
            os._exit(self.status)  # what is left of the interpreter's exit may wait for peers that are gone

    def _mark(self, status: int, error: str | None) -> None:
        if self.run.attempt_dir is None:
            return
        try:
            end_records.write_end(self.run.attempt_dir, self.dist.rank, self.dist.node, status, error)
        except OSError as problem:
            self._say(f"cannot write the end marker: {problem}")

    def _say(self, text: str) -> None:
        try:
            print(f"clusterrun: rank {self.dist.rank}: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._terminate()

    def _terminate(self) -> None:
        if os.getpid() != self._pid or not self._closing.acquire(blocking=False):
            return
        if self.status is None or self.status == 0:
            self._mark(TERMINATED, "ended by SIGTERM")
            os._exit(TERMINATED)
        os._exit(self.status)

    def _watch(self) -> None:
        while True:
            data = self._wakeup.recv(64)
            if not data:
                return
            if signal.SIGTERM not in data:
                continue
            handler = signal.getsignal(signal.SIGTERM)
            # a task in training saves before it stops; but when a rank has failed, nobody would come to the agreement
            if handler is self._handler or (getattr(handler, "saves_first", False) and self._a_rank_failed()):
                self._terminate()

    def _told(self) -> str | None:
        """What the first rank to fail said; None where none has, or it is not seen from this node yet."""
        try:
            assert self.run.attempt_dir is not None
            return json.loads((self.run.attempt_dir / "first_failure.json").read_bytes())["error"]
        except (AssertionError, OSError, ValueError, KeyError):
            return None

    def _a_rank_failed(self) -> bool:
        return self.run.attempt_dir is not None and (self.run.attempt_dir / "first_failure.json").exists()

    def _hold_term(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release_term(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _in_child(self) -> None:
        """In a forked child: SIGTERM is its own affair, and must not reach us through the shared descriptor."""
        try:
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._wakeup_in.fileno()):
                signal.set_wakeup_fd(before)
            if signal.getsignal(signal.SIGTERM) is self._handler:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        except ValueError:
            pass  # not in the main thread of the interpreter
        self._release_term()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
