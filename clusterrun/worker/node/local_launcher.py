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
from dataclasses import dataclass
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


class Step:
    """The ranks of the step, whose output it copies; times are monotonic seconds."""

    def __init__(self, grace: float, noun: str) -> None:
        self.grace, self.noun = grace, noun
        self.ranks: list[Rank] = []
        self.failed: Rank | None = None
        self.stopped = False
        self.kill_at: float | None = None
        # after all have ended, their children may not keep the pipes open for long
        self.open_until: float | None = None
        self._wakeup = _catch_signals()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def start(self, command: Sequence[str], rank: int, world_size: int, environment: dict[str, str]) -> None:
        """Start a rank; its lines get no label if `world_size` is 0. Raises OSError."""
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            start_new_session=True, preexec_fn=die_with_parent(os.getpid()),
        )  # fmt: skip
        self.ranks.append(Rank(rank, environment["CLUSTERRUN_NODE_NAME"], process))
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            assert stream is not None
            self._selector.register(stream, selectors.EVENT_READ, (Labeler(rank, world_size), target))

    def copy_until_end(self) -> None:
        """Copy the output of the ranks until all have ended, and pass on the signals that come."""
        while len(self._selector.get_map()) > 1 or self.running():
            is_ending = self.kill_at is not None or self.open_until is not None
            for key, _ in self._selector.select(0.1 if is_ending else 1.0):
                if key.fileobj is self._wakeup:
                    self._take_signals()
                else:
                    self._copy(key)
            self.reap()
            if self._is_overdue(time.monotonic()):
                break
        for key in self._selector.get_map().values():
            if key.data is not None:
                labeler, target = key.data
                write_all(target, labeler.close())

    def _take_signals(self) -> None:
        for number in self._wakeup.recv(256):
            if number in ENDING:
                self.stopped = True
                self.stop()
            elif number in PASSED_ON:
                self.signal_all(number)

    def _copy(self, key: selectors.SelectorKey) -> None:
        labeler, target = key.data
        data = os.read(key.fd, 65_536)
        write_all(target, labeler.feed(data) if data else labeler.close())
        if not data:
            self._selector.unregister(key.fileobj)

    def _is_overdue(self, now: float) -> bool:
        """Kill what runs for too long, and return whether only pipes are left, which have been open for too long."""
        if self.running():
            if self.kill_at is not None and now >= self.kill_at:
                self.kill()
            return False
        if self.open_until is None:
            self.kill()
            self.open_until = now + 2.0
        return now >= self.open_until

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
    step, world_size = Step(grace, "rank" if label else "launcher task"), nodes * per_node
    for rank in range(world_size):
        environment = rank_environment(rank, nodes, per_node, devices, devices_per_task)
        try:
            step.start(command, rank, world_size * label, environment)
        except OSError as error:
            print_message(f"cannot start {command[0]}: {error.strerror or error}")
            step.kill()
            return 127 if isinstance(error, FileNotFoundError) else 126
    step.copy_until_end()
    for one in step.ranks:
        one.process.wait()
    if step.stopped:
        return 128 + signal.SIGTERM
    return 0 if step.failed is None else step.failed.status or 1


def _catch_signals() -> socket.socket:
    """Return a socket from which the numbers of the signals are read that come from now on."""
    wakeup, wakeup_in = socket.socketpair()
    wakeup.setblocking(False)
    wakeup_in.setblocking(False)
    for signum in ENDING | PASSED_ON | {signal.SIGCHLD}:
        signal.signal(signum, lambda *_: None)
    signal.set_wakeup_fd(wakeup_in.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return wakeup


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
