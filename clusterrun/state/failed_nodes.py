"""Failures of nodes under the user's runs (ADR 40): those that only a command can see, and those of a job's nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LAUNCH_REASON, JobStatus
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends, node_failures
from clusterrun.run_folder.launches import nodes_of
from clusterrun.run_folder.node_failures import LAUNCH, LOST, NodeFailure
from clusterrun.scheduler.slurm.hostlist import expand


def note_end(state: Path, run: RunRecord, job: JobStatus) -> None:
    """Keep the node that a job ended with, or on which Slurm could not start it; ``state`` is the user's state folder.

    Any other end the job itself has recorded.
    """
    kind = _kind(job)
    if not kind or job.ended is None or job.id.is_local or not run.mine:
        return
    attempt = run_record.newest_attempt(run, job.id.task)
    launch = f"{run.submission.key}.none" if attempt is None else attempt.name
    for node in _never_started(run, job, kind) if attempt is None else _with_supervisor(attempt):
        seen = NodeFailure(node, job.ended, kind, "", str(job.id), launch)
        node_failures.note(state, run.cluster, [seen], time.time())


def _kind(job: JobStatus) -> str:
    if job.state == "NODE_FAIL":
        return LOST
    return LAUNCH if job.state == "FAILED" and job.reason == LAUNCH_REASON else ""


def _with_supervisor(attempt: Path) -> Sequence[str]:
    """Return the node of the job's supervisor if that left no record of its end, else nothing."""
    return nodes_of(attempt)[:1] if ends.load_job_end(attempt) is None else ()


def _never_started(run: RunRecord, job: JobStatus, kind: str) -> Sequence[str]:
    """Return the node on which a job should have begun; nothing if others may be at fault.

    Without its log folder it could not start anywhere.
    """
    nodes = expand(job.nodes)
    if kind == LOST:
        return nodes if len(nodes) == 1 else ()
    return nodes[:1] if os.access(run.logs, os.W_OK) else ()


def of_job(state: Path, run: RunRecord | None, job: JobStatus) -> dict[str, list[NodeFailure]]:
    """Return the failures of the last day, by node: of a job's nodes, and of those that it leaves out."""
    failures = node_failures.load(state, run.cluster, time.time()) if run is not None and run.mine else {}
    if run is None or not failures:
        return {}
    nodes = [*expand(job.nodes), *expand(_excluded(run))]
    return {node: failures[node] for node in nodes if node in failures}


def _excluded(run: RunRecord) -> str:
    from clusterrun.submit.plan import load_planned  # rarely needed

    try:
        return dict(run.submission.changed).get("exclude") or load_planned(run)[0].directive("exclude")
    except RequestError:
        return ""
