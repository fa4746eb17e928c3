"""Saving beside the training: one write at a time in a thread, and a disk that fills stops nothing."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from .. import end_records, epoch
from . import atomic_files, checkpoint

BEST = "best.json"


class Saver:
    """Writes snapshots into a folder, and deletes the older ones after each that is durable.

    `last_saved` is the last step this saver made durable, `seconds` how long that took from the hand-over on, and
    `failure` why the last write failed (None: it did not). `best` is the best step, of earlier attempts too.
    `in_use`, the checkpoint this run was resumed from, is never deleted, nor are those of other runs than `run_id`.
    `check` raises Superseded where this process may no longer write: then the next `save` or `wait` does.
    """

    def __init__(
        self,
        folder: Path,
        keep_last: int,
        in_use: Path | None = None,
        run_id: str | None = None,
        check: atomic_files.Check = epoch.check,
    ) -> None:
        self.last_saved: int | None = None
        self.seconds = 0.0
        self.failure: str | None = None
        self.best = _read_best(folder)
        self._folder = folder
        self._keep_last = keep_last
        self._in_use = in_use
        self._run_id = run_id
        self._check = check
        self._superseded: epoch.Superseded | None = None
        self._thread: threading.Thread | None = None
        atomic_files.sweep(folder)

    def save(self, snapshot: checkpoint.Snapshot, best: bool = False) -> float:
        """Hand a snapshot over; returns the seconds this took: next to none, unless the last write still runs."""
        began = time.monotonic()
        self.wait()
        # not a daemon: the interpreter waits for it before it exits. One per write: an idle one would be waited for too
        self._thread = threading.Thread(target=self._write, args=(snapshot, best), name="clusterrun-checkpoint")
        self._thread.start()
        return time.monotonic() - began

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until what was handed over is written or has failed; False if it still runs after `timeout` seconds.

        Raises Superseded if the writer had to stop.
        """
        if self._thread is not None:
            self._thread.join(timeout)
        if self._superseded is not None:
            raise self._superseded
        return self._thread is None or not self._thread.is_alive()

    def _write(self, snapshot: checkpoint.Snapshot, best: bool) -> None:
        began = time.monotonic()
        try:
            checkpoint.write(self._folder, snapshot, self._check)
        except epoch.Superseded as superseded:
            self._superseded = superseded
            return
        except Exception as error:  # in a thread of its own: nobody else would hear of it
            self.failure = _reason(error)
            self._say(
                f"CHECKPOINT of step {snapshot.step} NOT SAVED: {self.failure} ({self._folder}):"
                f" training goes on; {self._last_good()}"
            )
            return
        self.seconds = time.monotonic() - began
        self.last_saved, self.failure = snapshot.step, None
        try:
            if best:
                atomic_files.put(self._folder / BEST, json.dumps({"step": snapshot.step}), self._check)
                self.best = snapshot.step
            checkpoint.prune(self._folder, self._keep_last, self.best, self._in_use, self._run_id, self._check)
        except epoch.Superseded as superseded:
            self._superseded = superseded
        except OSError as error:
            self._say(f"step {snapshot.step} is saved, but {self._folder} cannot be tidied: {_reason(error)}")

    def _last_good(self) -> str:
        if self.last_saved is not None:
            return f"the last good one is step {self.last_saved}"
        if self._in_use is not None:
            return f"the last good one is {self._in_use.name}"
        return "there is no good one yet"

    @staticmethod
    def _say(text: str) -> None:
        try:
            print(f"clusterrun: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass  # the log may be on the disk that is full


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else end_records.describe_error(error)


def _read_best(folder: Path) -> int | None:
    try:
        return int(json.loads(atomic_files.read_small(folder / BEST))["step"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
