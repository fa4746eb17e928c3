"""``srun``: the arguments of a step inside a job that is running."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.base.job import JobId


def inside_argv(job: JobId, node: str, command: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the words that run a command once, on one node of a running job, beside the job's own steps.

    --overlap shares the job's CPUs, memory and GPUs with the other steps (man srun 22.05): without it, the step waits
    until they end. ``terminal`` connects the command to a terminal.
    """
    return [
        "srun",
        f"--jobid={job if job.part is None else job.raw}",
        *([f"--het-group={job.part}"] if job.part is not None else []),  # srun takes no 12+1 as a job
        *([f"--clusters={job.cluster}"] if job.cluster else []),
        "--overlap",
        "--mem=0",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--cpu-bind=none",
        *(["--pty"] if terminal else []),
        "--",
        *command,
    ]
