"""Explain why a local job is pending: another local job, or devices that others use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterrun.base.job import JobStatus, Outcome
from clusterrun.base.units import plural
from clusterrun.scheduler.local.jobfiles import Job, Unreadable, job_folders, read_job, read_state, read_status
from clusterrun.scheduler.slurm.reasons import Reason, Starts, find_reason
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.why.pending import dependencies
from clusterrun.why.pending.facts import Finding


def explain_local(root: Path, job: JobStatus, seen: Sequence[str]) -> tuple[Reason | None, Finding]:
    """Return the reason of a local job and its evidence.

    ``root`` is the folder of the local jobs, ``seen`` the visible devices of this machine.
    """
    reason = find_reason(job.reason) if job.reason else None
    try:
        request = read_job(root / str(job.id))
    except (OSError, Unreadable):
        request = None
    if request is None:
        return reason, Finding(unseen=("the job's resource request",))
    if job.reason.startswith("Dependency"):
        return reason, _dependency(root, job, request)
    return reason, _devices(root, job, request, seen) if job.reason == "Resources" else Finding()


def _dependency(root: Path, job: JobStatus, request: Job) -> Finding:
    statuses = _statuses(root)
    queue = [
        Queued(id=str(s.id), raw=-1, state=s.state, reason=s.reason, left=_left(s))
        for s in statuses
        if s.outcome is Outcome.RUNNING
    ]
    lines, never = dependencies.describe_conditions(request.dependency, queue, [s for s in statuses if s.is_over])
    give_up = f"clusterrun cancel {job.id}"
    return Finding(
        tuple(lines),
        (give_up if never else f"wait, or cancel the job: `{give_up}`",),
        starts=Starts.NEVER if never else None,
    )


def _devices(root: Path, job: JobStatus, request: Job, seen: Sequence[str]) -> Finding:
    here = [f"the job requests {plural(request.nodes * request.gpus_per_node, 'GPU')}; this machine has {len(seen)}"]
    holders = []
    for folder in job_folders(root):
        try:
            state = read_state(folder)
        except Unreadable:
            continue
        if state is not None and state.devices and state.state in ("RUNNING", "COMPLETING"):
            holders.append(f"{', '.join(state.devices)} (job {folder.name})")
    here.append(f"GPUs in use by local jobs: {'; '.join(holders)}" if holders else "none of your local jobs uses a GPU")
    return Finding(tuple(here), ("wait, or use `clusterrun cancel` to end a job that uses GPUs",))


def _statuses(root: Path) -> list[JobStatus]:
    try:
        return [status for folder in job_folders(root) if (status := read_status(folder)) is not None]
    except OSError:
        return []


def _left(job: JobStatus) -> int | None:
    if job.time_limit is None or job.elapsed is None:
        return None
    return max(0, job.time_limit - job.elapsed)
