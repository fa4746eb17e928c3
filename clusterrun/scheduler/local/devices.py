"""This machine's CUDA devices: counted without CUDA, and assigned to local jobs.

    <state>/local/devices/<host>/<device>/owner.json   the claim of one device, created by one rename
                                 queue/L7/owner.json   a job that waits for devices; the lowest number is first
                                 lock                  held while a claim is created, never while a job runs

A device is identified by its name in CUDA_VISIBLE_DEVICES, so a device that is a number in one job and a UUID in
another counts as two. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from clusterrun.scheduler.local import mark
from clusterrun.scheduler.local.jobfiles import identity_of, is_given_up, is_id
from clusterrun.scheduler.local.processes import Identity, Life, members
from clusterrun.scheduler.local.safe_files import Unreadable, read_json, write_json

_OWNER = "owner.json"


def visible(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the CUDA devices that a job with that environment sees, in CUDA's order."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        drivers = _count(Path("/proc/driver/nvidia/gpus"), r".+")
        nodes = _count(Path("/dev"), r"nvidia[0-9]+")
        # a container may show the driver's whole list and only its own device files
        return tuple(str(n) for n in range(min(drivers, nodes) or max(drivers, nodes)))
    devices: list[str] = []
    for name in (part.strip() for part in named.split(",")):
        # CUDA stops at the first invalid name (often -1) and ignores repetitions
        if not re.fullmatch(r"[0-9]+|(GPU|MIG)-[A-Za-z0-9/-]+", name, re.ASCII) or name in devices:
            break
        devices.append(name)
    return tuple(devices)


def _count(folder: Path, pattern: str) -> int:
    try:
        return sum(re.fullmatch(pattern, entry.name) is not None for entry in folder.iterdir())
    except OSError:
        return 0


class Devices:
    """One job's claims on devices; they are valid while the process ``supervisor`` is alive."""

    def __init__(self, root: Path, job: str, token: str, supervisor: Identity) -> None:
        self._root = root
        self._folder = root / "devices" / supervisor.host
        self._job = job
        self._owner = {"job": job, "token": token, "supervisor": asdict(supervisor)}
        self._held: list[Path] = []

    def take(self, devices: Sequence[str], count: int) -> tuple[str, ...]:
        """Claim ``count`` devices, or none if it is not this job's turn. Raises OSError."""
        self._make(self._folder / "queue")
        ticket = self._folder / "queue" / self._job
        if not ticket.exists():
            self._put(ticket)
        with self._lock() as locked:
            if not locked or self._waits_behind():
                return ()
            free = [device for device in devices if not self._is_taken(self._claim(device))][:count]
            if len(free) < count:
                return ()
            for device in free:
                try:
                    self._put(self._claim(device))
                except OSError:
                    self._drop()
                    return ()
                self._held.append(self._claim(device))
            shutil.rmtree(ticket, ignore_errors=True)
        return tuple(free)

    def release(self) -> None:
        """Release the claims and the place in the queue."""
        self._drop()
        shutil.rmtree(self._folder / "queue" / self._job, ignore_errors=True)

    def _drop(self) -> None:
        for claim in self._held:
            shutil.rmtree(claim, ignore_errors=True)
        self._held.clear()

    def _claim(self, device: str) -> Path:
        return self._folder / f"cuda-{device.replace('/', '_')}"

    def _make(self, folder: Path) -> None:
        for path in (self._folder.parent, self._folder, folder):
            path.mkdir(mode=0o700, exist_ok=True)

    def _put(self, place: Path) -> None:
        """Create a claim atomically. Raises OSError if there is one."""
        draft = self._folder / f".{place.name}.{self._job}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        try:
            write_json(draft / _OWNER, self._owner)
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _waits_behind(self) -> bool:
        """Return whether a job with a lower number is waiting: without an order, large jobs would never start."""
        mine = int(self._job[1:])
        return any(
            int(ticket.name[1:]) < mine and self._is_taken(ticket)
            for ticket in (self._folder / "queue").iterdir()
            if re.fullmatch(r"L[0-9]+", ticket.name, re.ASCII)
        )

    def _is_taken(self, place: Path) -> bool:
        """Return whether a live job holds this claim; remove the claim of a dead one."""
        try:
            owner = read_json(place / _OWNER)
            if owner is None:
                shutil.rmtree(place, ignore_errors=True)  # no claim, or a folder without an owner
                return place.exists()
            job = self._root / (owner["job"] if is_id(owner["job"]) else "")
            life = identity_of(owner["supervisor"]).life(job / mark.NAME)
            token = str(owner["token"])
        except (Unreadable, TypeError, KeyError, ValueError):
            return True  # not readable: leave it alone
        if life is Life.ELSEWHERE and (is_given_up(job) or not job.exists()):
            life = Life.GONE
        if life in (Life.ALIVE, Life.ELSEWHERE) or (life is Life.GONE and members(token)):
            return True
        shutil.rmtree(place, ignore_errors=True)
        return place.exists()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the lock if it is free now; on a file system without locks the atomic renames must do."""
        handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            yield True
        finally:
            os.close(handle)
