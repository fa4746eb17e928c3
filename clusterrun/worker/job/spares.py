"""Nodes that replace lost ones: the job has `--spare-nodes` more than its ranks use. Standard library only."""

from __future__ import annotations

import signal
from collections.abc import Callable

from ...base.errors import WorkerError
from ...run_folder.ends import find_hang
from ..node import batch_host
from ..node.log import say
from . import hung_step
from .job import Job
from .requeue import Requeue


def choose_nodes(job: Job, allocated: list[str]) -> list[str]:
    """Return the nodes of the next launch, in the order of the allocation; raises WorkerError if too few are left."""
    if len(allocated) < job.options.nodes and not job.lost_nodes:
        raise WorkerError(_changed_size(job, len(allocated)))
    usable = [node for node in allocated if node not in job.lost_nodes]
    if len(usable) < job.options.nodes:
        lost = ", ".join(sorted(job.lost_nodes))
        raise WorkerError(
            f"no spare node is left to replace {lost} (nodes required: {job.options.nodes}, left: {len(usable)})"
        )
    spare = len(usable) - job.options.nodes
    if job.launch and spare:
        usable = _without_draining(usable, spare)
    return usable[: job.options.nodes]


def _changed_size(job: Job, allocated: int) -> str:
    """Return the error of a job whose number of nodes was changed while it was pending."""
    nodes = f"{allocated} node{'s' * (allocated != 1)}"
    return (
        f"the job has {nodes}, but was submitted for {job.options.nodes}: its size was changed (scontrol update"
        f" NumNodes), and its ranks were not started.\nclusterrun: hint: submit it again: clusterrun resubmit"
        f" {job.name} --nodes {allocated}"
    )


def _without_draining(usable: list[str], most: int) -> list[str]:
    """Return the nodes without at most that many that are being drained; the first one has the rendezvous."""
    draining = [node for node in batch_host.draining_nodes() if node in usable[1:]][:most]
    if draining:
        say(f"nodes not used in the next launch (drained or down): {' '.join(draining)}")
    return [node for node in usable if node not in draining]


def exclusion(job: Job, nodes: list[str]) -> list[str]:
    """Return srun's option that keeps the ranks on `nodes`; empty if the job has no other nodes."""
    if not job.options.spare_nodes:
        return []
    others = [node for node in batch_host.node_names() if node not in nodes]
    return [f"--exclude={','.join(others)}"] if others else []


def can_replace(job: Job, lost: set[str]) -> bool:
    """Return whether the job may start its ranks again and has enough nodes without the lost ones."""
    left = {*batch_host.node_names()} - job.lost_nodes - lost
    return bool(job.options.max_restarts > 0 and len(left) >= job.options.nodes)


def requeue_without(job: Job, requeue: Requeue, lost: set[str]) -> bool:
    """Requeue the job, if it allows that, so that Slurm gives it other nodes; return whether it runs again."""
    if not job.options.requeue:
        return False
    nodes, hang = ",".join(sorted(lost)), find_hang(job.attempt_dir)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue sends it to this job too
    again = requeue.leave(f"{nodes} did not respond", exclude=nodes, evidence=hang.cause if hang else "")
    if not again:
        signal.signal(signal.SIGTERM, before)
    return again


def find_lost_nodes(job: Job, is_ending: Callable[[], bool]) -> set[str]:
    """Return the nodes that the watchdog found lost; else, with spares, those of lost ranks that do not respond.

    Once `is_ending()` no more nodes are looked at.
    """
    if job.options.local:
        return set()
    hang = find_hang(job.attempt_dir)
    if hang is not None or not job.options.spare_nodes:
        return {*hang.lost_nodes} if hang is not None else set()
    per_node = job.options.workers_per_node
    missing = (rank for rank in range(job.workers) if rank not in job.records[1])
    nodes = [*dict.fromkeys(job.nodes[rank // per_node] for rank in missing)]
    return hung_step.silent_nodes(job, nodes, is_ending)
