"""A private MariaDB for the lab's accounting: its own data folder and socket, no network, no passwords."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from lab.claims import lock
from lab.errors import LabError
from lab.releases import CACHE

# A throw-away database: durability is given up for speed, and little memory is taken.
_TUNING = [
    "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=8M", "--innodb-doublewrite=0", "--innodb-lock-wait-timeout=900", "--performance-schema=OFF",
    "--skip-log-bin", "--max-connections=40", "--max-allowed-packet=16M",
]  # fmt: skip


def server_argv(folder: Path) -> list[str]:
    """Return the command line of this lab's mariadbd; only root reaches its socket, so it asks for no password."""
    return [
        "mariadbd", "--no-defaults", "--user=root", f"--datadir={folder}/mysql/data", f"--socket={folder}/mysql/socket",
        f"--pid-file={folder}/run/mariadbd.pid", "--skip-networking", "--skip-grant-tables", *_TUNING,
        f"--tmpdir={folder}/mysql",  # in /tmp, a mariadbd that starts removes the temporary tables of all others
    ]  # fmt: skip


def prepare(folder: Path) -> None:
    """Fill the lab's data folder from a template that is made once per MariaDB version and kept."""
    argv = ["mariadbd", "--no-defaults", "--version"]
    version = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    label = next((word for word in version.split() if word[:1].isdigit()), "unknown")
    template = CACHE / f"mariadb-{label}"
    with lock("template"):
        if not template.exists():
            fresh = CACHE / f"{template.name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True, mode=0o700)
            argv = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={fresh}", *_TUNING]
            argv.append(f"--tmpdir={CACHE}")
            done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                raise LabError(f"mariadb-install-db failed:\n{(done.stdout + done.stderr)[-1500:]}")
            fresh.rename(template)
    (folder / "mysql").mkdir(mode=0o700)
    subprocess.run(["cp", "-a", "--reflink=auto", str(template), str(folder / "mysql" / "data")], check=True)


def answers(folder: Path) -> bool:
    """Return whether the server greets on its socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(str(folder / "mysql" / "socket"))
            return bool(client.recv(5))
        except OSError:
            return False
