"""Run commands on another host with the system's OpenSSH, all over one connection that the user opens once.

The user's ssh configuration counts: names, keys, jump hosts. Only the first connection may ask for a password or a
second factor; it stays open for ten minutes without use (``ControlPersist``), and later commands use it in batch mode.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from clusterrun.base.errors import CommandError, RequestError, SchedulerError
from clusterrun.remote.past_banner import COMMAND, strip
from clusterrun.system import shell

LOST = 255
"""The exit status of ssh if the connection failed or was lost."""
_SOCKET = 107 - 17
"""The longest path of a socket in bytes: Linux allows 107, and ssh appends 17 while it binds it."""
_CHECK = 10.0
#: A connection that is lost is noticed within 45 s.
_OPTIONS = (
    "ServerAliveInterval=15", "ServerAliveCountMax=2", "ConnectTimeout=15", "ControlPersist=10m",
)  # fmt: skip


class Unreachable(SchedulerError):
    """The connection to the host could not be made, or was lost."""


@dataclass(frozen=True)
class Host:
    """A host by its name for ssh; ``socket`` is that of the shared connection, None to share none."""

    name: str
    socket: Path | None

    def connect(self) -> None:
        """Open the shared connection unless it is open. ssh may ask for a password on a terminal.

        Raises Unreachable; ssh has printed the reason.
        """
        if self.socket is None:
            return
        batch = "no" if sys.stdin.isatty() else "yes"
        argv = ["ssh", *self._options("ControlMaster=auto", f"BatchMode={batch}"), "-fNn", "--", self.name]
        with self.socket.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the user answers one command's ssh, and the others use its connection
            if self.is_connected() or shell.run_here(argv, os.environ) == 0:
                return
            raise Unreachable(f"cannot connect to {self.name}", hint=f"try: ssh {self.name}")

    def is_connected(self) -> bool:
        """Return whether the shared connection is open; it may be dead without having noticed."""
        return self._control("check")

    def disconnect(self) -> None:
        """Close the shared connection, which no longer answers."""
        self._control("exit")

    def argv(self, command: str, *, terminal: bool = False) -> list[str]:
        """Return the command line of ssh that runs a command in the user's login shell there (bash).

        Without a terminal its output begins after ``past_banner.MARK``.
        """
        mode = () if self.socket is None else ("BatchMode=yes",)
        options = self._options("ControlMaster=no", "LogLevel=ERROR", *mode)
        command = command if terminal else COMMAND + command
        return ["ssh", *options, "-t" if terminal else "-T", "--", self.name, f"exec bash -lc {shlex.quote(command)}"]

    @property
    def rsh(self) -> str:
        """The value of rsync's ``--rsh``; rsync appends the host and its command."""
        ssh = ["ssh", *self._options("ControlMaster=no", "LogLevel=ERROR")]
        reader = [sys.executable, "-P", "-m", "clusterrun.remote.past_banner", str(len(ssh))]
        return shlex.join([*reader, *ssh])

    def run(self, command: str, *, stdin: str | None = None, timeout: float = 60.0) -> shell.Completed:
        """Run a command and return its result. Raises Unreachable if there is no connection or no end in time."""
        try:
            done = shell.run(self.argv(command), env=os.environ, timeout=timeout, stdin=stdin)
        except CommandError as error:
            raise Unreachable(f"{self.name} does not respond", detail=error.detail, hint="try again") from error
        if done.status == LOST:
            raise Unreachable(f"no connection to {self.name}", detail=done.stderr.strip(), hint=f"try: ssh {self.name}")
        return done._replace(stdout=strip(done.stdout))

    def _options(self, *more: str) -> list[str]:
        path = "none" if self.socket is None else f'"{str(self.socket).replace("%", "%%")}"'
        return [word for one in (*_OPTIONS, f"ControlPath={path}", *more) for word in ("-o", one)]

    def _control(self, request: str) -> bool:
        if self.socket is None:
            return False
        try:
            done = shell.run(["ssh", *self._options(), "-O", request, "--", self.name], env=os.environ, timeout=_CHECK)
        except CommandError as error:
            if error.timed_out:
                return False
            hint = "install OpenSSH's client"
            raise SchedulerError("cannot run ssh", detail=error.detail, hint=hint) from error
        return done.status == 0


def find_host(name: str, state: Path) -> Host:
    """Return a host whose connection is shared through the state folder, unless the folder's path is too long.

    Raises RequestError for a name that ssh or rsync would read as something else.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", name, re.ASCII):
        raise RequestError(
            f"--remote: {name[:60]!r} is not a host name", hint="use USER@HOST or a host from your ~/.ssh/config"
        )
    folder = state / "ssh"
    socket = folder / hashlib.sha256(name.encode()).hexdigest()[:12]
    if len(os.fsencode(socket)) > _SOCKET or '"' in str(socket):
        return Host(name, None)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise RequestError(f"{folder} must be a folder that only you can access", hint=f"chmod 700 {folder}")
    return Host(name, socket)
