"""Whether the ranks of a run worked together: whether the user's code joined a process group.

A script whose distributed mode is off runs as one separate program per rank: all train, and all write the same
checkpoint. In this process, torch's own function that sets the default process group is wrapped, so every way to join
is seen, also in a forked child. A group in a process that this one starts is seen by the keys that it writes to the
run's store. `unknown` means that ranks may have met in a way that is not visible here: MPI, or a store of their own.

Ranks may also start a world each, with a launcher of their own below them: then a process below each says that it is
rank 0 (RANK, WORLD_SIZE and MASTER_PORT of its environment), or each rank holds a store for its world.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..node import probe
from . import collectives
from .distenv import DistEnv
from .rendezvous import load_stores

# reports of ranks; UNUSED: it joined a group that it did not use
JOINED, UNUSED, APART, UNKNOWN, INTERRUPTED = "joined", "unused", "apart", "unknown", "interrupted"
IDLE = "idle"  # apart, and without a computation that has a gradient
OWN_WORLD = "own world"  # it started a world of its own
SOME_JOINED = ""  # the run's result; else one of APART, IDLE, OWN_WORLD, UNKNOWN, INTERRUPTED
SEPARATE = (APART, IDLE, OWN_WORLD)  # results of runs whose ranks did not work together
JOIN_FLAG, USED_FLAG, OTHER_FLAG, TORCH_FLAG, STORE_FLAG = range(5)  # bytes of the shared memory
FIRST_SCAN_S, SLOWEST_SCAN_S = 1.0, 30.0  # between two scans of the child processes
LAUNCHERS = re.compile(  # in the command line of a process
    rb"(?:^|[/\0])(?:(torchrun|deepspeed|colossalai|composer)|(accelerate)\0launch"
    rb"|-m\0(torch\.distributed\.run|torch\.distributed\.launch))\0"
)
OTHER_LIBRARIES = rb"/mpi4py/|/horovod/|/_raylet"
MPI_LIBRARY = rb"|/libmpi[^/]*\.so"
START_NO_RANKS = (
    "clusterrun starts the ranks, so give it the script itself, without a launcher or processes of its own, or submit"
    " with --launcher none, which runs a command that starts its own ranks once per node"
)
ADVICE = "turn on the script's distributed mode (torch.distributed.init_process_group)"


class GroupWatch:
    """Notices whether the code of this rank joins a process group with other ranks."""

    def __init__(self, dist: DistEnv) -> None:
        self._port = dist.master[1] if dist.master else 0
        self._flags = mmap.mmap(-1, STORE_FLAG + 1)  # shared with forked children
        # a torch that was built with MPI loads it in any case
        self._others = re.compile(OTHER_LIBRARIES + (b"" if hasattr(load_stores(), "ProcessGroupMPI") else MPI_LIBRARY))
        self._in_process = False
        self._gradients: int | None = None  # of this process at the start; None if it is not known
        self._child_world = self._launcher = ""  # the size of a world below this rank, and who started it
        self._result: bool | None = None
        self._closed = False
        self.starts_to_join: Callable[[], None] = lambda: None
        """Called when this rank's code opens a store, or a program of its own has loaded torch."""

    def set_joined(self) -> None:
        """Record that this rank joined a group: the worker's own, for a built-in task."""
        self._flags[JOIN_FLAG] = 1

    def start(self, in_process: bool) -> None:
        """Start watching: this process if the user's code runs `in_process`, and the processes that it starts."""
        if in_process:
            self._in_process = self._wrap_torch()
        threading.Thread(target=self._scan_children, name="clusterrun-group", daemon=True).start()

    def joined(self) -> bool | None:
        """Return whether this rank joined a group; None if it is not known."""
        if self._closed:
            return self._result
        if self._flags[JOIN_FLAG]:
            return not self._is_unused()
        if self._flags[OTHER_FLAG] or self._others.search(_maps("self")):
            return None
        sees_keys = hasattr(load_stores().TCPStore, "list_keys")
        if self._flags[TORCH_FLAG]:
            return False if sees_keys else None
        return False if self._in_process else None

    def close(self) -> str:
        """Return this rank's report for `decide`. The worker's own connections after this call do not count."""
        self._result, self._closed = self.joined(), True
        if self._result:
            return JOINED
        if self.own_world():
            return OWN_WORLD
        return UNKNOWN if self._result is None else self._apart()

    def own_world(self) -> str:
        """Return what this rank has started as a world of its own, in words; empty if it has not.

        Where only one rank has, it may be that of all ranks.
        """
        if self._flags[JOIN_FLAG]:
            return ""
        if self._child_world:
            by = f" by {self._launcher}" if self._launcher else ""
            return f"a world of its own{by}, of {self._child_world} rank{'s' * (self._child_world != '1')}"
        return "a rendezvous of its own" if self._flags[STORE_FLAG] else ""

    def _apart(self) -> str:
        if self._flags[JOIN_FLAG]:
            return UNUSED
        is_idle = self._gradients is not None and self._gradients == _gradient_nodes()
        return IDLE if is_idle and not self._flags[TORCH_FLAG] else APART

    def _wrap_torch(self) -> bool:
        """Wrap torch's setter of the default group and its stores; return whether this torch has the setter."""
        import torch.distributed as torch_dist

        c10d = torch_dist.distributed_c10d
        update: Callable[[Any], None] | None = getattr(c10d, "_update_default_pg", None)
        if update is None:
            return False

        def update_default_pg(group: Any) -> None:
            if group is None:  # it is being destroyed
                self._note_use()
            update(group)
            if callable(getattr(group, "size", None)) and group.size() > 1:  # a group of one rank joins nobody
                self._flags[JOIN_FLAG] = 1

        setattr(c10d, "_update_default_pg", update_default_pg)  # noqa: B010  (mypy compares the types)
        self._wrap_store(torch_dist.TCPStore, 2)  # type: ignore[attr-defined]
        self._wrap_store(torch_dist.FileStore, 1)  # type: ignore[attr-defined]
        self._gradients = _gradient_nodes()
        return True

    def _is_unused(self) -> bool:
        """Return whether accelerate runs as one process beside a group that it joined.

        On CPUs, its PartialState() without cpu=True opens a group of all ranks, but does not use it.
        """
        self._note_use()
        state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
        alone = dict(getattr(state, "_shared_state", {})).get("num_processes") == 1
        return alone and not self._flags[USED_FLAG]

    def _note_use(self) -> None:
        with contextlib.suppress(Exception):  # a private interface, which some backends lack
            c10d = sys.modules["torch.distributed.distributed_c10d"]
            if any(map(collectives.of_group, c10d._world.pg_map)):
                self._flags[USED_FLAG] = 1

    def _wrap_store(self, store: Any, place: int) -> None:
        """Note the stores that are created, but those of one rank; `place` is where `world_size` is an argument."""
        create = store.__init__

        def __init__(new: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it replaces the store's
            self.starts_to_join()
            if options.get("world_size", args[place] if len(args) > place else None) != 1:
                self._flags[OTHER_FLAG] = 1
                if options.get("is_master", args[3] if len(args) > 3 else False) is True:  # of a TCPStore
                    self._flags[STORE_FLAG] = 1
            create(new, *args, **options)

        store.__init__ = __init__

    def _scan_children(self) -> None:
        # leave signals to the main thread, so that the user's handlers run without delay
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pause = FIRST_SCAN_S
        while not self._closed:
            for pid in probe.descendants(os.getpid()):
                self._note_process(str(pid))
            time.sleep(pause)
            pause = min(1.5 * pause, SLOWEST_SCAN_S)

    def _note_process(self, pid: str) -> None:
        libraries = _maps(pid)
        if self._others.search(libraries):
            self._flags[OTHER_FLAG] = 1
        command = _read(f"/proc/{pid}/cmdline")
        if launcher := LAUNCHERS.search(command):
            self._launcher = next(filter(None, launcher.groups())).decode()
        is_fork = command == _read("/proc/self/cmdline")  # perhaps it is about to run a command
        if b"/libtorch" in libraries and not is_fork:
            self._note_world(dict(_variable(line) for line in _read(f"/proc/{pid}/environ").split(b"\0")))

    def _note_world(self, environ: dict[bytes, bytes]) -> None:
        """Note the world of a process that has loaded torch, by the environment that it was started with."""
        if environ.get(b"MASTER_PORT", b"%d" % self._port) == b"%d" % self._port:
            self._flags[TORCH_FLAG] = 1
            self.starts_to_join()
            return
        self._flags[OTHER_FLAG] = 1  # started by a launcher that has a store of its own
        if environ.get(b"RANK") == b"0" and environ.get(b"WORLD_SIZE", b"").isdigit():
            self._child_world = environ[b"WORLD_SIZE"].decode()


def decide(reports: Sequence[str], keys: Sequence[str]) -> str:
    """Return the run's result from all ranks' reports and the store's keys that are not the worker's."""
    if JOINED in reports or (keys and UNUSED not in reports):
        return SOME_JOINED
    if INTERRUPTED in reports:
        return INTERRUPTED
    if reports.count(OWN_WORLD) > 1:  # the world of one rank may be that of all
        return OWN_WORLD
    if {*reports} == {IDLE}:
        return IDLE
    return APART if {*reports} <= {APART, IDLE, UNUSED} else UNKNOWN


def describe(result: str, world_size: int, own_world: str = "") -> str:
    """Return in words that the ranks did not work together; `own_world` is what this rank has started as a world."""
    if result == UNKNOWN:
        return "no process group was detected"
    if result != OWN_WORLD:
        return f"no rank used a process group: the job ran as {world_size} separate programs"
    each = f" (each rank started {own_world})" if own_world else ""
    return f"no rank used a process group with the others: the job ran as {world_size} separate programs{each}"


def message(result: str, world_size: int, process_group: str, own_world: str = "") -> tuple[str, bool]:
    """Return the line for a run with this result, empty if none is due, and whether the run fails by it.

    `own_world` is what this rank has started as a world of its own.
    """
    if world_size == 1 or result in (SOME_JOINED, INTERRUPTED):
        return "", False
    apart = describe(result, world_size, own_world)
    if process_group == "required":
        return f"--require-group: {apart}; {_advice(result)}", True
    if result == UNKNOWN or process_group == "independent":
        return "", False
    if result == IDLE:
        return (
            f"{apart}, none of which computed a gradient: if they ended before they trained, the lines above may say"
            f" why; else {_advice(result)}, or submit with --independent if separate programs are intended"
        ), False
    return (
        f"{apart}, and each may have overwritten the files of the others; {_advice(result)},"
        " or submit with --independent if separate programs are intended"
    ), False


def running_message(own_worlds: Sequence[str], world_size: int) -> str:
    """Return the line for ranks that are running and have started these worlds; empty if there is only one."""
    if len(own_worlds) < 2:
        return ""
    which = f"{len(own_worlds)} of {world_size} ranks have started {own_worlds[0]}"
    return f"the ranks do not train together: {which}; {_advice(OWN_WORLD)}"


def _advice(result: str) -> str:
    return START_NO_RANKS if result == OWN_WORLD else ADVICE


def _variable(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b"=")
    return name, value


def _gradient_nodes() -> int | None:
    """Return how many nodes this thread has added to torch's graph of gradients; None if torch does not say."""
    count: Callable[[], int] | None = getattr(sys.modules["torch"].autograd, "_get_sequence_nr", None)
    return count() if count is not None else None


def _maps(pid: str) -> bytes:
    return _read(f"/proc/{pid}/maps")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
