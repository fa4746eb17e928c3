"""The local scheduler's replacement for srun: start the ranks of a step on this machine and label their output.

Run by path: `python local_launcher.py --nodes N --tasks-per-node T [--devices cuda|cpu] -- CMD ARGS…`. It needs only
the standard library. It labels lines as srun does, and exits with the status of the first rank that fails.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PIECE = 1024  # srun splits labelled lines at this size; the log reader joins such pieces
PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2}
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
PR_SET_PDEATHSIG = 1
EXIT = "exit.json"


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return a preexec function after which the kernel kills the child when `parent` dies."""
    libc = ctypes.CDLL(None)  # loaded here, as nothing may be imported between fork and exec

    def kill_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the prctl call
            os._exit(1)

    return kill_with_parent


class Labeler:
    """Splits a stream into lines that begin with `RANK: ` (nothing if `world_size` is 0), in bounded memory."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.label = f"{rank:>{len(str(world_size - 1))}}: ".encode() if world_size else b""
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the complete lines; keep an unfinished one, up to PIECE bytes."""
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
    """The ranks of the step and its state; times are monotonic seconds."""

    grace: float
    noun: str = "rank"
    ranks: list[Rank] = field(default_factory=list)
    failed: Rank | None = None
    stopped: bool = False
    kill_at: float | None = None

    def running(self) -> list[Rank]:
        return [r for r in self.ranks if r.status is None]

    def signal_all(self, signum: int) -> None:
        for r in self.running():
            os.kill(r.process.pid, signum)  # not reaped yet, so the pid is still its own

    def stop(self) -> None:
        """Terminate the ranks; those that still run after the grace period are killed."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.grace
            self.signal_all(signal.SIGTERM)
            self.signal_all(signal.SIGCONT)  # a stopped process does not handle SIGTERM

    def kill(self) -> None:
        """Kill the ranks' process groups; their leaders are not reaped yet, so the group ids are still theirs."""
        for r in self.ranks:
            try:
                os.killpg(r.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def reap(self) -> None:
        """Record the ranks that have ended; the first failure stops the step."""
        ended = []
        for r in self.running():
            info = os.waitid(os.P_PID, r.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                r.status = info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status
                ended.append(r)
        failed = [r for r in ended if r.status]
        if failed and self.failed is None and not self.stopped:
            self.failed = min(failed, key=lambda r: (r.status == 128 + signal.SIGTERM, r.rank))
            line = f"{self.noun} {self.failed.rank} on {self.failed.node} exited with {self.failed.status}"
            print_message(line)
            self.stop()
            if self.noun == "rank":
                record_exit(self.failed, line)


def rank_environment(
    rank: int, nodes: int, per_node: int, devices: list[str] | None, devices_per_task: int = 1
) -> dict[str, str]:
    """Return the environment of a rank: torchrun's variables, its node's name, and its node's devices.

    `devices` are the machine's visible ones (None: run on the CPU).
    """
    share = per_node * devices_per_task
    node, local = divmod(rank, per_node)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SLURMD_", "PMI"))}
    own = [] if devices is None else devices[node * share : (node + 1) * share]
    return environment | {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(node),
        "TORCHELASTIC_RUN_ID": os.environ.get("CLUSTERRUN_RUN_ID") or "local",
        "CLUSTERRUN_NODE_NAME": f"local{node}",
        "CUDA_VISIBLE_DEVICES": ",".join(own),
    }


def visible_devices() -> list[str]:
    """Return the CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [d.strip() for d in listed.split(",") if d.strip() and d.strip() != "-1"]
    return [str(i) for i, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*")))]


def run(
    command: Sequence[str], nodes: int, per_node: int, devices: list[str] | None, grace: float,
    devices_per_task: int = 1, label: bool = True,
) -> int:  # fmt: skip
    """Run the step to its end and return its exit status."""
    step, selector = Step(grace, "rank" if label else "launcher task"), selectors.DefaultSelector()
    wakeup, wakeup_in = socket.socketpair()
    wakeup.setblocking(False)
    wakeup_in.setblocking(False)
    caught = ENDING | PASSED_ON | {signal.SIGCHLD}
    for signum in caught:
        signal.signal(signum, lambda *_: None)  # the signals are read below, from the wake-up bytes
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
                env=rank_environment(rank, nodes, per_node, devices, devices_per_task),
                start_new_session=True,
                preexec_fn=preexec,
            )
        except OSError as error:
            print_message(f"cannot start {command[0]}: {error.strerror or error}")
            step.kill()
            return 127 if isinstance(error, FileNotFoundError) else 126
        step.ranks.append(Rank(rank, f"local{rank // per_node}", process))
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, (Labeler(rank, world if label else 0), target))

    open_until: float | None = None  # after all ranks have ended, their children may not keep the pipes open for long
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
        step.reap()
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


def record_exit(failed: Rank, line: str) -> None:
    """Write exit.json: which rank ended the step, for restart.py. A rank that was killed left no record itself."""
    document = {"rank": failed.rank, "node": failed.node, "status": failed.status, "line": line}
    folder = os.environ.get("CLUSTERRUN_ATTEMPT_DIR")
    if folder:
        with suppress(OSError):
            Path(folder, EXIT).write_text(json.dumps(document))


def write_all(target: int, data: bytes) -> None:
    """Write to a descriptor; if it is closed or full, drop the data: that must not end the run."""
    while data:
        try:
            data = data[os.write(target, data) :]
        except OSError:
            return


def print_message(text: str) -> None:
    """Print one line on stderr, without a label, as srun does."""
    write_all(2, f"clusterrun: {text}\n".encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the step; return its exit status, 2 for an impossible request."""
    argv = list(sys.argv[1:] if argv is None else argv)
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description="Run a command once per task; all nodes of the job are simulated on this machine."
    )
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--tasks-per-node", type=int, required=True)
    parser.add_argument("--devices", choices=("cuda", "cpu"), help="default: cuda if each rank gets a device, else cpu")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument(
        "--devices-per-task", type=int, default=1, help="devices per task; more than 1 if a task starts several ranks"
    )
    parser.add_argument(
        "--no-label", action="store_true", help="do not label output lines, because the tasks label their own"
    )
    options = parser.parse_args(argv[:split])
    command = argv[split + 1 :]
    if not command:
        parser.error("no command after --")
    world = options.nodes * options.tasks_per_node * options.devices_per_task
    if options.nodes < 1 or options.tasks_per_node < 1:
        parser.error("--nodes and --tasks-per-node must be at least 1")
    visible = visible_devices() if options.devices != "cpu" else []
    if options.devices == "cuda" and len(visible) < world:
        print_message(f"each rank needs its own device: {world} needed, {len(visible)} visible")
        return 2
    return run(
        command, options.nodes, options.tasks_per_node, visible if len(visible) >= world else None, options.grace,
        options.devices_per_task, not options.no_label,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
