"""The network interface that gloo listens on."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from .distenv import DistEnv, RunEnv

SIOCGIFADDR = 0x8915
CHOSEN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # set by the user


def choose_gloo_interface(dist: DistEnv, run: RunEnv) -> None:
    """Set GLOO_SOCKET_IFNAME to the interface to the other nodes if gloo's default cannot work.

    gloo listens on the address of the host's own name. If that is a loopback address (on Debian 127.0.1.1), or one that
    this host does not have (then gloo takes loopback), other nodes cannot connect.
    """
    if dist.master is None or dist.world_size == 1 or any(os.environ.get(name) for name in CHOSEN):
        return
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = "127.0.0.1"
    if is_own(own) and not is_loopback(own):
        return
    if name := route_interface([dist.master[0], *run.node_names]):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def is_loopback(address: str) -> bool:
    """Return whether an address reaches only the node itself."""
    return address.startswith("127.") or address == "::1"


def is_own(address: str) -> bool:
    """Return whether this host has an address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def route_interface(hosts: list[str]) -> str | None:
    """Return the network interface to the first of `hosts` that is not on loopback, or None."""
    for host in hosts:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))  # sends nothing: the kernel only chooses the route
                local = probe.getsockname()[0]
        except OSError:
            continue
        if not is_loopback(local):
            return _interface_of(local)
    return None


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of a network interface, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def _interface_of(address: str) -> str | None:
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), None)
