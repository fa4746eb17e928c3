"""A step that hangs: what its processes do, and the wait for their end after it was killed."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from typing import IO, cast

from ...base.decode import parse_object
from ..node import nccl_ras
from ..node import probe as processes
from .job import Job
from .stall import RankMark

PROBE_S = 8.0  # a node that was lost does not respond
PROBES_S = 120.0  # of all nodes; the ranks must not miss the supervisor meanwhile (orphans.py)
MOST_NODES = 64  # probed at once
NCCL_S = 5.0  # for the answers of all nodes together
NO_ANSWER = "on a node that is not responding"
GONE_S, CANCEL_AFTER_S, COMMAND_S = 10.0, 2.0, 5.0
POLL_S = 0.1


def probe(job: Job, ranks: Sequence[RankMark]) -> dict[int, str]:
    """Return what the processes of these ranks do, by pid: NO_ANSWER if their node does not respond within PROBE_S.

    Those of a node that Slurm starts no probe on are left out.
    """
    if job.options.local:
        return processes.states([mark.pid for mark in ranks], job.token)
    by_node: dict[str, list[int]] = {}
    for mark in ranks:
        by_node.setdefault(mark.node, []).append(mark.pid)
    found: dict[int, str] = {}
    for node, out in _run_probes(by_node).items():
        if out is None:
            found |= dict.fromkeys(by_node[node], NO_ANSWER)
        with suppress(ValueError):
            found |= {int(pid): str(state) for pid, state in parse_object(out or "").items()}
    return found


def silent_nodes(job: Job, nodes: Sequence[str], is_ending: Callable[[], bool]) -> set[str]:
    """Return those of the nodes on which Slurm starts no process within PROBE_S.

    Empty if it starts none on the job's first node either: then Slurm is at fault. The rest of many nodes is left out
    once `is_ending()`, or after PROBES_S.
    """
    if job.options.local:
        return set()
    silent: set[str] = set()
    until = time.monotonic() + PROBES_S
    for first in range(0, len(nodes), MOST_NODES):
        if is_ending() or time.monotonic() > until:
            break
        answers = _run_probes({node: [] for node in (job.nodes[0], *nodes[first : first + MOST_NODES])})
        if not answers[job.nodes[0]]:
            return set()
        silent |= {node for node, out in answers.items() if not out}
    return silent


def _run_probes(by_node: Mapping[str, Sequence[int]]) -> dict[str, bytes | None]:
    """Return the output of a probe on each node: None if it did not end in time, empty if Slurm refused to start it."""
    running = {node: _start_on(node, processes.__file__, pids) for node, pids in by_node.items()}
    until = time.monotonic() + PROBE_S
    found: dict[str, bytes | None] = {}
    for node, process in running.items():
        with process:
            try:
                found[node] = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                found[node] = None
            finally:
                process.kill()
    return found


def ask_nccl(job: Job, nodes: Sequence[str]) -> Generator[tuple[str, bytes], None, None]:
    """Yield what nccl_ras.py prints on each of these nodes, at most MOST_NODES, as they respond within NCCL_S."""
    until = time.monotonic() + NCCL_S
    asked = nodes[: 1 if job.options.local else MOST_NODES]
    running = {node: _start_on("" if job.options.local else node, nccl_ras.__file__) for node in asked}
    try:
        with selectors.DefaultSelector() as waiting:
            for node, process in running.items():
                waiting.register(cast("IO[bytes]", process.stdout), selectors.EVENT_READ, node)
            while waiting.get_map() and time.monotonic() < until:
                for key, _ in waiting.select(until - time.monotonic()):
                    waiting.unregister(key.fileobj)
                    with suppress(subprocess.TimeoutExpired):
                        yield key.data, running[key.data].communicate(timeout=until - time.monotonic())[0]
    finally:
        _end([*running.values()])


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill these programs; do not wait for one that hangs in the kernel."""
    for process in running:
        process.kill()
    until = time.monotonic() + POLL_S
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        cast("IO[bytes]", process.stdout).close()


def _start_on(node: str, script: str, arguments: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a script of this package beside the step, on a node or (with an empty name) here."""
    environ = {name: value for name, value in os.environ.items() if name != "SLURM_EXPORT_ENV"}
    # --mem=0: the hung step has the memory, and --overlap does not share it (seen on 22.05)
    place = ["--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={node}", "--quiet"]
    command = [*(["srun", *place] if node else []), sys.executable, script, *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    )


def await_end(job: Job, steps: Collection[str], pids: Sequence[int]) -> None:
    """Wait until no rank of a step that was killed runs; give up after some seconds, as its node may be lost.

    The kernel or Slurm kills the ranks with the process that started them. `steps` are the numbers of the job's step.
    """
    until, cancel_at = time.monotonic() + GONE_S, time.monotonic() + CANCEL_AFTER_S
    while time.monotonic() < until:
        if job.options.local:
            found = processes.states(pids, job.token)
            if all(state == processes.DEAD for state in found.values()):
                return
        else:
            names = {f"{job.slurm_id}.{step}" for step in steps}
            listed = _output(["squeue", "-s", "-h", "-o", "%i", "-j", job.slurm_id])
            left = names if listed is None else names & {*listed.split()}
            if not left:
                return
            if time.monotonic() > cancel_at:
                cancel_at = until
                _output(["scancel", *left])
        time.sleep(POLL_S)


def _output(command: Sequence[str]) -> str | None:
    """Return what a command prints, None if it fails or does not end within COMMAND_S."""
    try:
        done = subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, text=True
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout
