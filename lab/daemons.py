"""The daemons of a lab: how each is started, and when it is ready."""

from __future__ import annotations

import socket

from lab import database, net, query, releases
from lab.procs import Daemon
from lab.spec import LabSpec

PROGRAMS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "slurmstepd")
# A node-local disk at the same path on each node, as /tmp is on a real one. Without the right to mount it is shared.
_NODE_START = """
hostname "$0"
mount -t tmpfs -o size=16m,mode=1777 local "$2"
exec slurmd -D -N "$0" -f "$1"
"""
# A login shell in a job resets PATH, so the node's own commands must be this version's: they lie over the machine's
# in a mount namespace of the node. And slurmd starts the slurmstepd that it was built with unless it is given another.
_OTHER_SLURM_START = """
hostname "$0"
mount -t tmpfs -o size=16m,mode=1777 local "$2"
for program in "$3"/*; do
    place=/usr/bin/${program##*/}
    [ ! -e "$place" ] || mount --bind "$program" "$place" || exit
done
exec slurmd -D -N "$0" -f "$1" -d "$3/slurmstepd"
"""


def make_daemons(lab: LabSpec) -> dict[str, Daemon]:
    """All daemons of this lab by name, in the order in which they start."""
    daemons = [_munged(lab)]
    if lab.accounting:
        daemons += [_mariadbd(lab), _slurmdbd(lab)]
    daemons.append(_slurmctld(lab))
    daemons += [_slurmd(lab, node) for node in lab.node_names]
    return {daemon.name: daemon for daemon in daemons}


def _munged(lab: LabSpec) -> Daemon:
    folder, munge = lab.folder, lab.folder / "munge"

    def ready() -> bool:
        return lab.run(["munge", "--no-input", f"--socket={munge}/socket"]).returncode == 0

    def tidy() -> None:  # after a kill the socket and its lock are still there, and munged would refuse to start
        (munge / "socket").unlink(missing_ok=True)
        (munge / "socket.lock").unlink(missing_ok=True)

    argv = [
        "munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
        f"--seed-file={munge}/seed", f"--log-file={folder}/log/munged.log", f"--pid-file={folder}/run/munged.pid",
    ]  # fmt: skip
    return Daemon("munged", argv, folder, ready, before_start=tidy)


def _mariadbd(lab: LabSpec) -> Daemon:
    folder = lab.folder

    def prepare() -> None:
        if not (folder / "mysql").exists():
            database.prepare(folder)

    argv = database.server_argv(folder)
    return Daemon("mariadbd", argv, folder, lambda: database.answers(folder), before_start=prepare)


def _slurmdbd(lab: LabSpec) -> Daemon:
    # Slurm has no setting for the database's socket; the MariaDB client library takes it from its environment.
    env = {**_env(lab), "MYSQL_UNIX_PORT": str(lab.folder / "mysql" / "socket")}

    def ready() -> bool:
        if not _listens(lab.claim.gateway, lab.claim.dbd_port):
            return False
        return lab.run(["sacctmgr", "-n", "show", "cluster"]).returncode == 0

    return Daemon("slurmdbd", ["slurmdbd", "-D"], lab.folder, ready, env, lab.folder / "log" / "slurmdbd.log")


def _slurmctld(lab: LabSpec) -> Daemon:
    def ready() -> bool:
        if not _listens(lab.claim.gateway, lab.claim.ctld_port):
            return False
        return " is UP" in lab.run(["scontrol", "ping"]).stdout

    argv = ["slurmctld", "-D", "-f", str(lab.conf)]
    return Daemon("slurmctld", argv, lab.folder, ready, _env(lab), lab.folder / "log" / "slurmctld.log")


def _slurmd(lab: LabSpec, node: str) -> Daemon:
    def ready() -> bool:
        # Its port listens before it has registered, so the controller is queried as well.
        return _listens(lab.address(node), 6818) and not query.node_states(lab).get(node, "*").endswith("*")

    # Not `ip netns exec`: it gives the process a /sys of its own without /sys/fs/cgroup, and slurmd will not start.
    argv = ["nsenter", f"--net={net.NETNS / node}", "unshare", "--uts", "--mount", "--propagation=slave"]
    if lab.slurm:
        argv += ["sh", "-c", _OTHER_SLURM_START, node, str(lab.conf), str(lab.local_disk)]
        argv.append(str(releases.programs(lab.slurm)))
    else:
        argv += ["sh", "-c", _NODE_START, node, str(lab.conf), str(lab.local_disk)]

    def prepare() -> None:
        (lab.folder / "spool" / node).mkdir(mode=0o755, exist_ok=True)
        lab.local_disk.mkdir(exist_ok=True)

    return Daemon(node, argv, lab.folder, ready, _env(lab), lab.folder / "log" / f"{node}.log", before_start=prepare)


def _env(lab: LabSpec) -> dict[str, str]:
    return {"SLURM_CONF": str(lab.conf), "PATH": releases.search_path(lab.slurm)}


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
