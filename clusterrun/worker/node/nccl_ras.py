"""Ask the NCCL of this node's ranks how the job is: a client of its RAS service. Standard library only.

Run by path on a node, beside the ranks, or as a text with `python -c`. An argument is the process ID of a rank, whose
NCCL_RAS_ADDR counts. It prints a JSON object: the `answer`, as far as it came, and the `problem` if it is not whole.
All ranks of a node listen on one port (SO_REUSEPORT), so that a new connection may reach another one: a process that
does not greet at once is perhaps the one that hangs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress

VARIABLE = "NCCL_RAS_ADDR"
ADDRESS = "localhost:28028"  # NCCL's own default
LIMIT_S = 4.0
GREETING_S = 0.8
COLLECT_S = 2  # NCCL then answers without the processes that have not responded
MOST_BYTES = 8 * 2**20


class Unanswered(Exception):
    """There is no whole answer; `answer` is what came of it."""

    def __init__(self, problem: str, answer: str = "") -> None:
        super().__init__(problem)
        self.answer = answer


def ask(address: str = ADDRESS, limit: float = LIMIT_S) -> str:
    """Return NCCL's answer within `limit` seconds; raises Unanswered or OSError."""
    until = time.monotonic() + limit
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    while True:
        try:
            connection = _greet(place, min(until, time.monotonic() + GREETING_S))
        except TimeoutError:
            if time.monotonic() >= until:
                raise Unanswered(f"no greeting within {limit:.0f} s") from None
            continue
        with connection:
            for command in (f"TIMEOUT {COLLECT_S}", "SET FORMAT json"):  # the latter is new in 2.28.7
                _send(connection, command)
                _receive(connection, until, is_line=True)
            _send(connection, "VERBOSE STATUS")
            return _receive(connection, until)


def _greet(place: tuple[str, int], until: float) -> socket.socket:
    """Return a connection to a process that speaks the protocol; of which version, the answer tells."""
    connection = socket.create_connection(place, timeout=max(0.01, until - time.monotonic()))
    try:
        _send(connection, "CLIENT PROTOCOL 2")
        greeting = _receive(connection, until, is_line=True)
        if not greeting.upper().startswith("SERVER PROTOCOL "):
            raise Unanswered("another program listens there")
    except BaseException:
        connection.close()
        raise
    return connection


def _send(connection: socket.socket, command: str) -> None:
    connection.sendall(f"{command}\n".encode())


def _receive(connection: socket.socket, until: float, *, is_line: bool = False) -> str:
    """Return a line, or all until the other end closes; raises TimeoutError for a line, else Unanswered."""
    data = bytearray()
    while not (is_line and data.endswith(b"\n")):
        connection.settimeout(max(0.001, until - time.monotonic()))
        try:
            block = connection.recv(65536)
            if time.monotonic() > until:
                raise TimeoutError
        except TimeoutError:
            if is_line:
                raise TimeoutError("no response in time") from None
            raise Unanswered("the answer did not end in time", data.decode(errors="replace")) from None
        data += block
        if len(data) > MOST_BYTES:
            raise Unanswered(f"the answer has more than {MOST_BYTES >> 20} MiB")
        if not block:
            break
    return data.decode(errors="replace")


def _address_of(process: str) -> str:
    """Return where NCCL listens by the environment of a process; empty if that does not say."""
    with suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = entry.decode(errors="replace").partition("=")
            if name == VARIABLE:
                return value
    return ""


def main() -> None:
    """Print the answer, or why there is none."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S + 0.5)  # the resolver has no limit
    address = _address_of(sys.argv[-1]) or os.environ.get(VARIABLE) or ADDRESS
    found = {"answer": "", "problem": ""}
    try:
        found["answer"] = ask(address)
    except Unanswered as error:
        found |= {"answer": error.answer, "problem": f"{error} ({address})"}
    except ConnectionRefusedError:
        found["problem"] = f"nobody listens on {address}"
    except (OSError, ValueError) as error:
        found["problem"] = f"{error} ({address})"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
