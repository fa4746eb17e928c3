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
LIMIT_S = 3.5
GREETING_S = 0.8
COLLECT_S = 2  # NCCL then answers without the processes that have not responded
MOST = 8 * 2**20  # bytes of an answer


def ask(address: str, limit: float = LIMIT_S) -> tuple[str, str]:
    """Return NCCL's answer as far as it comes within `limit` seconds, and the problem if that is not all of it.

    Raises OSError, or ValueError for another program that listens at the address.
    """
    until = time.monotonic() + limit
    host, _, port = address.rpartition(":")
    connection = None
    while connection is None:
        if time.monotonic() > until:
            raise TimeoutError("no process greeted in time")
        connection = _greet((host.strip("[]"), int(port)))
    with connection:
        for command in (f"TIMEOUT {COLLECT_S}", "SET FORMAT json"):  # the latter is new in 2.28.7
            _send(connection, command)
            if not _receive(connection, until, "\n")[1]:
                raise TimeoutError("no response in time")
        _send(connection, "VERBOSE STATUS")
        answer, is_whole = _receive(connection, until)
    if len(answer) > MOST:
        return "", f"the answer has more than {MOST >> 20} MiB"
    return answer, "" if is_whole else "the answer did not end in time"


def _greet(place: tuple[str, int]) -> socket.socket | None:
    """Return a connection to a process that speaks the protocol, of which version the answer tells; None if it is slow.

    Raises OSError, or ValueError for another program.
    """
    until = time.monotonic() + GREETING_S
    connection = socket.create_connection(place, timeout=GREETING_S)
    _send(connection, "CLIENT PROTOCOL 2")
    greeting, is_whole = _receive(connection, until, "\n")
    if is_whole and greeting.upper().startswith("SERVER PROTOCOL "):
        return connection
    connection.close()
    if is_whole:
        raise ValueError("another program listens there")
    return None


def _send(connection: socket.socket, command: str) -> None:
    connection.sendall(f"{command}\n".encode())


def _receive(connection: socket.socket, until: float, end: str = "") -> tuple[str, bool]:
    """Return what comes, up to this `end` or that of the connection, and whether either came in time."""
    data, is_whole = bytearray(), False
    with suppress(TimeoutError):
        while not is_whole and len(data) <= MOST and time.monotonic() < until:
            connection.settimeout(max(0.001, until - time.monotonic()))
            block = connection.recv(65536)
            data += block
            is_whole = not block or (bool(end) and data.endswith(end.encode()))
    return data.decode(errors="replace"), is_whole


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
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S + 1.0)  # the resolver has no limit
    address = _address_of(sys.argv[-1]) or os.environ.get(VARIABLE) or ADDRESS
    answer = problem = ""
    try:
        answer, problem = ask(address)
    except ConnectionRefusedError:
        problem = "nobody listens"
    except (OSError, ValueError) as error:
        problem = str(error)
    print(json.dumps({"answer": answer, "problem": problem and f"{problem} ({address})"}))


if __name__ == "__main__":
    main()
