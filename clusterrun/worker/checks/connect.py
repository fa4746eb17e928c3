"""Names, addresses and plain TCP connections of nodes: these fail in seconds where gloo and NCCL retry for minutes."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..node.interfaces import address_of, is_loopback, route_interface

FIB, IPV6 = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")
CONNECT_S = 5.0
AGREE_S = 30.0  # until all ranks of a group have tried


class Listener:
    """Accepts connections on any port of this rank until it is closed; `place` is its address and port."""

    def __init__(self, hosts: list[str]) -> None:
        self._socket = socket.socket()
        self._socket.bind(("", 0))
        self._socket.listen(512)
        # the interface that the job's variables name, if they name one, else that of the route to other nodes
        chosen = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME") or ""
        known = [name for _, name in socket.if_nameindex()]
        interface = chosen if chosen in known else route_interface(hosts)
        address = address_of(interface) if interface else None
        self.place = (address or "127.0.0.1", self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="clusterrun-listen", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's accept
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._socket.accept()[0].close()


def reach(store: Any, name: str, count: int, places: dict[str, tuple[str, int]]) -> str:
    """Try to connect to these places, and return why this rank, or another of the group `name`, cannot; "" if all can.

    `places` are addresses and ports by node; `count` is the number of ranks in the group. All of them call it.
    """
    error = ""
    for node, (address, port) in places.items():
        try:
            socket.create_connection((address, port), timeout=CONNECT_S).close()
        except OSError as problem:
            error = error or f"cannot connect to {node} ({address}): {problem.strerror or problem}"
    if error:
        store.add(f"{name}/bad", 1)
    done, end = store.add(f"{name}/done", 1), time.monotonic() + AGREE_S
    while done < count and time.monotonic() < end:
        time.sleep(0.01)
        done = store.add(f"{name}/done", 0)
    return error or ("the nodes can connect in only one direction" if store.add(f"{name}/bad", 0) else "")


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
