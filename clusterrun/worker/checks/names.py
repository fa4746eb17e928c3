"""Names and addresses of nodes: what each node resolves, and which addresses it has."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..node.interfaces import is_loopback

FIB, IPV6 = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")


def own_addresses() -> list[str]:
    """Return all addresses of this node, without those of loopback and of a single link."""
    found: list[str] = []
    with suppress(OSError):
        # an address is on the line before its "host LOCAL"
        found = re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", FIB.read_text())
    with suppress(OSError):
        digits = re.findall(r"^([0-9a-f]{32})\b", IPV6.read_text(), re.MULTILINE)
        found += [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(one)) for one in digits]
    return sorted({address for address in found if not is_loopback(address) and not address.startswith("fe80:")})


def resolve(names: Sequence[str], limit: float) -> dict[str, Any]:
    """Return the addresses of each name, or the error in one line.

    What is not found within `limit` seconds in all is absent: a DNS server that is down answers nothing.
    """
    found: dict[str, Any] = {}

    def look_up() -> None:
        for name in names:
            try:
                answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
                found[name] = sorted({str(answer[4][0]) for answer in answers})
            except OSError as error:
                found[name] = str(error.strerror or error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(limit)
    return dict(found)
