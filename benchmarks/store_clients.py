"""Many ranks at a barrier in one process, for `benchmarks.scale_sim`: what each sends, without torch or threads.

In a real run each rank has a machine's core to itself, and all together have one store. Thousands of ranks with torch's
client would share the few cores here with the store, and the figure would be theirs. So these clients are cheap on
purpose: real connections to the real store, and byte for byte the requests of `barriers.join` and `barriers.leave`,
sent from one loop. The store's share of the time is real, theirs is not. `record` is for the proof that a rank still
sends the same.
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

from clusterrun.worker.rank.barriers import UNLIKELY, Seal
from clusterrun.worker.rank.rendezvous import raise_descriptor_limit

# the requests of torch's TCPStore client that a rank makes; numbers are little-endian
VALIDATE, SET, COMPARE_SET, ADD, CHECK, WAIT, PING = 0, 1, 2, 4, 5, 6, 13
MAGIC = 0x3C85F7CE
READY = b"\0"  # the reply to CHECK if the key is there, and to WAIT as soon as it is
COUNT = bytes(8)  # stands for the reply to the count, which nobody knows before
NONCE = slice(6, 10)  # the bytes of the ping that differ in each connection
AFTER_REPORT = 2  # exchanges: a rank waits for the others, and reads the result
CONNECTING = 1000  # at most, with two connections each: the store's backlog holds 4096
ANSWER_S = 120.0  # the longest time without any reply


class Exchange(NamedTuple):
    """Requests that a rank sends without waiting between them, and the reply to the last one."""

    requests: bytes
    reply: bytes


class Encoder:
    """Encodes the requests of a rank that is neither rank 0 nor the first one."""

    def __init__(self, secret: str, plan: str) -> None:
        self._seal = Seal(secret)
        self._plan = plan

    def join(self, rank: int, place: str, facts: str) -> tuple[Exchange, ...]:
        """Return all exchanges of a rank in `barriers.connect` and `barriers.join`."""
        name = f"place/{rank}"
        mine = _sized(self._seal.close(name, place))
        claim = struct.pack("<B", COMPARE_SET) + self._key(name) + _sized("") + mine
        return (
            _hello(rank), Exchange(claim, mine), self._report("join", rank, facts), self._wait("plan"),
            self._read("plan", self._plan),
        )  # fmt: skip

    def leave(self, rank: int) -> tuple[Exchange, ...]:
        """Return all exchanges of a rank in `barriers.leave`, with an empty report and result."""
        check = Exchange(_one_key(CHECK, self._key("plan")), READY)
        return (
            _hello(rank), check, self._read("plan", self._plan), self._report("done", rank, ""), self._wait("done"),
            self._read("done", ""),
        )  # fmt: skip

    def _report(self, what: str, rank: int, text: str) -> Exchange:
        name = f"{what}/{rank}"
        report = struct.pack("<B", SET) + self._key(name) + _sized(self._seal.close(name, text))
        return Exchange(report + struct.pack("<B", ADD) + self._key(f"{what}/count") + struct.pack("<q", 1), COUNT)

    def _wait(self, name: str) -> Exchange:
        return Exchange(_one_key(WAIT, self._key(name)), READY)

    def _key(self, name: str) -> bytes:
        return _sized(f"/{self._seal.prefix}/{name}")

    def _read(self, name: str, text: str) -> Exchange:
        """Return how a rank reads a key that has this text: SealedStore._read."""
        request = struct.pack("<B", COMPARE_SET) + self._key(name) + 2 * _sized(UNLIKELY)
        return Exchange(request, _sized(self._seal.close(name, text)))


def _hello(rank: int) -> Exchange:
    """Return the first exchange of a connection; the nonce of its ping is the rank's number."""
    nonce = struct.pack("<I", rank)
    return Exchange(struct.pack("<BIB", VALIDATE, MAGIC, PING) + nonce, nonce)


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


def join(port: int, secret: str, plan: str, ranks: Sequence[tuple[int, str, str]]) -> tuple[float, float, float]:
    """Join as these ranks, each with its place and facts; return as `_act` does. The store gets `plan` meanwhile."""
    encoder = Encoder(secret, plan)
    return _act(port, [encoder.join(*one) for one in ranks])


def leave(port: int, secret: str, plan: str, ranks: Sequence[int]) -> tuple[float, float, float]:
    """Leave as these ranks; return as `_act` does. `plan` is what the store has under that name."""
    encoder = Encoder(secret, plan)
    return _act(port, [encoder.leave(rank) for rank in ranks])


def _act(port: int, ranks: Sequence[tuple[Exchange, ...]]) -> tuple[float, float, float]:
    """Do the exchanges of all ranks; return the times (monotonic) of the start, of the last report and the last reply.

    Another rank must have been the first. Raises ConnectionError for an unexpected reply, TimeoutError if there is
    none.
    """
    raise_descriptor_limit(0)
    waiting = list(reversed(ranks))
    began = time.monotonic()
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
                if client.number == len(client.exchanges) - AFTER_REPORT:
                    connecting -= 1
                    reported = time.monotonic()
                if client.number < len(client.exchanges):
                    os.write(descriptor, client.exchanges[client.number].requests)
                    continue
                del clients[descriptor]
                last = time.monotonic()
                os.close(descriptor)  # as the rank's process does now
    return began, reported, last


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
