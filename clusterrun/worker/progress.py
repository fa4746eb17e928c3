"""Where this rank is, told every few seconds in `rank-N.progress` of the attempt's folder.

The work sets plain attributes of `here`; a daemon thread looks at them about once a second and replaces the file when
the phase has changed, and every ten seconds in any case. So the loop pays an attribute, no lock and no system call, and
a phase that came and went between two looks is not told.

What the file proves is that this process ran at `time`, and that its folder could be written. An old `time` says that
it was stopped (SIGSTOP, a node that is gone), has ended, or that the file system took no more writes: not which of
them. A fresh one does not say that the work goes on: a rank that waits in a collective for ever keeps telling so, and
only `stepped`, the time at which its step was last seen to move, grows old. A command that runs as a child may be
stopped while the rank above it is not. There is no fsync: a node that crashes may leave the file empty or older.

A failure to write is not told, nor tried again before the next time. A write that hangs holds this thread only; but
where the file system is dead, the kernel may hold the process at its end until that write returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .distenv import DistEnv
from .end_records import create

VERSION = 1
MOST_WRITES_PER_S = 200  # of all ranks together, as they share one folder: more of them tell less often
LOOKS = 10  # in the time between two writes
GIB = 2**30


class Progress:
    """What the work says of itself; setting an attribute is all it does.

    `entered` is the phase (starting, joining, loading, training, evaluating, saving, script, ending) and since when,
    in seconds since 1970. `process` is the child that does the work in this rank's place, `gpu` gives the device's
    figures.
    """

    def __init__(self) -> None:
        self.entered: tuple[str, float] = ("starting", time.time())
        self.step: int | None = None
        self.steps: int | None = None
        self.tokens_per_second: float | None = None
        self.process: int | None = None
        self.gpu: Callable[[], dict[str, Any] | None] = lambda: None

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.entered = (phase, time.time())

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase within another; an error leaves it standing, as that is where this rank failed."""
        before, _ = self.entered
        self.enter(phase)
        yield
        self.enter(before)


here = Progress()
"""This process is one rank, and this is where it is."""


class Recorder:
    """Writes what `here` says into a folder, about every `every` seconds; `interval` is what became of that."""

    def __init__(self, progress: Progress, dist: DistEnv, folder: Path, every: float) -> None:
        self.interval = max(every, dist.world_size / MOST_WRITES_PER_S)
        self._progress = progress
        self._dist = dist
        self._file = folder / f"rank-{dist.rank}.progress"
        self._random = random.Random()  # ranks that started together must not write together for ever
        self._told: tuple[str, float] | None = None
        self._due = 0.0
        self._step: int | None = None
        self._stepped: float | None = None

    def start(self) -> None:
        """Write now and from now on, in a thread that nobody waits for."""
        threading.Thread(target=self._run, name="clusterrun-progress", daemon=True).start()

    def look(self) -> bool:
        """Write the record if it is time; tells whether it tried to. Raises OSError."""
        now, entered, step = time.monotonic(), self._progress.entered, self._progress.step
        if step != self._step:
            self._step, self._stepped = step, time.time()
        if entered == self._told and now < self._due:
            return False
        self._told, self._due = entered, now + self._uneven(self.interval)
        _replace(self._file, self.document())
        return True

    def document(self) -> dict[str, Any]:
        """The record as it would be written now."""
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
            "step": it.step,
            "steps": it.steps,
            "stepped": self._stepped,
            "tokens_per_second": it.tokens_per_second,
            "memory_gib": resident_gib(it.process or os.getpid()),
            "gpu": it.gpu(),
        }

    def _run(self) -> None:
        # a signal is for the main thread: a handler of the user's must not wait until this one has slept
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with contextlib.suppress(Exception):  # nothing here is worth the training
                self.look()
            time.sleep(self._uneven(self.interval / LOOKS))

    def _uneven(self, seconds: float) -> float:
        return seconds * self._random.uniform(0.8, 1.2)


def resident_gib(pid: int) -> float | None:
    """Memory of the host that a process holds, in GiB; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / GIB
    except (OSError, ValueError, IndexError):
        return None


def _replace(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document)
    temporary = path.with_name(f".{path.name}.tmp")  # always the same: a rank that is killed here leaves one file
    with open(create(temporary), "w") as file:
        file.write(text)
    os.replace(temporary, path)
