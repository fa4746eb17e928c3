"""A stand-in for the RAS service of NCCL: what its processes send, with the words of each version, and faults.

The protocol and the texts follow src/ras/client_support.cc of NCCL: since 2.28.7 with JSON, before without.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass(frozen=True)
class Peer:
    """A rank of a communicator: its number there, its process, and how many collectives it has started.

    `gone` is "" for one that responds, else `unresponsive`, `dead` or `left`.
    """

    number: int
    host: str
    pid: int
    counts: Mapping[str, int]
    gone: str = ""

    @property
    def place(self) -> str:
        return f"GPU {self.number % 8} managed by process {self.pid} on node {self.host}"


@dataclass(frozen=True)
class Communicator:
    """A communicator, with all of its ranks."""

    digest: int
    peers: Sequence[Peer]

    @property
    def present(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.gone]

    def with_status(self, *gone: str) -> list[Peer]:
        return [peer for peer in self.peers if peer.gone in gone]


def ranks(count: int, *, behind: Sequence[int] = (), gone: Mapping[int, str] | None = None, **more: int) -> list[Peer]:
    """Ranks of two nodes with process IDs from 1000 on, all at AllReduce 42 but those `behind`, at 41."""
    return [
        Peer(number, f"10.0.0.{1 + 2 * number // count}", more.get("first_pid", 1000) + number,
             dict.fromkeys(KINDS, 0) | {"AllReduce": 42 - (number in behind)}, (gone or {}).get(number, ""))
        for number in range(count)
    ]  # fmt: skip


def as_json(communicators: Sequence[Communicator], version: str = "2.28.9") -> str:
    """What `SET FORMAT json` and `STATUS` give."""
    text = json.dumps({
        "nccl_version": version, "cuda_runtime_version": 12080, "cuda_driver_version": 12080,
        "timestamp": "2026-11-29 01:00:00", "communicators_count": len(communicators),
        "communicators": [_communicator(one) for one in communicators],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }, indent=2) + "\n"  # fmt: skip
    if version.startswith("2.28."):  # those forget a comma in each missing rank
        text = re.sub(r'("nvml_dev": \d+),(\s+"status": {\s+"unresponsive")', r"\1\2", text)
    return text


def _communicator(one: Communicator) -> dict[str, object]:
    missing = [peer for peer in one.peers if peer.gone]
    return {
        "hash": f"{one.digest:#x}", "secondary_hash": "0x1:0x2", "size": len(one.peers),
        "ranks_count": len(one.present), "missing_ranks_count": len(missing),
        "ranks": [_entry(peer) | {"collective_counts": dict(peer.counts)} for peer in one.present],
        "missing_ranks": [_entry(peer) for peer in missing],
    }  # fmt: skip


def _entry(peer: Peer) -> dict[str, object]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    absent = {"unresponsive": peer.gone != "left", "considered_dead": peer.gone == "dead"}
    return {
        "rank": peer.number, "host": peer.host, "pid": peer.pid, "cuda_dev": peer.number % 8,
        "nvml_dev": peer.number % 8, "status": absent if peer.gone else status,
    }  # fmt: skip


def as_text(communicators: Sequence[Communicator], version: str = "2.27.5") -> str:
    """What `VERBOSE STATUS` gives; each communicator is a group of its own."""
    everyone = {(peer.host, peer.pid): peer for one in communicators for peer in one.peers}
    nodes = len({host for host, _ in everyone})
    lines = [
        f"NCCL version {version} compiled with CUDA 12.8", "CUDA runtime version 12080, driver version 12080", "",
        "Job summary", "===========", "", "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"{nodes:7}  {len(everyone) // max(1, nodes):9}  {1:11}  {len(everyone):9}  {len(everyone):7}", "",
        "Communicators... (0.00s)", "=============", "",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
        *(_row(number, one) for number, one in enumerate(communicators)), "", "Errors", "======", "",
    ]  # fmt: skip
    for gone, head in (("unresponsive", "INCOMPLETE"), ("dead", "DEAD")):
        lost = [peer for peer in everyone.values() if peer.gone == gone]
        words = f"{len(lost)} job process{'es are' if len(lost) > 1 else ' is'} considered dead (unreachable …)"
        lines += [
            head,
            f"  {words}",
            *(f"  Process {peer.pid} on node {peer.host} managing GPU 0" for peer in lost),
            "",
        ] * (len(lost) > 0)
    for number, one in enumerate(communicators):
        lost = one.with_status("unresponsive", "dead")
        if lost:
            lines += [f"#{number}-0 ({one.digest:016x}) INCOMPLETE",
                      f"  Missing communicator data from {len(lost)} ranks",
                      *(f"  Rank {peer.number} -- {peer.place}" for peer in lost), ""]  # fmt: skip
    lines += ["Warnings", "========", ""]
    for number, one in enumerate(communicators):
        lines += _mismatch(f"#{number}-0 ({one.digest:016x}) MISMATCH", one)
    return "\n".join(lines) + "\n"


def _row(number: int, one: Communicator) -> str:
    errors = "INCOMPLETE" if one.with_status("unresponsive", "dead") else "OK"
    hosts = {peer.host for peer in one.peers}
    size, per_node = len(one.peers), len(one.peers) // max(1, len(hosts))
    return f"{number:5}  {1:8}  {len(hosts):8}  {per_node:8}  {size:8}  {size:8}  {'RUNNING':>8}  {errors:>6}"


def _mismatch(head: str, one: Communicator) -> list[str]:
    """The warnings of a communicator whose ranks differ: in status, then in each kind of collective."""
    lines: list[str] = []
    if left := one.with_status("left"):
        status = [("RUNNING", peer) for peer in one.present] + [("NOCOMM", peer) for peer in left]
        lines += ["  Communicator ranks have different status", *_groups(status, "status {}", len(one.peers))]
    for kind in KINDS:
        counts = [(str(peer.counts[kind]), peer) for peer in one.present]
        if len({count for count, _ in counts}) > 1:
            lines += [f"  Communicator ranks have different {kind} operation counts",
                      *_groups(counts, "launched up to operation {}", len(one.peers)), ""]  # fmt: skip
    return [head, *lines] if lines else []


def _groups(values: Sequence[tuple[str, Peer]], words: str, size: int) -> Iterator[str]:
    """Each value with its ranks, the most frequent first; those of half of the communicator and more are not listed."""
    for value, count in Counter(value for value, _ in values).most_common():
        said = "not launched any operations" if (words[0], value) == ("l", "0") else words.format(value)
        if count > 1:
            yield f"  {count} ranks have {said}"
        for _, peer in [pair for pair in values if pair[0] == value] if count == 1 or count < size / 2 else ():
            yield f"  Rank {peer.number}{f' has {said}' if count == 1 else ''} -- {peer.place}"


# -- the server --------------------------------------------------------------------------------------------------------


class StandIn:
    """One process of NCCL that listens; `commands` are those that it got. `fault` is what it does wrong.

    `silent` never responds, `mute` greets only; `half` stops in the middle of the answer and `cut` closes there;
    `huge` never ends, `slow` sends a byte at a time; `rubbish` is no greeting, `closed` has none, `nonsense` is no
    answer.
    """

    def __init__(self, answers: Mapping[str, str], fault: str = "", protocol: int = 2, port: int = 0) -> None:
        self.answers, self.fault, self.protocol = answers, fault, protocol
        self.commands: list[str] = []
        self.closing = threading.Event()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.bind(("127.0.0.1", port))
        self.socket.listen()
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.closing.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.socket.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            if self.fault == "silent":
                self.closing.wait()
            if self.fault == "closed":
                return
            if self.fault == "rubbish":
                client.sendall(os.urandom(4000) + b"\n")
            chosen = "text"
            for line in client.makefile():
                self.commands.append(line.rstrip("\r\n"))
                command = self.commands[-1].lower()
                if command.endswith("status"):
                    self._answer(client, self.answers[chosen])
                    return
                if command == "set format json" and "json" in self.answers:
                    chosen = "json"
                self._send(client, self._reply(command))
                if self.fault == "mute":
                    self.closing.wait()

    def _reply(self, command: str) -> str:
        if command.startswith("client protocol "):
            return f"SERVER PROTOCOL {self.protocol}\n"
        known = command.startswith("timeout ") or ("json" in self.answers and command == "set format json")
        return "OK\n" if known else f"ERROR: Unknown command {command}\n"

    def _answer(self, client: socket.socket, answer: str) -> None:
        if self.fault in ("half", "cut"):
            client.sendall(answer[: len(answer) // 2].encode())
            self.closing.wait(None if self.fault == "half" else 0)
        elif self.fault == "nonsense":
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + os.urandom(1000))
        elif self.fault == "huge":
            while not self.closing.is_set():
                client.sendall(answer.encode() + b" " * 100_000)
        else:
            self._send(client, answer)

    def _send(self, client: socket.socket, text: str) -> None:
        if self.fault != "slow":
            client.sendall(text.encode())
            return
        for character in text:
            client.sendall(character.encode())
            self.closing.wait(0.05)


@contextmanager
def serving(communicators: Sequence[Communicator], *, json_too: bool = True, **how: object) -> Iterator[StandIn]:
    """A stand-in that answers with these communicators, of NCCL 2.28.9, or without JSON of 2.27.5."""
    answers = {"text": as_text(communicators)} | ({"json": as_json(communicators)} if json_too else {})
    started = StandIn(answers, **how)  # type: ignore[arg-type]
    try:
        yield started
    finally:
        started.close()
