"""The queue cache: squeue's last answer about the user's jobs, in a file.

Other processes of the user share it for some seconds, and it is what is known while Slurm does not respond. The age of
an answer is measured by the clock that runs since this machine was booted, which nobody can set. An answer of another
machine or of an earlier boot has no age, so each machine has a file of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, parse_object
from clusterrun.base.job import JobId, JobStatus
from clusterrun.run_folder import atomic, safe_files
from clusterrun.run_folder.safe_files import written_at
from clusterrun.scheduler import Answer
from clusterrun.scheduler.slurm.squeue import FIELDS_ID, parse_squeue
from clusterrun.system.processes import boot_id, clock, host_name

#: Seconds for which an answer is shared, counted from the start of its query.
FRESH = 10.0
#: Seconds by which the clocks of two file systems may differ, so that an answer seems younger than it is.
SKEW = 2.0
#: Seconds to wait for a query of another process before starting one beside it.
PATIENCE = 5.0
_SUFFIX = f".{FIELDS_ID}.squeue"
_POLL = 0.1  # seconds between two looks at the cache while another process queries
_DRIFT = 1.0  # seconds by which the wall clock may drift against the boot clock before it counts as set


class QueueCache:
    """The last answers of ``squeue --me``, in ``folder``, by the name of a Slurm configuration."""

    def __init__(
        self, folder: Path, configuration: str, cluster: str, *,
        clock: Callable[[], float] = clock, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._folder, self._name, self._cluster = folder, configuration, cluster
        self._clock, self._wall = clock, wall
        here = folder / f"{configuration}.{re.sub(r'[^A-Za-z0-9_-]+', '_', host_name())}"
        self._path, self._querying = here.with_name(here.name + _SUFFIX), here.with_name(here.name + ".asking")
        self._changed = here.with_name(here.name + ".changed")
        self._claim: int | None = None

    def now(self) -> float:
        """Return the seconds since the machine was booted, as ``save`` takes them."""
        return self._clock()

    def save(self, stdout: str, begun: float) -> None:
        """Save squeue's output. ``begun`` is when the query started, by ``now``."""
        data = stdout.encode("utf-8", "surrogateescape")
        with contextlib.suppress(OSError):  # a cache
            head = {"cluster": self._cluster, "boot": boot_id(), "begun": begun, "took": self._clock() - begun,
                    "wall": self._wall() - self._clock(), "crc": zlib.crc32(data)}  # fmt: skip
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic.replacing(self._path, lasting=False) as file:
                file.write(json.dumps(head).encode() + b"\n" + data)

    def load_newest(self) -> tuple[list[JobStatus], int] | None:
        """Return the newest answer of any machine, and the epoch second of its file; None if there is none."""
        found = [one for path in self._folder.glob(f"{self._name}.*{_SUFFIX}") if (one := _load(path)) is not None]
        if not found:
            return None
        _, stdout, at = max(found, key=lambda one: one[2])
        return parse_squeue(stdout), int(at)

    def load(self) -> tuple[list[JobStatus], float, float] | None:
        """Return the last answer of this machine; None if its age is unknown or the user changed a job after it.

        With it, how many seconds ago its query started, and at which epoch second of the file system.
        """
        loaded = _load(self._path)
        if loaded is None:
            return None
        head, stdout, at = loaded
        try:
            if head["cluster"] != self._cluster or head["boot"] != boot_id():
                return None
            age, begun = self._clock() - float(head["begun"]), at - float(head["took"])
            set_since = abs(self._wall() - self._clock() - float(head["wall"])) > _DRIFT
        except (KeyError, TypeError, ValueError, OSError):
            return None
        if set_since or age < 0 or written_at(self._changed) >= begun:
            return None
        return parse_squeue(stdout), age, begun

    def invalidate(self) -> None:
        """Invalidate the answers so far, after the user changed a job."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._changed, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            os.utime(self._changed)

    def query(
        self,
        squeue: Callable[[], Answer],
        ids: Collection[JobId],
        since: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> tuple[Answer, float]:
        """Return the user's jobs and the age of the answer in seconds: 0 if ``squeue`` was called now.

        A cached answer is used only if it contains every one of the ids, none of them has ended, and its query started
        after epoch second ``since``, the last change in the runs' own records (infinite: never use the cache). A query
        that another process is running is waited for, at most ``PATIENCE`` seconds.
        """
        if math.isinf(since):
            return squeue(), 0.0
        waited = 0.0
        while (cached := self._usable(ids, since)) is None and not self.begin_query() and waited < PATIENCE:
            sleep(_POLL)
            waited += _POLL
        try:
            # the other process may have got its answer between the last look and the claim
            cached = cached or self._usable(ids, since)
            return cached or (squeue(), 0.0)
        finally:
            self.end_query()

    def _usable(self, ids: Collection[JobId], since: float) -> tuple[Answer, float] | None:
        cached = self.load()
        if cached is None:
            return None
        jobs, age, begun = cached
        is_usable = age < FRESH and begun - SKEW > since and _are_active(ids, jobs)
        return (Answer(jobs), age) if is_usable else None

    def begin_query(self) -> bool:
        """Claim the next query by a lock; return False while another process of the user has claimed it."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._claim is None:
                self._claim = os.open(self._querying, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # no lock can be taken here: then every process queries
            pass
        return True

    def end_query(self) -> None:
        """Give the claim back."""
        if self._claim is not None:
            os.close(self._claim)
        self._claim = None


def _are_active(ids: Collection[JobId], jobs: Sequence[JobStatus]) -> bool:
    """Return whether the jobs of an answer include every one of the ids, and none of these has ended."""
    wanted = {id.base for id in ids}
    rows = [job for job in jobs if job.id.base in wanted]
    return {job.id.base for job in rows} == wanted and not any(job.is_over for job in rows)


def _load(path: Path) -> tuple[dict[str, Any], str, float] | None:
    """Return the header of a cache file, squeue's output, and the file's time; None if damaged or another user's."""
    try:
        with safe_files.open_file(path, owner=os.getuid()) as file:
            info = os.fstat(file)
            line, _, data = os.pread(file, info.st_size, 0).partition(b"\n")
        head = parse_object(line)
        if head.get("crc") != zlib.crc32(data):
            return None
        return head, data.decode("utf-8", "replace"), info.st_mtime
    except (OSError, Damaged):
        return None
