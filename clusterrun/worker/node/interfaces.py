"""The network interfaces and addresses of this node."""

from __future__ import annotations

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915


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
