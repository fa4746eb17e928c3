"""The job of a shell that salloc started: a run that is submitted there starts inside it (ADR 41)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clusterrun.base.job import JobId, is_job_id
from clusterrun.jobspec.fields import Value
from clusterrun.scheduler import Scheduler
from clusterrun.submit.request import Request

_INTERACTIVE_STEP = "4294967290"  # SLURM_INTERACTIVE_STEP of slurm.h: salloc's shell on a node (use_interactive_step)


def join(request: Request, environ: Mapping[str, str], slurm: Scheduler) -> Request:
    """Return the request, inside the job of this shell if salloc started the shell and no place was chosen."""
    job = job_of_shell(environ)
    if not job or "in-job" in request.values or request.scheduler != "auto":
        return request
    answer = slurm.query([JobId.parse(job)])
    state = next((status.state for status in answer.jobs), "")
    if answer.complete and state != "RUNNING":
        line = f"job {job}, which salloc started this shell for, is not running any more: queueing a new job"
        return replace(request, notices=[*request.notices, line])
    line = f"running inside job {job}, which salloc started this shell for; --in-job none queues a new job"
    values = {**request.values, "in-job": Value(job, "SLURM_JOB_ID")}
    return replace(request, values=values, notices=[*request.notices, line])


def job_of_shell(environ: Mapping[str, str]) -> str:
    """Return the job of a shell that salloc started; empty in other shells, in batch scripts and in their steps."""
    job = environ.get("SLURM_JOB_ID", "")
    is_of_task = "SLURM_PROCID" in environ and environ.get("SLURM_STEP_ID") != _INTERACTIVE_STEP
    is_ours = "CLUSTERRUN_RUN_ID" in environ
    return job if job.isdecimal() and is_job_id(job) and not is_of_task and not is_ours else ""
