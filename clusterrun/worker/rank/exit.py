"""How a rank exits: it writes its end record on every exit path, and waits until all ranks have returned."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError
from ...run_folder import ends
from ...run_folder.ends import Outcome
from ...run_folder.rank_records import RankSlot
from ..node.log import say
from . import child_signals
from .distenv import DistEnv, RunEnv
from .failures import LOST_PEER
from .launched import RANKS

if TYPE_CHECKING:
    from .worlds import GroupWatch

TERMINATED = 128 + signal.SIGTERM
# the last two come from --signal, of which the supervisor needs to know
RECORDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SIGTERM_AFTER_LOSS_S = 5.0  # from a lost connection until the SIGTERM that ends all ranks after one has ended
EXIT_GRACE_S = 5.0  # time that a failing rank's threads and atexit handlers get before it exits without them
_get_handler = signal.getsignal  # the user's code gets another: see `hide_handler`


class RankExit:
    """The exit of this rank: `succeed()` or `fail(…)` set its status, which takes effect when the interpreter exits.

    The last barrier is in an atexit handler registered before any of the user's, so that it runs after the user's
    threads and atexit handlers.
    """

    def __init__(self, dist: DistEnv, run: RunEnv) -> None:
        self.dist = dist
        self.run = run
        self.joined = False  # set once this rank has passed the join barrier; a single rank has none
        self.watch: GroupWatch | None = None  # set once torch is imported; a single rank has none
        self.runs_own_code = False  # no user's objects need the rest of the interpreter's exit
        self.status: int | None = None
        self._any_joined_group: bool | None = None
        self._interrupted = False
        self._signals: set[str] = set()
        self._first = False  # this rank failed first
        self._success = Outcome(0)  # with the kind and values of what went wrong besides
        self._pid = os.getpid()
        self._exiting = False
        self._closing = threading.Lock()
        self._forking = threading.local()  # the forking thread's signal mask
        self._handler = self._on_term  # kept, to compare with `is`
        self._wakeup, self._wakeup_in = socket.socketpair()
        self._taking = threading.Lock()

    def install(self) -> None:
        """Handle SIGTERM and the interpreter's exit. Call once, from the main thread, before user code."""
        atexit.register(self._at_exit)
        # block signals while forking: a child that gets SIGTERM before it drops our descriptor would end this rank
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._in_child)
        signal.signal(signal.SIGTERM, self._handler)
        # inside a collective no Python handler runs, but C code still writes to this descriptor
        self._wakeup_in.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_in.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="clusterrun-sigterm", daemon=True).start()

    def hide_handler(self) -> None:
        """Show the user's code SIG_DFL in place of our handler of SIGTERM, and take SIG_DFL for it.

        Handlers of Lightning and others call the one before them, if it is a function: ours would end the rank, which
        saves at its next step. Others set SIG_DFL again and send the signal once more: that ends the rank.
        """
        register = signal.signal

        def shown(handler: Any) -> Any:
            return signal.SIG_DFL if handler is self._handler else handler

        def set_handler(signum: int, handler: Any) -> Any:
            is_default = signum == signal.SIGTERM and handler == signal.SIG_DFL and os.getpid() == self._pid
            return shown(register(signum, self._handler if is_default else handler))

        signal.signal = set_handler  # type: ignore[assignment]
        signal.getsignal = lambda signum: shown(_get_handler(signum))  # type: ignore[assignment]

    def succeed(self) -> int:
        """Set status 0; the end record is written after the last barrier."""
        self.status = 0
        return 0

    def fail(self, outcome: Outcome) -> int:
        """Set the status of a failure, write its records at once, and return the status, even if writing fails."""
        self._await_end_of_step(outcome.kind)
        return self._record_failure(outcome)

    def fail_with_message(self, error: WorkerError, even_second: bool = True) -> int:
        """As `fail`, and print the error in one line.

        Nothing is printed if another rank failed first with the same error or, without `even_second`, with any error.
        """
        self._await_end_of_step(error.kind)
        with self._closing:  # a SIGTERM for the other ranks must not end this one before the line is printed
            self._record_failure(Outcome.of(error))
            first_error = None if self._first else self._first_error()
            if first_error is None or (even_second and first_error != str(error)):
                self._print(str(error))
        return error.status

    def _await_end_of_step(self, kind: str) -> None:
        """After a lost connection, wait for the SIGTERM that ends this rank; return if none comes.

        A lost connection is never the first cause: another rank has ended, and that ends them all, by a SIGTERM that
        may come later. None comes if a node was lost, or if the other rank has returned.
        """
        if self.dist.world_size == 1 or kind not in LOST_PEER:
            return
        signal.signal(signal.SIGTERM, self._handler)  # the user's code has ended: its handler has nothing to save
        self._take_signals()
        if "SIGTERM" in self._signals:  # the handler before only noted it
            self._terminate()
        time.sleep(SIGTERM_AFTER_LOSS_S)

    def _record_failure(self, outcome: Outcome) -> int:
        self.status = outcome.status
        if self.status != TERMINATED and self.run.attempt_dir is not None:  # a rank that is terminated is not the cause
            try:
                self._first = ends.claim_first_failure(self.run.attempt_dir, self.dist.rank, self.dist.node, outcome)
            except OSError as problem:
                self._print(f"cannot write first_failure.json: {problem}")
        self._write_end(outcome)
        if not self._exiting:
            timer = threading.Timer(EXIT_GRACE_S, os._exit, [outcome.status])
            timer.daemon = True
            with suppress(RuntimeError):  # the process is at its limit on threads: it ends by itself
                timer.start()
        return outcome.status

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child that exits is not this rank
        self._exiting = True
        if self.status == 0 and self.joined:
            self._leave()
        elif self.status == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the work is done: a handler that raises must not end this
            self._take_signals()  # the thread may not have come to them
        if self.status == 0:
            # Python removes the script's handlers soon; then a signal of --signal would fail a rank that has finished
            for signum in (signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(signum, signal.SIG_IGN)
            self._write_end(self._success)
        if self.status or (self.status == 0 and self.runs_own_code):
            _flush()
            # the rest of the interpreter's exit may wait for peers that are gone, or crash in a library; with torch and
            # transformers it takes a quarter of a second
            os._exit(self.status)

    def _leave(self) -> None:
        """Wait for all ranks to return, and report a run in which no rank used a process group."""
        from . import barriers, worlds

        report = self.watch.close() if self.watch is not None else worlds.UNKNOWN
        came = self._take_signals() or b""  # the thread may not have come to them
        if signal.SIGTERM in came and self._a_rank_failed():
            self._terminate()
        # the user's code has returned. In the barrier, which waits in C, only our own handler's thread acts
        if not getattr(_get_handler(signal.SIGTERM), "saves_first", False):
            signal.signal(signal.SIGTERM, self._handler)
        report = worlds.INTERRUPTED if self._interrupted else report
        waited = barriers.leave(self.dist, self.run, report=report, decide=worlds.decide, act=self._act_on_groups)
        if not waited and self.dist.rank == 0:
            self._print("the run's store is gone; ranks will exit without waiting for each other")

    def _act_on_groups(self, result: str) -> None:
        from . import worlds

        self._any_joined_group = {worlds.SOME_JOINED: True, **dict.fromkeys(worlds.SEPARATE, False)}.get(result)
        own_world = self.watch.own_world() if self.watch is not None else ""
        line, is_error = worlds.message(result, self.dist.world_size, self.run.process_group, own_world)
        if not line:
            return
        what = worlds.describe(result, self.dist.world_size, own_world)
        is_idle = result == worlds.IDLE
        found = WorkerError(line, kind="no-process-group", line=line[:60], what=what, idle=is_idle, own_world=own_world)
        if is_error and self.dist.rank == 0:
            self.fail_with_message(found)
        elif is_error:
            self.status = 1
            self._write_end(Outcome.of(found))
        elif self.dist.rank == 0:
            self._print(line)
            self._success = Outcome(0, kind=found.kind, values=found.values)

    def _write_end(self, outcome: Outcome) -> None:
        if self.run.attempt_dir is None:
            return
        try:
            ends.write_end(
                RankSlot(self.run.attempt_dir, self.dist.rank, self.dist.local_rank),
                self.dist.node,
                outcome,
                joined_group=self.watch.joined() if self.watch is not None else None,
                any_joined_group=self._any_joined_group,
                signals=self._signals,
            )
        except OSError as problem:
            self._print(f"cannot record how this rank ended: {problem}")

    def _print(self, text: str) -> None:
        say(f"rank {self.dist.rank}: {text}")

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._signals.add("SIGTERM")
        self._terminate()

    def _terminate(self) -> None:
        if os.getpid() != self._pid or not self._closing.acquire(blocking=False):
            return
        if self.status is None or self.status == 0:
            self._write_end(Outcome(TERMINATED, "ended by SIGTERM", kind="terminated"))
            os._exit(TERMINATED)
        os._exit(self.status)

    def _watch(self) -> None:
        ready = select.poll()
        ready.register(self._wakeup, select.POLLIN)
        while True:
            ready.poll()
            data = self._take_signals()
            if data == b"":
                return
            if data is None or signal.SIGTERM not in data:
                continue
            handler = _get_handler(signal.SIGTERM)
            # a task in training saves before it stops; but after a rank has failed, the ranks cannot agree on a step
            if handler is self._handler or (getattr(handler, "saves_first", False) and self._a_rank_failed()):
                self._terminate()

    def _take_signals(self) -> bytes | None:
        """Note the signals that have come since the last call, and return their numbers; None for none."""
        with self._taking:
            try:
                data = self._wakeup.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            self._signals |= {signum.name for signum in RECORDED if signum in data}
            self._interrupted |= signal.SIGTERM in data or signal.SIGINT in data
            return data

    def _first_error(self) -> str | None:
        first = ends.find_failure(self.run.attempt_dir) if self.run.attempt_dir is not None else None
        return first.error if first is not None else None

    def _a_rank_failed(self) -> bool:
        return self.run.attempt_dir is not None and ends.has_failed(self.run.attempt_dir)

    def _hold(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, child_signals.OF_THE_RANK)

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _in_child(self) -> None:
        """Undo the signal handling in a forked child: its SIGTERM must not reach this rank by the shared descriptor."""
        try:
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._wakeup_in.fileno()):
                signal.set_wakeup_fd(before)
            if _get_handler(signal.SIGTERM) is self._handler:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if os.getppid() == self._pid and RANKS not in os.environ:  # there the program's own children are the ranks
                child_signals.leave_to_rank()
        except ValueError:
            pass  # not in the main thread of the interpreter
        self._release()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
