"""The other host of a command: which it is, and commands there, all over one OpenSSH connection.

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from clusterrun.base.errors import CommandError, RequestError, SchedulerError
from clusterrun.config.files import PROJECT_FILE, find_root, is_file
from clusterrun.config.profiles import Profiles, load_profiles
from clusterrun.records.agreed import has_agreed
from clusterrun.remote.past_banner import COMMAND, strip
from clusterrun.system import shell
from clusterrun.system.work_tree import run_git

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


PROJECTS = "clusterrun-projects"
"""The folder for projects in the home folder there."""


@dataclass(frozen=True)
class Target:
    """A host, the project's folder here and there, and the current folder below it."""

    host: str
    root: Path
    folder: str
    """From the home folder there, or absolute; letters, digits and ``_./+-`` only."""
    below: PurePosixPath
    profiles: Profiles
    chosen_by: str = ""
    """The file of the project that chose the host or the folder, empty if the user did."""

    @property
    def agreement(self) -> tuple[str, ...]:
        return ("remote", str(self.root), self.host, self.folder)


def find_target(host: str | None, cwd: Path, environ: Mapping[str, str], profile: str | None) -> Target | None:
    """Return where a command runs: on ``host``, else on the profile's ``remote``, None for this machine.

    An empty host means this machine. Raises ConfigError for an invalid profile, RequestError for an invalid folder.
    """
    profiles = load_profiles(cwd, environ, profile)
    configured = profiles.remote.get("remote")
    name = host if host is not None else configured.value if configured else ""
    if not name:
        return None
    root = project_root(cwd)
    folder = profiles.remote.get("remote-dir")
    where = str(folder.value).removeprefix("~/") if folder else default_folder(root)
    if not re.fullmatch(r"[A-Za-z0-9_./+-]+", where, re.ASCII) or where.startswith("-"):
        raise RequestError(
            f"remote-dir: {where[:80]!r} has unsupported characters",
            hint="use only letters, digits and _ . / + - (after an optional ~/), for example"
            ' remote-dir = "~/projects/vision"',
        )
    foreign = profiles.remote_of_project - ({"remote"} if host is not None else set())
    chosen_by = next((profiles.remote[key].source for key in sorted(foreign)), "")
    return Target(name, root, where, PurePosixPath(cwd.relative_to(root)), profiles, chosen_by)


def require_agreement(target: Target, state: Path) -> None:
    """Raise RequestError for a host or a folder that a file of the project chose and the user has not agreed to."""
    if not target.chosen_by or has_agreed(state, *target.agreement):
        return
    table = re.search(r" \[profile\.(.+)\]$", target.chosen_by)
    profile = f" --profile {shlex.quote(table[1])}" if table else ""
    raise RequestError(
        f"{target.chosen_by} runs commands on {target.host}, with the project's files in {target.folder} there;"
        " you have not agreed to that, and nothing was sent",
        hint=f"to agree, run in this project: clusterrun remote setup {shlex.quote(target.host)}{profile}",
    )


def project_root(cwd: Path) -> Path:
    """Return the folder with ``clusterrun.toml``, else the top of the git work tree, else the current folder."""
    root = find_root(cwd)
    if is_file(root / PROJECT_FILE):
        return root
    try:
        top = Path(run_git(cwd, os.environ, "rev-parse", "--show-toplevel").rstrip("\n"))
    except CommandError:
        return cwd
    return top if top.is_absolute() and cwd.is_relative_to(top) else cwd


def default_folder(root: Path) -> str:
    """Return the project's folder there: its name, and a hash of this machine's name and the path here."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", root.name)[:40].lstrip("._-") or "project"
    mark = hashlib.sha256(os.fsencode(f"{os.uname().nodename}:{root}")).hexdigest()[:8]
    return f"{PROJECTS}/{name}-{mark}"


def make_folder(path: str) -> str:
    """Return the command of bash that makes a folder there for its owner alone; an existing one stays as it is.

    ``path`` is quoted already. A umask, since ``mkdir -p -m`` sets the mode of the last folder only.
    """
    return f"(umask 077; mkdir -p {path})"
