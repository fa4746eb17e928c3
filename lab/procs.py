"""Processes of the lab: started apart from the caller, known by pid and start time, ended only by pid."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from lab.errors import LabError
from lab.releases import SEARCH_PATH

# Writes "PID STARTTIME" before it becomes the daemon (exec keeps both), so that the pid is on disk before the
# daemon does anything, and a pid that the kernel reused is never taken for the daemon's.
_BIRTH = """
pidfile=$1 log=$2; shift 2
read -r stat </proc/$$/stat
echo "$stat" | cut -d' ' -f1,22 >"$pidfile"
exec "$@" >>"$log" 2>&1 </dev/null
"""


def start_time(pid: int) -> int | None:
    """When the process was born, in clock ticks since boot; None when it is gone or a zombie.

    A process whose main thread alone is a zombie is still there: the other threads hold its files and ports.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" and int(fields[17]) <= 1 else int(fields[19])


def state(pid: int) -> str:
    """Return the kernel's one-letter state of a process (R, S, D, T …), or an empty string when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_until(condition: Callable[[], bool], timeout: float, what: str, interval: float = 0.05) -> None:
    """Return as soon as `condition()` holds; raise LabError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {timeout:g} s")
        time.sleep(interval)


def kill_pids(pids: Iterable[int], timeout: float = 5.0) -> list[int]:
    """Send SIGKILL to these processes, wait until they are gone, and return those that are still there."""
    born = {pid: start_time(pid) for pid in pids}
    for pid in born:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout

    def left() -> list[int]:
        return [pid for pid, birth in born.items() if birth is not None and start_time(pid) == birth]

    while left() and time.monotonic() < deadline:
        time.sleep(0.02)
    return left()


def pids_in_netns(inode: int) -> list[int]:
    """All processes whose network namespace has this inode number."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "ns/net").stat().st_ino == inode:
                found.append(int(entry.name))
    return found


def daemons_of_folder(folder: Path, programs: Sequence[str]) -> list[int]:
    """Return the pids of these programs that name `folder` in their arguments or in SLURM_CONF."""
    needle = os.fsencode(f"{folder}/")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Debian's slurmd is a link to slurmd-wlm, and an upgraded program's name ends in " (deleted)".
            if re.split(r"[- ]", (entry / "exe").readlink().name)[0] not in programs:
                continue
            args = (entry / "cmdline").read_bytes().split(b"\0")
            env = (entry / "environ").read_bytes().split(b"\0")
            if any(needle in arg for arg in args) or any(v.startswith(b"SLURM_CONF=" + needle) for v in env):
                found.append(int(entry.name))
    return found


def tail(path: Path, lines: int = 12) -> str:
    """Return the last lines of a log, or why there are none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"({error})"
    return "\n".join(text[-lines:]) or "(empty)"


def pid_of_file(path: Path) -> int | None:
    """Return the pid in a file written at a daemon's birth while that very process lives, else None."""
    try:
        pid, born = (int(word) for word in path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return pid if start_time(pid) == born else None


class Daemon:
    """One daemon of a lab: start it, see whether it lives, stop, continue, terminate or kill it.

    `ready` answers whether the daemon does its work; it may take a second or two to ask and must not raise.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        folder: Path,
        ready: Callable[[], bool],
        env: dict[str, str] | None = None,
        log: Path | None = None,
        before_start: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.pidfile = folder / "pid" / name
        self.out = folder / "log" / f"{name}.out"
        self.log = log or self.out
        self._ready = ready
        self._before_start = before_start
        self._env = {"PATH": SEARCH_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", "SHELL": "/bin/sh", **(env or {})}

    def __repr__(self) -> str:
        return f"Daemon({self.name!r}, pid={self.pid}, state={self.state!r})"

    @property
    def pid(self) -> int | None:
        """The pid while the daemon lives, else None; a reused pid does not count."""
        return pid_of_file(self.pidfile)

    @property
    def state(self) -> str:
        """`running`, `stopped` (SIGSTOP) or `dead`."""
        pid = self.pid
        if pid is None:
            return "dead"
        return "stopped" if state(pid) in ("T", "t") else "running"

    def start(self, wait: float | None = 30.0) -> None:
        """Start the daemon if it is dead and wait until it works; `wait=None` does not wait."""
        if self.pid is None:
            if self._before_start:
                self._before_start()
            self.pidfile.unlink(missing_ok=True)
            # setsid --fork: no controlling terminal and not our child, so it outlives us and leaves us no zombie.
            # The environment is made from nothing, so no variable of a test runner reaches a daemon or a job.
            argv = ["setsid", "--fork", "sh", "-c", _BIRTH, "lab-birth", str(self.pidfile), str(self.out), *self.argv]
            subprocess.run(argv, env=self._env, cwd="/", stdin=subprocess.DEVNULL, check=True, umask=0o022)
            wait_until(lambda: self.pidfile.exists() and self.pidfile.stat().st_size > 0, 10, f"start of {self.name}")
        if wait is not None:
            self.wait_ready(wait)

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until the daemon does its work; on failure say why with the tail of its log."""
        deadline = time.monotonic() + timeout
        while not (self.state == "running" and self._ready()):
            gone = self.pid is None
            if gone or time.monotonic() > deadline:
                why = "ended at once" if gone else f"is not ready after {timeout:g} s"
                logs = dict.fromkeys((self.out, self.log))
                text = "\n".join(f"--- {path}\n{tail(path)}" for path in logs)
                raise LabError(f"{self.name} {why}\n{text}")
            time.sleep(0.05)

    def _signal(self, number: int) -> bool:
        pid = self.pid
        if pid is None:
            return False
        os.kill(pid, number)
        return True

    def stop(self) -> None:
        """Freeze the daemon (SIGSTOP): it keeps its sockets and answers nobody."""
        if self._signal(signal.SIGSTOP):
            wait_until(lambda: self.state != "running", 5, f"stop of {self.name}", 0.005)

    def cont(self) -> None:
        """Continue a frozen daemon (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def hangup(self) -> None:
        """Make the daemon read its configuration again (SIGHUP); a slurmd also registers again at once."""
        self._signal(signal.SIGHUP)

    def kill(self) -> None:
        """End the daemon with SIGKILL, as a crash would; what it did not save is lost."""
        if (pid := self.pid) and kill_pids([pid]):
            raise LabError(f"{self.name} (pid {pid}) does not die")

    def terminate(self, timeout: float = 20.0) -> None:
        """End the daemon with SIGTERM and wait until it is gone, as a service manager would."""
        if self._signal(signal.SIGTERM):
            self._signal(signal.SIGCONT)
            wait_until(lambda: self.pid is None, timeout, f"end of {self.name}")

    def restart(self, wait: float | None = 30.0) -> None:
        """Terminate the daemon gracefully and start it again."""
        self.terminate()
        self.start(wait)
