"""Networks of the lab: a bridge, one network namespace per node, names in /etc/hosts, and links to cut or slow."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.claims import Claim, lock
from lab.errors import LabError

HOSTS = Path("/etc/hosts")
NETNS = Path("/run/netns")


def _call(argv: Sequence[str], stdin: str | None = None) -> None:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _port(claim: Claim, number: int) -> str:
    return f"{claim.bridge}n{number}"


def address(claim: Claim, number: int) -> str:
    """Return the address of the lab's node with this number (from 1)."""
    return f"{claim.subnet}.{number}"


def create(claim: Claim, nodes: Sequence[str]) -> None:
    """Make the bridge and, for each node, a namespace with loopback and one link into the bridge."""
    bridge = claim.bridge
    # A bridge takes the lowest address of its ports, which changes with every port; a fixed one keeps ARP entries true.
    lines = [
        f"link add {bridge} address 02:c1:00:00:{claim.index:02x}:fe type bridge forward_delay 0 stp_state 0",
        f"addr add {claim.gateway}/24 dev {bridge}",
        f"link set {bridge} up",
    ]
    with lock("registry"):  # the first `ip netns add` of a machine mounts /run/netns, and two at once do it twice
        for node in nodes:
            _call(["ip", "netns", "add", node])
    for number, node in enumerate(nodes, 1):
        lines.append(f"link add {_port(claim, number)} type veth peer name eth0 netns {node}")
        lines.append(f"link set {_port(claim, number)} master {bridge} up")
    _call(["ip", "-batch", "-"], "\n".join(lines) + "\n")
    for number, node in enumerate(nodes, 1):
        inside = f"link set lo up\naddr add {address(claim, number)}/24 dev eth0\nlink set eth0 up\n"
        _call(["ip", "-n", node, "-batch", "-"], inside)


def remove(claim: Claim, nodes: Sequence[str]) -> None:
    """Take the bridge, the links and the namespaces away; what is not there is passed over."""
    for node in nodes:
        if (NETNS / node).exists():
            _call(["ip", "netns", "del", node])
    for path in Path("/sys/class/net").iterdir():
        if re.fullmatch(rf"{claim.bridge}(n\d+)?", path.name):
            # A namespace that just went takes its link along a moment later, so the link may be gone by now.
            with contextlib.suppress(LabError):
                _call(["ip", "link", "del", path.name])


def exists(claim: Claim, nodes: Sequence[str]) -> bool:
    """Return whether the bridge and every node's namespace are there."""
    return Path(f"/sys/class/net/{claim.bridge}").exists() and all((NETNS / node).exists() for node in nodes)


def namespaces(prefix: str) -> list[str]:
    """Return the network namespaces whose names are this prefix and a number."""
    if not NETNS.exists():
        return []
    numbered = ((path.name, path.name.removeprefix(prefix)) for path in NETNS.iterdir())
    return [name for name, rest in numbered if name.startswith(prefix) and rest.isdigit()]


def inode(node: str) -> int | None:
    """Return the inode number by which the kernel knows the node's namespace; None when there is none."""
    try:
        return (NETNS / node).stat().st_ino
    except OSError:
        return None


def cut(claim: Claim, number: int) -> None:
    """Pull the node's cable: its interface loses its carrier and nothing passes either way."""
    _call(["ip", "link", "set", _port(claim, number), "down"])


def restore(claim: Claim, number: int, node: str) -> bool:
    """Put the cable back in and take any speed limit away; True when the cable was out."""
    port = _port(claim, number)
    was_cut = int(Path(f"/sys/class/net/{port}/flags").read_text(encoding="ascii"), 16) & 1 == 0
    _call(["ip", "link", "set", port, "up"])
    for argv in (["tc"], ["tc", "-n", node]):
        dev = "eth0" if len(argv) > 1 else port
        shown = subprocess.run([*argv, "qdisc", "show", "dev", dev], capture_output=True, text=True, check=False).stdout
        if "tbf" in shown:
            _call([*argv, "qdisc", "del", "dev", dev, "root"])
    return was_cut


def slow(claim: Claim, number: int, node: str, rate: str) -> None:
    """Limit the node's link to `rate` (as tc writes it: 1mbit, 500kbit) in both directions."""
    # tbf and not netem: some kernels come without netem. The burst must hold one packet of a veth link (64 KiB with
    # segmentation offload), or nothing passes at all.
    limit = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "400ms"]
    _call(["tc", "qdisc", "replace", "dev", _port(claim, number), *limit])
    _call(["tc", "-n", node, "qdisc", "replace", "dev", "eth0", *limit])


def write_hosts(lab_name: str, names: Mapping[str, str]) -> None:
    """Put the lab's block (name -> address) into /etc/hosts in place of its old one; an empty mapping removes it."""
    begin, end = f"# clusterrun-lab {lab_name} begin", f"# clusterrun-lab {lab_name} end"
    with lock("registry"):
        old = HOSTS.read_text(encoding="utf-8")
        text = re.sub(rf"^{re.escape(begin)}\n.*?^{re.escape(end)}\n", "", old, flags=re.DOTALL | re.MULTILINE)
        if names:
            if text and not text.endswith("\n"):
                text += "\n"
            lines = [begin, *(f"{address}\t{name}" for name, address in names.items()), end]
            text += "\n".join(lines) + "\n"
        if text == old:
            return
        fresh = HOSTS.with_name("hosts.clusterrun-lab")
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(HOSTS.stat().st_mode & 0o777)
            fresh.replace(HOSTS)
        except OSError:  # in a container /etc/hosts is often a mount of its own, which cannot be replaced
            fresh.unlink(missing_ok=True)
            HOSTS.write_text(text, encoding="utf-8")
