"""What a rank leaves when its launch hangs: the stacks of all its threads, and torch's flight recorder.

The watchdog (watchdog.py) writes a number into `hang_request.json` in the attempt's folder. The progress thread of
every rank reads it while its rank makes no progress, and writes `stacks-rank-N.txt` and `flight_recorder_N`. The file
exists from the start, because an NFS client may show a new file late, but opens a known one anew.
"""

from __future__ import annotations

import faulthandler
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ...base.decode import as_int
from ...run_folder import atomic
from ...run_folder.files import file_mode, read_json

REQUEST = "hang_request.json"
MOST_READ, MOST_BYTES = 64, 2**18  # files whose stacks are compared, and of each
_FRAME = re.compile(r'  File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>.+)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/clusterrun/worker/|^<")


def stacks_name(rank: int) -> str:
    """Return the name of a rank's file of stacks."""
    return f"stacks-rank-{rank}.txt"


class StackWriter:
    """Writes this rank's stacks once for each request."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._answered = 0

    def write_if_requested(self) -> None:
        """Write the stacks if the watchdog has requested them; raises OSError or ValueError."""
        number = as_int((read_json(self._folder / REQUEST) or {}).get("request")) or 0
        if number <= self._answered:
            return
        self._answered = number
        self._write_stacks()
        # without stack traces it takes milliseconds. The first trace takes seconds, and this process may not have them
        for traces in (False, True):
            dump = flight_recorder(traces)
            if dump:
                with _replacing(self._folder / f"flight_recorder_{self._rank}") as file:
                    file.write(dump)

    def _write_stacks(self) -> None:
        path = self._folder / stacks_name(self._rank)
        with _replacing(path) as file:
            faulthandler.dump_traceback(file, all_threads=True)


def flight_recorder(traces: bool) -> bytes:
    """Return torch's record of the last collectives, a pickle; empty if this torch has none."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):  # of all backends since torch 2.9; of NCCL
        if hasattr(c10d, name):
            try:
                return bytes(getattr(c10d, name)(includeStackTraces=traces))
            except Exception:  # a private interface
                return b""
    return b""


def main_thread_place(stacks: str) -> str:
    """Return `FILE:LINE in FUNCTION`, the innermost frame of the user's code in the main thread; empty if unknown.

    If all of it is a library, that library's innermost frame. faulthandler writes the main thread last.
    """
    lines = stacks.rpartition("(most recent call first):")[2].splitlines()
    frames = [frame for line in lines if (frame := _FRAME.fullmatch(line))]
    own = next((frame for frame in frames if not _LIBRARY.search(frame["path"])), frames[0] if frames else None)
    return f"{own['path']}:{own['line']} in {own['function']}" if own else ""


def rank_place(folder: Path, rank: int) -> str:
    """Return where a rank is by its own file of stacks, as `FILE:LINE in FUNCTION`; empty if that is unknown."""
    with suppress(OSError), open(folder / stacks_name(rank), "rb") as file:
        return main_thread_place(file.read(MOST_BYTES).decode(errors="replace"))
    return ""


def common_place(folder: Path, names: Sequence[str], ranks: int) -> str:
    """Return where most of the ranks are by these files, as `4 of 4 ranks are at FILE:LINE in FUNCTION`.

    Empty if no file shows it.
    """
    places: Counter[str] = Counter()
    for name in names[:MOST_READ]:
        with suppress(OSError), open(folder / name, "rb") as file:
            places[main_thread_place(file.read(MOST_BYTES).decode(errors="replace"))] += 1
    del places[""]
    if not places:
        return ""
    place, count = places.most_common(1)[0]
    if ranks == 1:
        return f"the rank is at {place}"
    are = "is" if count == 1 else "are"
    return f"{'at least ' * (len(names) > MOST_READ)}{count} of {ranks} ranks {are} at {place}"


def _replacing(path: Path) -> AbstractContextManager[BinaryIO]:
    """Return what replaces a file without waiting for the disk: this process may not have the time."""
    return atomic.replacing(path, file_mode(path.parent), lasting=False)
