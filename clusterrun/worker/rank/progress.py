"""The progress record (heartbeat) of this rank, in the file of its node (rank_records.py) in the attempt's folder.

The training loop sets plain attributes of `here`, which costs no lock and no system call. A daemon thread polls them
about once a second and writes the record when the phase has changed, and every ten seconds in any case. A phase that
began and ended between two polls is not recorded. `clusterrun/records/progress.py` reads the file on the login node.

A fresh `time` proves that this process runs and can write to its folder, not that its work advances: a rank that hangs
in a collective still writes, and only `advanced` grows old: the time when its phase, its step or its number of
collectives last changed. watchdog.py judges by it. An old `time` means that the process is stopped (SIGSTOP, a lost
node) or has ended, or that the file system takes no writes. A command that runs as a child may be stopped while its
rank is not. There is no fsync: after a node crash the file may be empty or older.

In a job of many ranks heartbeats are rare. So a rank that stops advancing writes one record with `still`, and one more
when it advances again. watchdog.py then suspects a rank that wrote no such record.

A failed write is not reported, and not retried before the next one is due. A write that hangs blocks this thread only;
but on a dead file system the kernel may keep the process from exiting until that write returns.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...run_folder.rank_records import ANNOUNCE_S, MOST_WRITES_PER_S, POLLS, READS_PER_S, SILENT_INTERVALS, RankSlot
from ..node.memory import MemoryPeaks
from . import collectives
from .distenv import DistEnv
from .orphans import SupervisorWatch, end_if_superseded
from .stacks import StackWriter

VERSION = 1
STOPPED_INTERVALS = 1.5  # without a poll
GIB = 2**30


class Progress:
    """The progress of this rank, as plain attributes that the training loop sets.

    `entered` is the phase (starting, checking, joining, loading, compiling, training, evaluating, saving, script,
    ending) and its start in seconds since 1970; a user's script began at `script_since`. `process` is the child that
    runs the user's command, if any. `gpu` returns the GPU's figures, `times` the medians of the last steps (BusyTimes).
    `first_step` is the first step of this launch, done at `first_step_at`; `loss` that of a script that reports it.
    `own_world` returns the world of its own that this rank has started, in words (worlds.py).
    """

    def __init__(self) -> None:
        self.entered: tuple[str, float] = ("starting", time.time())
        self.script_since: float | None = None
        self.step: int | None = None
        self.steps: int | None = None
        self.first_step: int | None = None
        self.first_step_at: float | None = None
        self.loss: float | None = None
        self._counts_anew = False
        self.times: Callable[[], dict[str, float]] = dict
        self.tokens_per_second: float | None = None
        self.process: int | None = None
        self.own_world: Callable[[], str] = str
        self.gpu: Callable[[], dict[str, Any] | None] = lambda: None

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.entered = (phase, time.time())
        if phase == "script":
            _, self.script_since = self.entered

    def finish_step(self, step: int) -> None:
        """Count a step of training as done."""
        self.step = step
        if self.first_step_at is None:
            self.first_step_at = time.time()

    def report(self, step: int, total: int | None, loss: float | None) -> None:
        """Take what the user's script reports of itself; what it leaves out stays as it was."""
        self._counts_anew = self._counts_anew or (self.step is not None and step < self.step)
        if self.first_step is None or step < self.first_step:
            self.first_step, self.first_step_at = step, None
        self.steps = None if self._counts_anew else total or self.steps  # in each epoch: the total is not that of all
        self.loss = self.loss if loss is None else loss
        self.finish_step(step)

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Enter a phase within another. After an error it stays: it is where this rank failed."""
        before, _ = self.entered
        self.enter(phase)
        yield
        self.enter(before)


here = Progress()
"""The progress of this process, which is one rank."""


class Recorder:
    """Writes a `Progress` into a folder about every `interval` seconds: `every`, or more if there are many ranks."""

    def __init__(self, progress: Progress, dist: DistEnv, folder: Path, every: float) -> None:
        self.interval = max(every, dist.world_size / MOST_WRITES_PER_S)
        self.look_interval = max(self.interval, dist.world_size / READS_PER_S)
        self._progress = progress
        self._dist = dist
        self.slot = RankSlot(folder, dist.rank, dist.local_rank)
        self._random = random.Random()  # spreads the writes of ranks that started together
        self._written: tuple[str, float] | None = None
        self._due = 0.0
        self._polled = time.monotonic()
        self._step: int | None = None
        self._stepped: float | None = None
        self._collectives: dict[str, int] = {}
        self._mark: object = None
        self._advanced: float | None = None  # monotonic; None until a step or a collective is known
        self._every = every
        self._is_rare = self.interval > every  # its heartbeats
        self._announced = False  # that it stands still
        self._longest_gaps = [0.0, 0.0]  # between two advances, before and since the last heartbeat
        self._next_request = 0.0
        self._memory = MemoryPeaks()
        self._stacks = StackWriter(folder, dist.rank)
        self._supervisor = SupervisorWatch(folder, self.interval, os.environ)

    def start(self) -> None:
        """Start writing, in a daemon thread."""
        threading.Thread(target=self._run, name="clusterrun-progress", daemon=True).start()

    def write_if_due(self) -> bool:
        """Write the record if the phase has changed or it is due. Return whether it was. Raises OSError."""
        now, entered = time.monotonic(), self._progress.entered
        self._note_advance(now)
        unusual = SILENT_INTERVALS * max(self._every, *self._longest_gaps)
        if (self._is_rare and self._still_for(now) > unusual) != self._announced:
            self._announced = not self._announced
            self._due = min(self._due, now + self._random.uniform(0, ANNOUNCE_S))
        if entered == self._written and now < self._due:
            return False
        self._written, self._due = entered, now + self._uneven(self.interval)
        if not self._announced:
            self._longest_gaps = [self._longest_gaps[1], 0.0]
        # what is not known is left out: readers of 80,000 records are faster
        self.slot.write_progress({name: value for name, value in self.document().items() if value is not None})
        return True

    def _note_advance(self, now: float) -> None:
        step = self._progress.step
        if step != self._step:
            self._step, self._stepped = step, time.time()
        self._collectives = collectives.count()
        mark = (self._progress.entered, step, self._collectives)
        if mark != self._mark:
            self._longest_gaps[1] = max(self._longest_gaps[1], self._still_for(now))
            self._mark = mark
            self._advanced = now if step is not None or any(self._collectives.values()) else None
        pause, self._polled = now - self._polled, now
        if self._advanced is not None and pause > STOPPED_INTERVALS * self._every:
            self._advanced = min(now, self._advanced + pause)  # this process was suspended, and its main thread with it

    def poll(self) -> None:
        """Write the record if it is due, and the stacks if the watchdog requests them; raises OSError.

        The request is a file, which a rank that advances does not open.
        """
        wrote, now = self.write_if_due(), time.monotonic()
        is_still = self._announced if self._is_rare else self._still_for(now) > self.interval / 2
        if (is_still and now >= self._next_request) or (wrote and self._advanced is None):
            self._next_request = now + 0.8 * self.interval / POLLS
            self._stacks.write_if_requested()

    def look(self) -> None:
        """Act if a newer attempt of the run has started, or the supervisor is gone; raises OSError, Superseded."""
        end_if_superseded(self._dist.rank)
        self._supervisor.look()

    def document(self) -> dict[str, Any]:
        """Return the record as of now."""
        it = self._progress
        phase, since = it.entered
        return {
            "version": VERSION,
            "rank": self._dist.rank,
            "node": self._dist.node,
            "local_rank": self._dist.local_rank,
            "pid": os.getpid(),
            "time": time.time(),
            "interval": self.interval,
            "phase": phase,
            "since": since,
            "script_since": it.script_since,
            "step": it.step,
            "steps": it.steps,
            "loss": it.loss if it.loss is None or math.isfinite(it.loss) else None,
            "nan_losses": 1 if it.loss is not None and math.isnan(it.loss) else None,
            "stepped": self._stepped,
            "first_step": it.first_step,
            "first_step_at": it.first_step_at,
            **it.times(),
            "collectives": self._collectives,
            "still": self._announced or None,
            "advanced": None if self._advanced is None else time.time() - (time.monotonic() - self._advanced),
            "srun_step": os.environ.get("SLURM_STEP_ID"),
            "tokens_per_second": it.tokens_per_second,
            "memory_gib": resident_gib(it.process or os.getpid()),
            **self._memory.look(os.getpid()),
            "own_world": it.own_world() or None,
            "gpu": it.gpu(),
        }

    def _run(self) -> None:
        # leave signals to the main thread, so that the user's handlers run without delay
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        looked = -math.inf
        while True:
            with contextlib.suppress(Exception):  # no error here may end the training
                if time.monotonic() - looked >= self.look_interval:
                    looked = time.monotonic()
                    self.look()
            with contextlib.suppress(Exception):
                self.poll()
            time.sleep(self._uneven(self._every / POLLS))

    def _still_for(self, now: float) -> float:
        """Return the seconds without an advance; 0 before the first step and collective."""
        return 0.0 if self._advanced is None else now - self._advanced

    def _uneven(self, seconds: float) -> float:
        return seconds * self._random.uniform(0.8, 1.2)


def resident_gib(pid: int) -> float | None:
    """Return the resident memory of a process in GiB, None if unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / GIB
    except (OSError, ValueError, IndexError):
        return None
