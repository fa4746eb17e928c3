"""Start several trainings at once, and let only one run at a time, a few seconds each in turn.

Other work on the machine then slows all of them by as much. This shows differences of a hundredth; whole runs that
follow each other differ by a fifth.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

Slice = tuple[float, float]  # began, ended: seconds since 1970
Times = dict[int, float]  # when a step was over


def take_slices(runs: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[Slice]]:
    """Run each of `runs` to its end, in slices of so many seconds; return the slices of each.

    A run is known by the CLUSTERRUN_RUN_ID of its processes, which is its name here.
    """
    threads = {name: threading.Thread(target=run) for name, run in runs.items()}
    slices: dict[str, list[Slice]] = {name: [] for name in runs}
    for thread in threads.values():
        thread.start()
    while any(thread.is_alive() for thread in threads.values()):
        for name, thread in threads.items():
            if thread.is_alive():
                for other in threads:
                    signal_all(other, signal.SIGCONT if other == name else signal.SIGSTOP)
                began = time.time()
                thread.join(seconds)
                slices[name].append((began, time.time()))
    return slices


def signal_all(name: str, which: signal.Signals) -> None:
    """Send a signal to each process of a run."""
    mark = f"CLUSTERRUN_RUN_ID={name}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), which)


def speeds(slices: list[Slice], times: Times) -> list[float]:
    """Return the steps per second of each slice, 0 for one in which fewer than two known steps were over."""
    moments = sorted((at, step) for step, at in times.items())
    found = []
    for began, ended in slices:
        inside = moments[bisect_right(moments, (began, 0)) : bisect_right(moments, (ended, 0))]
        seconds = inside[-1][0] - inside[0][0] if inside else 0.0
        found.append((inside[-1][1] - inside[0][1]) / seconds if seconds else 0.0)
    return found
