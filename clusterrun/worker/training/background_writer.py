"""Writes checkpoints in a thread, one at a time; a full disk does not stop the training."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...base.decode import as_int, parse_object
from ...run_folder import atomic, attempt_number
from ..node.log import say
from ..rank.failures import describe_error
from . import atomic_files, checkpoint

BEST = "best.json"
Write = Callable[[Path, checkpoint.Snapshot, atomic.Check], Path | None]


class BackgroundWriter:
    """Writes checkpoints into a folder, and deletes older ones once a new one is on disk.

    `last_saved` is the last step written to disk, `seconds` how long that took since `save`, and `failure` why the last
    write failed (None if it did not). `best` is the best step, including earlier attempts.
    `in_use`, the checkpoint this run was resumed from, is never deleted, nor are those of other runs than `run_id`.
    `check` raises Superseded where this process may no longer write: then the next `save` or `wait` does.
    `write` returns None on a rank that has written its part of a checkpoint: another one does the rest.
    """

    def __init__(
        self,
        folder: Path,
        keep_last: int,
        in_use: Path | None = None,
        run_id: str | None = None,
        check: atomic.Check = attempt_number.check,
        write: Write | None = None,
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
        self._write_files = write
        self._superseded: attempt_number.Superseded | None = None
        self._thread: threading.Thread | None = None
        atomic_files.sweep(folder)

    def save(self, snapshot: checkpoint.Snapshot, best: bool = False) -> float:
        """Start writing a snapshot; return the seconds this took: almost none, unless the last write still runs."""
        began = time.monotonic()
        self.wait()
        # not a daemon: the interpreter waits for it at exit. One per write: it would wait for an idle thread too
        self._thread = threading.Thread(target=self._write, args=(snapshot, best), name="clusterrun-checkpoint")
        self._thread.start()
        return time.monotonic() - began

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the last write has ended; return False if it still runs after `timeout` seconds.

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
            path = (self._write_files or checkpoint.write)(self._folder, snapshot, self._check)
        except attempt_number.Superseded as superseded:
            self._superseded = superseded
            return
        except Exception as error:  # in a thread: nothing else would report it
            self.failure = _reason(error)
            say(
                f"CHECKPOINT of step {snapshot.step} NOT SAVED: {self.failure} ({self._folder});"
                f" training continues; {self._last_good()}"
            )
            return
        self.seconds = time.monotonic() - began
        self.last_saved, self.failure = snapshot.step, None
        if path is not None:
            self._tidy(snapshot.step, best)

    def _tidy(self, step: int, best: bool) -> None:
        """Note that a step that is on disk is the best one, if it is, and delete older ones."""
        try:
            if best:
                atomic.replace(self._folder / BEST, json.dumps({"step": step}).encode(), mode=None, check=self._check)
                self.best = step
            checkpoint.prune(self._folder, self._keep_last, self.best, self._in_use, self._run_id, self._check)
        except attempt_number.Superseded as superseded:
            self._superseded = superseded
        except OSError as error:
            say(f"saved step {step}; cannot delete old checkpoints in {self._folder}: {_reason(error)}")

    def _last_good(self) -> str:
        if self.last_saved is not None:
            return f"the last good checkpoint is step {self.last_saved}"
        if self._in_use is not None:
            return f"the last good checkpoint is {self._in_use.name}"
        return "no good checkpoint exists yet"


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else describe_error(error)


def _read_best(folder: Path) -> int | None:
    try:
        return as_int(parse_object(atomic_files.read_small(folder / BEST)).get("step"))
    except (OSError, ValueError):
        return None
