"""This machine's CUDA devices: counted without CUDA, and given to local jobs as they arrive.

A job's devices are part of its state, so that they are free when the job is over. ``<state>/local/devices.lock`` is
held while a job looks which are free and writes which it takes. A device is identified by its name in
CUDA_VISIBLE_DEVICES, so a device that is a number in one job and a UUID in another counts as two.
Standard library only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from clusterrun.scheduler.local.jobfiles import Job, State, Unreadable, job_folders, number_of, read_job, read_state
from clusterrun.scheduler.local.processes import members
from clusterrun.system.processes import host_name

_NAME = re.compile(r"[0-9]+|(GPU|MIG)-[A-Za-z0-9/-]+", re.ASCII)


def visible(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the CUDA devices that a job with that environment sees, in CUDA's order."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        drivers = _count(Path("/proc/driver/nvidia/gpus"), r".+")
        nodes = _count(Path("/dev"), r"nvidia[0-9]+")
        # a container may show the driver's whole list and only its own device files
        return tuple(str(n) for n in range(min(drivers, nodes) or max(drivers, nodes)))
    devices: list[str] = []
    for name in map(str.strip, named.split(",")):
        # CUDA stops at the first invalid name (often -1) and ignores repetitions
        if not _NAME.fullmatch(name) or name in devices:
            break
        devices.append(name)
    return tuple(devices)


def _count(folder: Path, pattern: str) -> int:
    try:
        return sum(re.fullmatch(pattern, entry.name) is not None for entry in folder.iterdir())
    except OSError:
        return 0


def choose(free: Sequence[str], job: Job) -> tuple[str, ...] | None:
    """Return the devices that a job takes of those that are free, None if they are too few.

    In a Slurm job a run needs them on each of its nodes.
    """
    if not job.in_job:
        wanted = job.nodes * job.gpus_per_node
        return tuple(free[:wanted]) if len(free) >= wanted else None
    by_node: dict[str, list[str]] = defaultdict(list)
    for slot in free:
        by_node[slot.split("/")[1]].append(slot)
    usable = [slots[: job.gpus_per_node] for slots in by_node.values() if len(slots) >= job.gpus_per_node]
    return tuple(chain.from_iterable(usable[: job.nodes])) if len(usable) >= job.nodes else None


def free_devices(folder: Path, seen: Sequence[str], over: set[str], in_job: str = "") -> list[str]:
    """Return the devices that a job may take now: none while an older job waits for some. Raises OSError.

    ``over`` collects the jobs that need no second look. ``in_job`` is the Slurm job whose devices they are.
    """
    taken: set[str] = set()
    for other, state in _active_jobs(folder, over):
        if _waits_for_devices(state) and number_of(other) < number_of(folder) and _place_of(other) == in_job:
            return []
        taken.update(state.devices)
    return [device for device in seen if device not in taken]


def _active_jobs(folder: Path, over: set[str]) -> Iterator[tuple[Path, State]]:
    """Yield the other jobs of this host that wait, run or left processes behind."""
    for other in job_folders(folder.parent):
        if other == folder or other.name in over:
            continue
        try:
            state = read_state(other)
            if state is None or _is_gone(other, state):
                over.add(other.name)
            elif state.host == host_name():
                yield other, state
        except Unreadable:
            continue


def _place_of(folder: Path) -> str | None:
    """Return the Slurm job that a job runs in, empty for this machine; None if it has no request."""
    job = read_job(folder)
    return job.in_job if job is not None else None


def _waits_for_devices(state: State) -> bool:
    return state.state == "PENDING" and state.reason in ("", "Resources")


def _is_gone(folder: Path, state: State) -> bool:
    """Return whether a job is over and no process of it can use a device."""
    if not state.is_over:
        return False
    if state.state != "NODE_FAIL":
        return True
    job = read_job(folder)
    return job is None or not members(job.token)
