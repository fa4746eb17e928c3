"""Many ranks at the last barrier in one process, for `benchmarks.scale_sim`: what each sends, without torch or threads.

In a real run each rank has a machine's core to itself, and all together have one store. Thousands of ranks with torch's
client would share the few cores here with the store, and the figure would be theirs. So these clients are cheap on
purpose: real connections to the real store, and byte for byte the requests of `barriers.leave`, sent from one loop.
The store's share of the time is real, theirs is not. `record` is for the proof that a rank still sends the same.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from clusterrun.worker.barriers import UNLIKELY
from clusterrun.worker.rendezvous import raise_descriptor_limit
from clusterrun.worker.seal import Seal

# the requests of torch's TCPStore client that a rank makes; numbers are little-endian
VALIDATE, SET, COMPARE_SET, ADD, CHECK, WAIT, PING = 0, 1, 2, 4, 5, 6, 13
MAGIC = 0x3C85F7CE
READY = b"\0"  # the reply to CHECK if the key is there, and to WAIT as soon as it is
COUNT = bytes(8)  # stands for the reply to the count, which nobody knows before
NONCE = slice(6, 10)  # the bytes of the ping that differ in each connection
WAITS = 4  # the number of the exchange in which a rank waits for the others
CONNECTING = 1000  # at most, with two connections each: the store's backlog holds 4096
ANSWER_S = 120.0  # the longest time without any reply


class Exchange(NamedTuple):
    """Requests that a rank sends without waiting between them, and the reply to the last one."""

    requests: bytes
    reply: bytes


class Encoder:
    """Encodes the requests of a rank in `barriers.leave` that is not the first, with an empty report and result."""

    def __init__(self, secret: str, plan: str) -> None:
        self._seal = Seal(secret)
        self._before = (Exchange(_one_key(CHECK, self._key("plan")), READY), self._read("plan", plan))
        self._count = struct.pack("<B", ADD) + self._key("done/count") + struct.pack("<q", 1)
        self._after = (Exchange(_one_key(WAIT, self._key("done")), READY), self._read("done", ""))

    def exchanges(self, rank: int) -> tuple[Exchange, ...]:
        """Return all exchanges of a rank; the nonce of its ping is its number."""
        nonce = struct.pack("<I", rank)
        hello = struct.pack("<BIB", VALIDATE, MAGIC, PING) + nonce
        name = f"done/{rank}"
        report = struct.pack("<B", SET) + self._key(name) + _sized(self._seal.close(name, ""))
        return Exchange(hello, nonce), *self._before, Exchange(report + self._count, COUNT), *self._after

    def _key(self, name: str) -> bytes:
        return _sized(f"/{self._seal.prefix}/{name}")

    def _read(self, name: str, text: str) -> Exchange:
        """Return how a rank reads a key that has this text: SealedStore._read."""
        request = struct.pack("<B", COMPARE_SET) + self._key(name) + 2 * _sized(UNLIKELY)
        return Exchange(request, _sized(self._seal.close(name, text)))


def _sized(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _one_key(request: int, key: bytes) -> bytes:
    return struct.pack("<BQ", request, 1) + key


class Client:
    """The connection of a rank, and how far it is."""

    __slots__ = ("exchanges", "got", "number")

    def __init__(self, exchanges: tuple[Exchange, ...]) -> None:
        self.exchanges = exchanges
        self.number = 0
        self.got = b""


def leave(port: int, secret: str, plan: str, ranks: Sequence[int]) -> tuple[float, float]:
    """Leave as these ranks; return the times (monotonic) of the last one's report and of the last reply to any.

    `plan` is what the store has under that name. Another rank must have been the first. Raises ConnectionError for an
    unexpected reply, TimeoutError if there is none.
    """
    raise_descriptor_limit(0)
    encoder = Encoder(secret, plan)
    waiting = [encoder.exchanges(rank) for rank in reversed(ranks)]
    clients: dict[int, Client] = {}
    connecting, reported, last = 0, 0.0, 0.0
    with select.epoll() as poll:
        while waiting or clients:
            while waiting and connecting < CONNECTING:
                client = Client(waiting.pop())
                descriptor = _connect(port)
                clients[descriptor] = client
                poll.register(descriptor, select.EPOLLIN)
                os.write(descriptor, client.exchanges[0].requests)
                connecting += 1
            events = poll.poll(ANSWER_S)
            if not events:
                raise TimeoutError(f"no reply of the store to any of {len(clients)} ranks")
            for descriptor, _ in events:
                client = clients[descriptor]
                if not _has_reply(descriptor, client):
                    continue
                client.number += 1
                if client.number == WAITS:
                    connecting -= 1
                    reported = time.monotonic()
                if client.number < len(client.exchanges):
                    os.write(descriptor, client.exchanges[client.number].requests)
                    continue
                del clients[descriptor]
                last = time.monotonic()
                os.close(descriptor)  # as the rank's process does now
    return reported, last


def _connect(port: int) -> int:
    """Return the descriptor of a new connection, made as in `barriers.connect`: after a plain one."""
    socket.create_connection(("127.0.0.1", port)).close()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection.detach()


def _has_reply(descriptor: int, client: Client) -> bool:
    """Read, and return whether the reply is complete; raises ConnectionError if it is not the expected one."""
    data = os.read(descriptor, 4096)
    client.got += data
    requests, reply = client.exchanges[client.number]
    if data and len(client.got) < len(reply) and (reply is COUNT or reply.startswith(client.got)):
        return False
    got, client.got = client.got, b""
    right = int.from_bytes(got, "little") > 1 if reply is COUNT else got == reply
    if not right or len(got) != len(reply):
        raise ConnectionError(f"the store replied {got!r} to {requests!r}")
    return True


def record(port: int, act: Callable[[int], object]) -> bytes:
    """Return what `act` sends to the store in its second connection (`_connect`); it is called with another port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(ANSWER_S)
        threading.Thread(target=act, args=(listener.getsockname()[1],), daemon=True).start()
        listener.accept()[0].close()
        sent = b""
        with listener.accept()[0] as client, socket.create_connection(("127.0.0.1", port)) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [], ANSWER_S)
                if not ready:
                    raise TimeoutError(f"a rank neither sends nor leaves after {sent!r}")
                if server in ready:
                    client.sendall(server.recv(65536))
                if client in ready:
                    data = client.recv(65536)
                    if not data:
                        break
                    sent += data
                    server.sendall(data)
    return sent
