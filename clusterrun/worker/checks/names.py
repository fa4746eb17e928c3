"""Names and addresses of nodes: what each node resolves, and which addresses it has."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

FIB, IPV6 = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")


def own_addresses() -> list[str]:
    """Return all addresses of this node, without those of loopback and of a single link."""
    found: list[str] = []
    try:
        # an address is on the line before its "host LOCAL"
        found = re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", FIB.read_text())
    except OSError:
        pass
    try:
        for line in IPV6.read_text().splitlines():
            digits = line.split()[0]
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    except (OSError, ValueError, IndexError):
        pass
    return sorted({address for address in found if not is_loopback(address) and not address.startswith("fe80:")})


def is_loopback(address: str) -> bool:
    """Return whether an address reaches only the node itself."""
    return address.startswith("127.") or address == "::1"


def resolve_all(names: list[str], limit: float) -> dict[str, Any]:
    """Return for each name its addresses, or the error.

    A name that is not resolved within `limit` seconds in all is absent: a DNS server that is down answers nothing.
    """
    found: dict[str, Any] = {}

    def resolve() -> None:
        for name in names:
            try:
                answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
                found[name] = sorted({str(answer[4][0]) for answer in answers})
            except OSError as error:
                found[name] = str(error.strerror or error)

    _within(limit, resolve)
    return dict(found)


def reverse(addresses: list[str], limit: float) -> dict[str, str]:
    """Return the names of these addresses; an address without a name is absent."""
    found: dict[str, str] = {}

    def resolve() -> None:
        for address in addresses:
            try:
                found[address] = socket.gethostbyaddr(address)[0]
            except OSError:
                continue

    _within(limit, resolve)
    return dict(found)


def _within(limit: float, work: Any) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    end = time.monotonic() + limit
    while thread.is_alive() and time.monotonic() < end:
        thread.join(0.1)
