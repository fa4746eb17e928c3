"""The end of a job on this machine, without what only Slurm has."""

from __future__ import annotations

import re
from dataclasses import replace

from clusterrun.causes import Cause
from clusterrun.job import JobStatus

_SLURM = r"(?:sacct|scontrol|sinfo|squeue)\b"
_ASIDE = re.compile(rf" \({_SLURM}[^)]*\)")


def here(cause: Cause, job: JobStatus) -> Cause:
    """The cause without Slurm's commands, and a lost supervisor in the local scheduler's own words."""
    if cause.kind == "node-failure" and job.state == "NODE_FAIL":
        return replace(cause, sentence=job.reason, advice="", command="clusterrun submit …")
    command = "" if re.match(_SLURM, cause.command) else cause.command
    return replace(cause, advice=_ASIDE.sub("", cause.advice), command=command)
