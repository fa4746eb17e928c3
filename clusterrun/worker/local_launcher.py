"""The local scheduler's stand-in for srun: start one step's ranks on this machine, label their lines, end together.

Run by path: `python local_launcher.py --nodes N --tasks-per-node T [--devices cuda|cpu] -- CMD ARGS…`. Needs only the
standard library. Its output has srun's label format, its exit status is the first failing rank's.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PIECE = 1024  # srun cuts a labelled line here; the reader of the logs joins pieces of exactly this size
PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2}
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return a preexec function after which the kernel kills the child when `parent` dies."""
    libc = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be imported

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)

    return ask


class Labeler:
    """Turn a stream's bytes into whole lines that begin with `RANK: `, in bounded memory."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.label = f"{rank:>{len(str(world_size - 1))}}: ".encode()
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be written now; an unfinished line waits, up to PIECE bytes of it."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        out = [self._line(line) for line in lines]
        while len(self.rest) >= PIECE:
            out.append(self.label + self.rest[:PIECE] + b"\n")
            self.rest = self.rest[PIECE:]
        return b"".join(out)

    def close(self) -> bytes:
        """Return the last, unfinished line."""
        rest, self.rest = self.rest, b""
        return self._line(rest) if rest else b""

    def _line(self, line: bytes) -> bytes:
        pieces = [line[i : i + PIECE] for i in range(0, len(line), PIECE)] or [b""]
        return b"".join(self.label + piece + b"\n" for piece in pieces)


@dataclass
class Rank:
    """One started process; `status` is None while it runs, 128+n after signal n."""

    rank: int
    node: str
    process: subprocess.Popen[bytes]
    status: int | None = None


@dataclass
class Step:
    """All ranks of the step and how it is going; times are monotonic seconds."""

    grace: float
    ranks: list[Rank] = field(default_factory=list)
    failed: Rank | None = None
    stopped: bool = False
    kill_at: float | None = None

    def running(self) -> list[Rank]:
        return [r for r in self.ranks if r.status is None]

    def signal_all(self, signum: int) -> None:
        for r in self.running():
            os.kill(r.process.pid, signum)  # unreaped, so that the pid is still its own

    def stop(self) -> None:
        """Ask the ranks to end; what is left after the grace is killed."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.grace
            self.signal_all(signal.SIGTERM)
            self.signal_all(signal.SIGCONT)  # a stopped process does not see SIGTERM

    def kill(self) -> None:
        """End everything that the ranks have started, too; their unreaped leaders keep the group ids ours."""
        for r in self.ranks:
            try:
                os.killpg(r.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def look(self) -> None:
        """Take note of ranks that have ended; the first bad one ends the step."""
        ended = []
        for r in self.running():
            info = os.waitid(os.P_PID, r.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                r.status = info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status
                ended.append(r)
        bad = [r for r in ended if r.status]
        if bad and self.failed is None and not self.stopped:
            self.failed = min(bad, key=lambda r: (r.status == 128 + signal.SIGTERM, r.rank))
            say(f"rank {self.failed.rank} on {self.failed.node} exited with {self.failed.status}")
            self.stop()


def rank_environment(rank: int, nodes: int, per_node: int, devices: list[str] | None) -> dict[str, str]:
    """The environment of one rank: torchrun's variables, its node's name, and its node's share of the devices.

    `devices` are the machine's visible ones (None: CPU, and none is shown).
    """
    node, local = divmod(rank, per_node)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SLURMD_", "PMI"))}
    mine = [] if devices is None else devices[node * per_node : (node + 1) * per_node]
    return environment | {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(node),
        "TORCHELASTIC_RUN_ID": os.environ.get("CLUSTERRUN_RUN_ID") or "local",
        "CLUSTERRUN_NODE_NAME": f"local{node}",
        "CUDA_VISIBLE_DEVICES": ",".join(mine),
    }


def visible_devices() -> list[str]:
    """The CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [d.strip() for d in listed.split(",") if d.strip() and d.strip() != "-1"]
    return [str(i) for i, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*")))]


def run(command: Sequence[str], nodes: int, per_node: int, devices: list[str] | None, grace: float) -> int:
    """Run the step to its end and return its exit status."""
    step, selector = Step(grace), selectors.DefaultSelector()
    wakeup, wakeup_in = socket.socketpair()
    wakeup.setblocking(False)
    wakeup_in.setblocking(False)
    caught = ENDING | PASSED_ON | {signal.SIGCHLD}
    for signum in caught:
        signal.signal(signum, lambda *_: None)  # told apart below, from the wake-up bytes
    signal.set_wakeup_fd(wakeup_in.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    selector.register(wakeup, selectors.EVENT_READ)

    world = nodes * per_node
    preexec = die_with_parent(os.getpid())
    for rank in range(world):
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=rank_environment(rank, nodes, per_node, devices),
                start_new_session=True,
                preexec_fn=preexec,
            )
        except OSError as error:
            say(f"cannot start {command[0]}: {error.strerror or error}")
            step.kill()
            return 127 if isinstance(error, FileNotFoundError) else 126
        step.ranks.append(Rank(rank, f"local{rank // per_node}", process))
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, (Labeler(rank, world), target))

    open_until: float | None = None  # once all ranks have ended, their leftovers may not hold the pipes for long
    while len(selector.get_map()) > 1 or step.running():
        timeout = 1.0 if step.kill_at is None and open_until is None else 0.1
        for key, _ in selector.select(timeout):
            if key.fileobj is wakeup:
                for number in wakeup.recv(256):
                    if number in ENDING:
                        step.stopped = True
                        step.stop()
                    elif number in PASSED_ON:
                        step.signal_all(number)
                continue
            labeler, target = key.data
            data = os.read(key.fd, 65_536)
            write_all(target, labeler.feed(data) if data else labeler.close())
            if not data:
                selector.unregister(key.fileobj)
        step.look()
        now = time.monotonic()
        if step.kill_at is not None and now >= step.kill_at and step.running():
            step.kill()
        if not step.running():
            if open_until is None:
                step.kill()
                open_until = now + 2.0
            elif now >= open_until:
                break
    for key in list(selector.get_map().values()):
        if key.data is not None:
            write_all(key.data[1], key.data[0].close())
    for r in step.ranks:
        r.process.wait()
    if step.stopped:
        return 128 + signal.SIGTERM
    return 0 if step.failed is None else step.failed.status or 1


def write_all(target: int, data: bytes) -> None:
    """Write to a descriptor; a closed or full output must not end the run, so that what does not fit is dropped."""
    while data:
        try:
            data = data[os.write(target, data) :]
        except OSError:
            return


def say(text: str) -> None:
    """One line on stderr, unlabelled, as srun's own."""
    write_all(2, f"clusterrun: {text}\n".encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run the step; 2 when the request cannot be met."""
    argv = list(sys.argv[1:] if argv is None else argv)
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description="Run N x T ranks of a command on this machine.")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--tasks-per-node", type=int, required=True)
    parser.add_argument("--devices", choices=("cuda", "cpu"), help="default: cuda where every rank gets a device")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds between SIGTERM and SIGKILL")
    options = parser.parse_args(argv[:split])
    command = argv[split + 1 :]
    if not command:
        parser.error("no command after --")
    world = options.nodes * options.tasks_per_node
    if options.nodes < 1 or options.tasks_per_node < 1:
        parser.error("--nodes and --tasks-per-node must be at least 1")
    visible = visible_devices() if options.devices != "cpu" else []
    if options.devices == "cuda" and len(visible) < world:
        say(f"{world} ranks need {world} devices, {len(visible)} visible here")
        return 2
    return run(
        command, options.nodes, options.tasks_per_node, visible if len(visible) >= world else None, options.grace
    )


if __name__ == "__main__":
    sys.exit(main())
