"""Who has which lab on this machine: names, indexes (hence subnet, bridge and ports), owners and locks.

A lab's index settles everything that two labs must not share. It is claimed under a lock and written down in a small
file, so two labs that start at the same moment get different ones, and a later command finds the lab by its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.errors import LabError
from lab.procs import start_time

REGISTRY = Path("/run/clusterrun-lab")
NAME = re.compile(r"[a-z](-?[a-z0-9]){0,15}")
INDEXES = range(1, 250)


@dataclass(frozen=True)
class Claim:
    """One lab's entry: its index, its folder, and the process that it must not outlive (pid, start time), if any."""

    name: str
    index: int
    folder: str
    owner: tuple[int, int] | None = None

    @property
    def subnet(self) -> str:
        """The first three numbers of the lab's addresses, from the range kept for benchmarks (RFC 2544)."""
        return f"198.18.{self.index}"

    @property
    def gateway(self) -> str:
        """The bridge's own address: where slurmctld and slurmdbd listen."""
        return f"{self.subnet}.254"

    @property
    def bridge(self) -> str:
        """The bridge's name (an interface name has at most 15 letters)."""
        return f"crl{self.index}"

    @property
    def ctld_port(self) -> int:
        """The port of slurmctld, below the range that the kernel hands out to clients."""
        return 21000 + 10 * self.index

    @property
    def dbd_port(self) -> int:
        """The port of slurmdbd."""
        return self.ctld_port + 1

    @property
    def orphaned(self) -> bool:
        """True when the process that owned this lab is gone."""
        return self.owner is not None and start_time(self.owner[0]) != self.owner[1]


@contextlib.contextmanager
def lock(name: str, timeout: float = 120.0) -> Iterator[None]:
    """Hold the machine-wide lock of this name; waits at most `timeout` seconds."""
    REGISTRY.mkdir(mode=0o755, exist_ok=True)
    path = REGISTRY / f"{name}.lock"
    deadline = time.monotonic() + timeout
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file: then this lock locks nothing, so try again.
            if path.stat().st_ino == os.fstat(handle).st_ino:
                break
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(handle)
        if time.monotonic() > deadline:
            raise LabError(f"lock {path} is held by another process for {timeout:g} s")
        time.sleep(0.05)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def claims() -> dict[str, Claim]:
    """All claims on this machine, by the lab's name; an unreadable one is left out."""
    found = {}
    for path in sorted(REGISTRY.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            data = json.loads(path.read_text(encoding="utf-8"))
            data["owner"] = tuple(data["owner"]) if data["owner"] else None
            found[data["name"]] = Claim(**data)
    return found


def _free(index: int) -> bool:
    trial = Claim("", index, "")
    if Path(f"/sys/class/net/{trial.bridge}").exists():
        return False
    addresses = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout
    if f" {trial.subnet}." in addresses:
        return False
    for port in (trial.ctld_port, trial.dbd_port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                return False
    return True


def take(name: str, folder: Path, owner: int | None = None) -> Claim:
    """Claim an index for this lab, or give back the one it has; `owner` is a pid the lab must not outlive."""
    if not NAME.fullmatch(name):
        raise LabError(f"lab name {name!r}: use up to 16 of a-z, 0-9 and single dashes, a letter first")
    born = start_time(owner) if owner else None
    who = (owner, born) if owner and born is not None else None
    with lock("registry"):
        known = claims()
        old = known.get(name)
        if old is not None:
            index = old.index
        else:
            used = {claim.index for claim in known.values()}
            index = next((i for i in INDEXES if i not in used and _free(i)), 0)
            if not index:
                raise LabError(f"no free subnet for a lab: {len(used)} are claimed in {REGISTRY}")
        claim = Claim(name, index, str(folder), who)
        path = REGISTRY / f"{name}.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(claim)), encoding="utf-8")
        fresh.replace(path)
        return claim


def release(name: str) -> None:
    """Give the lab's index back."""
    with lock("registry"):
        (REGISTRY / f"{name}.json").unlink(missing_ok=True)
