"""Slurm's last answer on my jobs, as a file: for when Slurm is silent, and for my other windows a moment later.

How old an answer is, is told by the clock that has run since this machine was started, which nobody can set; so one of
another machine or from before a restart has no age, and each machine has a file of its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterrun.job import JobId, JobStatus
from clusterrun.records.run_record import written_at
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.local.processes import boot_id, host_name, is_alive, look
from clusterrun.scheduler.slurm.squeue import parse_squeue

#: Seconds after which nobody waits any more for the one who said that he asks.
TURN = 10.0
_DRIFT = 1.0  # seconds by which the clock on the wall may have moved against the other before it was set


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """What Slurm told of my jobs: its question was begun ``age`` seconds ago, when files that were written got the
    time ``begun``, in epoch seconds."""

    jobs: Sequence[JobStatus]
    age: float
    begun: float


class QueueCache:
    """The last answers on my jobs to ``squeue --me``, in ``folder``, under the name of a configuration of Slurm."""

    def __init__(
        self, folder: Path, configuration: str, cluster: str, *,
        clock: Callable[[], float] | None = None, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._folder, self._name, self._cluster = folder, configuration, cluster
        self._clock, self._wall = clock or _since_boot, wall
        here = folder / f"{configuration}.{re.sub(r'[^A-Za-z0-9_-]+', '_', host_name())}"
        self._path, self._turn = here.with_name(here.name + ".squeue"), here.with_name(here.name + ".asking")
        self._changed = here.with_name(here.name + ".changed")
        self._mine = ""

    def now(self) -> float:
        """This moment, for ``keep``: seconds since the machine was started."""
        return self._clock()

    def keep(self, said: str, begun: float) -> None:
        """Keep an answer whose question was begun at ``begun``."""
        data = said.encode("utf-8", "surrogateescape")
        with contextlib.suppress(OSError):  # a cache
            head = {"cluster": self._cluster, "boot": boot_id(), "begun": begun, "took": self._clock() - begun,
                    "wall": self._wall() - self._clock(), "crc": zlib.crc32(data)}  # fmt: skip
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.{threading.get_ident()}")
            try:
                with open(temporary, "wb", opener=_private) as file:
                    file.write(json.dumps(head).encode() + b"\n" + data)
                temporary.rename(self._path)
            except OSError:  # a full disk, which must not fill with these
                temporary.unlink(missing_ok=True)
                raise

    def last(self) -> tuple[list[JobStatus], int] | None:
        """The newest answer of any machine, and the epoch second at which it was kept; None where there is none."""
        found = [read for path in self._folder.glob(f"{self._name}.*.squeue") if (read := _read(path)) is not None]
        if not found:
            return None
        _, said, at = max(found, key=lambda one: one[2])
        return parse_squeue(said), int(at)

    def heard(self) -> CachedAnswer | None:
        """The answer that was heard last on this machine; None where its age cannot be told, or a change of mine came
        after it."""
        read = _read(self._path)
        if read is None:
            return None
        head, said, at = read
        try:
            if head["cluster"] != self._cluster or head["boot"] != boot_id():
                return None
            age, begun = self._clock() - float(head["begun"]), at - float(head["took"])
            set_since = abs(self._wall() - self._clock() - float(head["wall"])) > _DRIFT
        except (KeyError, TypeError, ValueError, OSError):
            return None
        if set_since or age < 0 or written_at(self._changed) >= begun:
            return None
        return CachedAnswer(parse_squeue(said), age, begun)

    def outdate(self) -> None:
        """I have changed a job: what was heard before tells less than the truth."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._changed, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            os.utime(self._changed)

    def take_turn(self) -> bool:
        """Say that I ask; False where another window of mine does at this moment.

        The word is a symbolic link, which is made whole or not at all on any file system. Two that find a word left
        behind at the same moment may both take it: then there is a question more.
        """
        for _ in range(2):
            try:
                me = look(os.getpid())
                mine = f"{boot_id()} {os.getpid()} {me.start if me else 0} {self._clock():.6f}"
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._turn.symlink_to(mine)
                self._mine = mine
                return True
            except FileExistsError:
                if self._is_held():
                    return False
                with contextlib.suppress(OSError):
                    self._turn.unlink()
            except OSError:
                return True  # no room for a word: then everybody asks
        return False

    def end_turn(self) -> None:
        """I have been answered, or not."""
        with contextlib.suppress(OSError):
            if self._mine and str(self._turn.readlink()) == self._mine:
                self._turn.unlink()
        self._mine = ""

    def _is_held(self) -> bool:
        try:
            boot, pid, start, at = str(self._turn.readlink()).split(" ")
            lives = boot == boot_id() and is_alive(int(pid), int(start))
            return lives and 0 <= self._clock() - float(at) < TURN
        except (OSError, ValueError):
            return False


def _read(path: Path) -> tuple[dict[str, Any], str, float] | None:
    """The head of a kept answer, the answer, and when it was written; None for one that is damaged or not mine."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(file.fileno())
            if info.st_uid != os.getuid() or not stat.S_ISREG(info.st_mode):
                return None
            line, _, data = file.read().partition(b"\n")
        head = json.loads(line)
        if not isinstance(head, dict) or head.get("crc") != zlib.crc32(data):
            return None
        return head, data.decode("utf-8", "replace"), info.st_mtime
    except (OSError, ValueError, RecursionError):
        return None


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


#: Seconds since its question was begun for which an answer serves other windows.
FRESH = 10.0
#: Seconds by which the clocks of two file systems may differ, so that an answer seems younger than it is.
SKEW = 2.0
#: Seconds for which an answer to another window is waited for, before asking beside it.
PATIENCE = 5.0
_LOOK = 0.1


def cached_query(
    scheduler: Scheduler, ids: Collection[JobId], since: float, *, sleep: Callable[[float], None] = time.sleep
) -> tuple[Answer, float]:
    """All of my jobs, and the age in seconds of that answer: 0 where it was asked for now.

    Another window's answer is taken only where none of the ids is missing from it or over in it, and where its question
    was begun after ``since``, the epoch second of what files told last (infinite: it is asked for in any case). Whoever
    asks at this moment is waited for, never for long.
    """
    kept: QueueCache | None = getattr(scheduler, "kept", None)
    if kept is None or math.isinf(since):
        return scheduler.query(), 0.0
    waited = 0.0
    while (known := _known(kept, ids, since)) is None and not kept.take_turn() and waited < PATIENCE:
        sleep(_LOOK)
        waited += _LOOK
    try:
        # whoever had the turn before may have been answered while it was being taken
        known = known or _known(kept, ids, since)
        return known or (scheduler.query(), 0.0)
    finally:
        kept.end_turn()


def _known(kept: QueueCache, ids: Collection[JobId], since: float) -> tuple[Answer, float] | None:
    heard = kept.heard()
    if heard is None or heard.age >= FRESH or heard.begun - SKEW <= since:
        return None
    wanted = {one.base for one in ids}
    rows = [job for job in heard.jobs if job.id.base in wanted]
    if {job.id.base for job in rows} != wanted or any(job.is_over for job in rows):
        return None
    return Answer(heard.jobs), heard.age
