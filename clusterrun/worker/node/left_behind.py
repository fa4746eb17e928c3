"""What ended jobs and others left on this node: GPU memory, shared memory and ports. Standard library only.

The first rank of each node looks in a thread, beside what it loads anyway. Nothing is ended or removed here. What
fails, hangs or is not understood finds nothing, and ends no run.
"""

from __future__ import annotations

import os
import re
import select
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...base.units import format_age, format_bytes, plural
from ...run_folder.check_findings import BROKEN, DIFFERS, Finding
from ...run_folder.safe_files import user_name
from . import processes
from .log import say

CHECK = "left behind"
SMI_S, LIMIT_S = 5.0, 8.0  # limits: of nvidia-smi, and of a check's wait for the whole search
MOST_BYTES = 2**20  # of an answer
Segments = dict[str, tuple[int, float]]  # bytes, and when it was written, by name
MOST_SHOWN = 4  # processes of a node, and segments in a command
LEAST_HELD = 2**30  # bytes of a GPU that end a launch with --check; a CUDA context takes less
LEAST_FREE = 2**30  # bytes in /dev/shm, as LEAST_FREE_GIB of the folders
LEAST_SHARE = 0.01  # of /dev/shm; less is not worth a line
SHM, NET = Path("/dev/shm"), Path("/proc/net")  # noqa: S108  (it is read only)
INSTANCES = Path("/proc/driver/nvidia/capabilities")  # of MIG
#: What Slurm and CUDA set where several jobs may use one GPU.
SHARING = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY")
#: The names that torch, NCCL, Python, OpenMPI, UCX and CUDA give to segments. Other files may be the user's data.
SEGMENT = re.compile(r"(?:torch_|nccl-|psm_|sem\.|pymp-|vader_segment\.|ucx_shm_|cuda\.shm\.)[\w.+-]*", re.ASCII)
_DEVICE = re.compile(r"\d{1,4}|(?:GPU|MIG)-[\w/-]{1,80}", re.ASCII)
_ROW = re.compile(r"((?:GPU|MIG)-[\w/-]{1,80}), *(\d{1,9}), *(?:(\d{1,9})|\[.*\])\s*", re.ASCII)


class Search:
    """Looks at this node in a thread, and calls `then` with what was found.

    `ports` are those in which a run's rendezvous port is chosen.
    """

    def __init__(self, node: str, ports: range, then: Callable[[Sequence[Finding]], None] = lambda found: None) -> None:
        self._node, self._ports, self._then = node, ports, then
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=self._run, name="clusterrun-left-behind", daemon=True)
        self._thread.start()

    def found(self) -> list[Finding]:
        """Wait for the thread, at most LIMIT_S, and return the findings so far."""
        self._thread.join(LIMIT_S)
        return [*self._found]

    def _run(self) -> None:
        if not processes.are_all_visible():
            return
        for look in (in_shared_memory, partial(on_ports, ports=self._ports), on_gpus):
            with suppress(Exception):
                self._found += look(self._node)
        self._then(self._found)


def tell(found: Sequence[Finding]) -> None:
    """Print a line for each finding."""
    for one in found:
        say(f"{one.text}; {one.action}")


# -- GPU memory ----------------------------------------------------------------------------------------------------


def on_gpus(node: str) -> list[Finding]:
    """Return a finding for each process on this job's GPUs that is not of this job, the first few."""
    devices = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not all(map(_DEVICE.fullmatch, devices)) or any(map(os.environ.get, SHARING)):
        return []
    held = parse(_ask(devices), devices)
    found = (_judge(pid, held[pid], node) for pid in sorted(held, key=lambda pid: -sum(held[pid])))
    return [one for one in found if one is not None][:MOST_SHOWN]


def parse(text: str, devices: Sequence[str]) -> dict[int, list[int]]:
    """Return the processes in nvidia-smi's answer, each with the bytes that it holds on each GPU, 0 where unknown.

    A row of a GPU that is divided by MIG does not say in which instance, which may be another job's.
    """
    is_divided = any(name.startswith("MIG-") for name in devices) or any(INSTANCES.glob("gpu*/mig/gi*"))
    found: dict[int, list[int]] = {}
    for row in filter(None, map(_ROW.fullmatch, text.splitlines())):
        device, pid, mebibytes = row.groups()
        if device in devices or not (is_divided or device.startswith("MIG-")):
            found.setdefault(int(pid), []).append(int(mebibytes or 0) * 2**20)
    return found


def _judge(pid: int, sizes: Sequence[int], node: str) -> Finding | None:
    """Return a finding for a process; None for one of this job, and for one that has ended."""
    process = processes.look_at(pid)
    if process.is_ours if process else not processes.is_hidden(pid):
        return None
    size, is_ending = sum(sizes), process is not None and process.is_ending
    holds = (
        f"holds {format_bytes(size)} of GPU memory" if size else "holds GPU memory (nvidia-smi does not say how much)"
    )
    where = f" on {len(sizes)} GPUs" if len(sizes) > 1 else ""
    status = BROKEN if size >= LEAST_HELD and not is_ending else DIFFERS
    text = f"{_describe(pid, process)} {holds}{where}{', and is ending' if is_ending else ''}"
    return Finding(status, CHECK, f"{node}: {text}", _advice(pid, process, node), (node,))


def _describe(pid: int, process: processes.Process | None) -> str:
    if process is None:
        return f"process {pid} of another user, which /proc hides,"
    job = f", job {process.job}" if process.job else ""
    return f"process {pid} ({process.name}) of {user_name(process.uid)}{job}, started {format_age(process.age)} ago,"


def _advice(pid: int, process: processes.Process | None, node: str) -> str:
    is_mine = process is not None and process.uid == os.getuid()
    return f"end it on {node}: kill {pid}" if is_mine else f"use --exclude {node}, and tell your administrators"


def _ask(devices: Sequence[str]) -> str:
    """Return what nvidia-smi prints of the processes on these devices; empty if it fails, hangs or prints too much."""
    command = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    if not any(name.startswith("MIG-") for name in devices):
        command.append(f"--id={','.join(devices)}")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        return _read(process.stdout.fileno(), time.monotonic() + SMI_S)
    finally:
        process.kill()
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):  # it may wait for the driver, where no signal reaches it
            process.wait(1.0)


def _read(pipe: int, until: float) -> str:
    data = b""
    while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(pipe, 65_536)
        data += piece
        if not piece:
            return data.decode(errors="replace")
        if len(data) > MOST_BYTES:
            break
    return ""


# -- shared memory -------------------------------------------------------------------------------------------------


def in_shared_memory(node: str) -> list[Finding]:
    """Return one finding for the segments that no process has open or mapped, if they are worth a line."""
    state, left = os.statvfs(SHM), _segments()
    least, free = LEAST_SHARE * state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    if _total(left) >= least:
        left = _unused(left)
    total, names = _total(left), sorted(left, key=lambda name: -left[name][0])
    if not left or total < least:
        return []
    age = format_age(time.time() - min(written for _, written in left.values()))
    status = BROKEN if free < min(total, LEAST_FREE) else DIFFERS
    text = f"{node}: no process uses {plural(len(left), 'segment')} in {SHM} ({format_bytes(total)}, up to {age} old)"
    remove = " ".join(f"{SHM}/{name}" for name in names[:MOST_SHOWN])
    more = f" (and {len(names) - MOST_SHOWN} more)" if len(names) > MOST_SHOWN else ""
    return [Finding(status, CHECK, text, f"remove what you do not need on {node}: rm {remove}{more}", (node,))]


def _total(segments: Segments) -> int:
    return sum(size for size, _ in segments.values())


def _segments() -> Segments:
    """Return size and time of the segments that only this user can open: others do not show what they have open."""
    found: Segments = {}
    for entry in filter(lambda entry: SEGMENT.fullmatch(entry.name), os.scandir(SHM)):
        with suppress(OSError):  # removed meanwhile
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077:
                found[entry.name] = info.st_blocks * 512, info.st_mtime
    return found


def _unused(segments: Segments) -> Segments:
    """Return those that no process uses, and that are still there afterwards.

    torch's batches between two processes are open in neither: the process that made one is in its name.
    """
    living, used = [*processes.of_this_user()], set[str]()
    for pid in living:
        used |= {path.removesuffix(" (deleted)").rpartition("/")[2] for path in processes.opened_by(pid)}
    makers = {f"torch_{pid}" for pid in living}
    used |= {name for name in segments if "_".join(name.split("_", 2)[:2]) in makers}
    return {name: found for name, found in _segments().items() if segments.get(name) == found and name not in used}


# -- ports ---------------------------------------------------------------------------------------------------------


def on_ports(node: str, ports: range) -> list[Finding]:
    """Return a finding for each of this user's processes of ended jobs that listens on one of these ports."""
    sockets = _listening(ports)
    running = processes.jobs_of_node() if sockets else set()
    if os.environ.get("SLURM_JOB_ID") not in running:  # no Slurm, or /proc hides its processes
        return []
    found = list[Finding]()
    for pid in processes.of_this_user():
        held = sorted({sockets[link] for link in processes.opened_by(pid) if link in sockets})
        process = processes.look_at(pid) if held else None
        if process and process.job.isdecimal() and process.job not in running:
            text = f"{node}: {_describe(pid, process)} holds port {held[0]}, but its job has ended"
            found.append(Finding(DIFFERS, CHECK, text, _advice(pid, process, node), (node,)))
    return found[:MOST_SHOWN]


def _listening(ports: range) -> dict[str, int]:
    """Return this user's sockets that listen on one of these ports: the port by the link of a descriptor."""
    found: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(NET / name, "rb") as file:
            for line in file.read(MOST_BYTES).splitlines()[1:]:  # those that listen come first
                row = line.split()
                if len(row) > 9 and row[3] == b"0A" and row[7] == str(os.getuid()).encode():
                    found[f"socket:[{row[9].decode(errors='replace')}]"] = _port(row[1])
    return {link: port for link, port in found.items() if port in ports}


def _port(address: bytes) -> int:
    try:
        return int(address.rpartition(b":")[2], 16)
    except ValueError:
        return 0
