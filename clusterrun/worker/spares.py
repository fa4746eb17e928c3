"""Nodes that replace lost ones: the job has `--spare-nodes` more than its ranks use. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import batch_host, hung_step
from .errors import WorkerError
from .watchdog import read_hang

if TYPE_CHECKING:
    from .supervisor import Job


def choose_nodes(job: Job, allocated: list[str]) -> list[str]:
    """Return the nodes of the next launch, in the order of the allocation; raises WorkerError if too few are left."""
    usable = [node for node in allocated if node not in job.lost_nodes]
    if len(usable) < job.options.nodes:
        lost = " ".join(sorted(job.lost_nodes))
        raise WorkerError(f"{lost}: lost, and no spare node is left: {len(usable)} of {job.options.nodes} nodes")
    return usable[: job.options.nodes]


def exclusion(job: Job, nodes: list[str]) -> list[str]:
    """Return srun's option that keeps the ranks on `nodes`; empty if the job has no other nodes."""
    if not job.options.spare_nodes:
        return []
    others = [node for node in batch_host.node_names() if node not in nodes]
    return [f"--exclude={','.join(others)}"] if others else []


def leave_out_lost_nodes(job: Job, say: Callable[[str], None]) -> None:
    """Let the next launch leave out the nodes that the last one has lost, and print their names."""
    lost = find_lost_nodes(job)
    if lost:
        say(f"{' '.join(sorted(lost))} does not answer: the next launch leaves it out")
    job.lost_nodes |= lost


def find_lost_nodes(job: Job) -> set[str]:
    """Return the nodes of ranks that left no end record, if they do not answer; none if the job has no spare."""
    if job.options.local or not job.options.spare_nodes:
        return set()
    hang = read_hang(job.attempt_dir)
    if hang:
        return {*hang.get("lost_nodes", [])}
    per_node = job.options.workers_per_node
    missing = (r for r in range(job.workers) if not (job.attempt_dir / f"rank-{r}.end").exists())
    return hung_step.silent_nodes(job, [*dict.fromkeys(job.nodes[rank // per_node] for rank in missing)])
