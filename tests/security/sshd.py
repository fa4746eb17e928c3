"""A real sshd on this machine's loopback: how a user reaches another user's account, and how links are cut."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from lab.releases import SEARCH_PATH
from tests.security.people import Person
from tests.support.patience import until

HOST = "cluster"


class LoginNode:
    """An sshd for one account; ``welcome`` gives another user a key to it, under the name ``cluster``."""

    def __init__(self, folder: Path, account: Person) -> None:
        self.folder, self.account = folder, account
        folder.mkdir()
        folder.chmod(0o755)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd keeps an empty folder there
        # no password can be right, but the account is not locked: sshd lets no key into a locked one
        subprocess.run(["usermod", "-p", "*", account.name], check=True, capture_output=True, env={"PATH": SEARCH_PATH})
        self._keygen(folder / "host_key")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        home = account.home  # the account's entry in the user database has no home
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AllowUsers {account.name}\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"AuthorizedKeysFile {folder}/keys\nStrictModes no\nMaxStartups 100\nLogLevel VERBOSE\n"
            f"SetEnv HOME={home} SLURM_CONF={account.env['SLURM_CONF']}\n"
        )
        (folder / "keys").touch()
        self._sshd: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Listen for connections."""
        sshd = shutil.which("sshd", path=SEARCH_PATH)
        assert sshd is not None
        with open(self.folder / "log", "ab") as log:
            self._sshd = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env={"PATH": SEARCH_PATH},
            )  # fmt: skip
        until(self._listens, 20, f"sshd listens: {self.folder}/log")

    def welcome(self, person: Person) -> None:
        """Give a user a key, and an ssh that reads a configuration: users of tests have no home for one."""
        ssh, tools = person.home / ".ssh-of-test", person.home / "bin"
        ssh.mkdir(exist_ok=True)
        tools.mkdir(exist_ok=True)
        self._keygen(ssh / "key")
        with (self.folder / "keys").open("a") as keys:
            keys.write((ssh / "key.pub").read_text())
        (ssh / "known").write_text(f"[127.0.0.1]:{self.port} {(self.folder / 'host_key.pub').read_text()}")
        (ssh / "config").write_text(
            f"Host {HOST}\n  HostName 127.0.0.1\n  Port {self.port}\n  User {self.account.name}\n"
            f"  IdentityFile {ssh}/key\n  IdentitiesOnly yes\n  UserKnownHostsFile {ssh}/known\n"
            "  StrictHostKeyChecking yes\n"
        )
        (tools / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh", path=SEARCH_PATH)} -F {ssh}/config "$@"\n')
        (tools / "ssh").chmod(0o755)
        ssh.chmod(0o700)
        person.own(ssh)
        person.own(tools)
        person.env["PATH"] = f"{tools}:{person.env['PATH']}"

    def connections(self) -> list[int]:
        """Return the pids of the sshd processes that serve connections, those of a connection's user first."""
        return self._children(self._children([self._sshd.pid])) + self._children([self._sshd.pid]) if self._sshd else []

    def cut(self) -> None:
        """Cut all connections at once; the programs they started keep running."""
        for pid in reversed(self.connections()):
            _signal(pid, signal.SIGKILL)

    def freeze(self) -> list[int]:
        """Let all connections hang, as if no packet arrived any more; return them for ``_signal``."""
        pids = self.connections()
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        return pids

    def cut_for(self, seconds: float) -> None:
        """Let all connections hang for this time."""
        began, frozen = time.monotonic(), self.freeze()
        until(lambda: time.monotonic() - began >= seconds, seconds + 10, "the time passes")
        for pid in frozen:
            _signal(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Refuse connections, and cut those there are."""
        if self._sshd is not None:
            self.cut()
            self._sshd.kill()
            self._sshd.wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @staticmethod
    def _children(parents: list[int]) -> list[int]:
        """Return the sshd processes whose parents these are; not the programs that they started."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            if re.fullmatch(r"sshd(-session|-auth)?", name) and int(rest.split()[1]) in parents:
                found.append(int(stat.parent.name))
        return found

    @staticmethod
    def _keygen(path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
