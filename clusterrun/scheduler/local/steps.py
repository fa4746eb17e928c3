"""The steps of a run in a Slurm job that exists (ADR 41): how its script is started there, and how they are ended.

The script is a step on the run's first node; it starts one more for each launch of the ranks. Both have the run's step
name. Standard library only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterrun.base.errors import CommandError
from clusterrun.base.job import TERMINAL, step_name
from clusterrun.scheduler.local.jobfiles import Job
from clusterrun.system import shell

_ENDING = 30.0  # seconds for Slurm to end the steps of a run
_PAUSE = 0.5
_NO_SUCH_JOB = "Invalid job id"

# The script finds what it would find as a batch script: its logs, the nodes of its ranks, and none of the variables of
# its own step, which srun would take as options of the ranks' step.
_AS_BATCH = """
exec >>"$1" 2>>"$2"
for name in ${!SLURM*} ${!SRUN*} ${!PMI*}; do
    case $name in
    SLURM_CONF | SLURM_CLUSTERS | SLURM_JWT | SLURM_JOB_ID) ;;
    *) unset "$name" ;;
    esac
done
unset CUDA_VISIBLE_DEVICES
export SLURM_JOB_NODELIST="$3" SLURM_CPUS_PER_TASK="$4"
exec /bin/bash -l "$5"
"""


def start_argv(job: Job, nodes: Sequence[str], out: Path, err: Path) -> list[str]:
    """Return the srun that runs the script on the first of its nodes and ends with it.

    The step shares the CPUs, memory and GPUs of all others (--overlap), so it takes nothing from the ranks.
    """
    return [
        "srun", f"--jobid={job.in_job}", f"--job-name={step_name(job.token)}", "--quiet", "--overlap", "--mem=0",
        "--nodes=1", "--ntasks=1", f"--nodelist={nodes[0]}", "--cpu-bind=none", "--export=ALL",
        "/bin/bash", "-c", _AS_BATCH, "clusterrun", str(out), str(err), ",".join(nodes), str(job.cpus_per_task),
        job.script,
    ]  # fmt: skip


def request_end(job: Job, environ: Mapping[str, str]) -> None:
    """Ask the script and its ranks to end, as Slurm asks a batch job: TERM for the ranks, and word for the supervisor.

    That word is URG. TERM would reach the ranks' srun too, which kills them at once while the Slurm job is running;
    all programs but the supervisor (worker/job/termination.py) ignore URG.
    """
    script, *ranks = _find(job, environ) or [""]
    if not script:
        return
    _cancel([script], "URG" if ranks else "TERM", environ)
    if ranks:
        _cancel(ranks, "TERM", environ)


def end(job: Job, environ: Mapping[str, str]) -> bool:
    """Kill what is left of the run's steps; return whether Slurm shows none any more, after some seconds at most."""
    until = time.monotonic() + _ENDING
    while True:
        left = _find(job, environ)
        if left == []:
            return True
        if time.monotonic() >= until:
            return False
        if left:
            _cancel(left, "KILL", environ)
        time.sleep(_PAUSE)


def why_cancelled(job: Job, environ: Mapping[str, str]) -> str:
    """Return what ended a run if its Slurm job is over; empty if that is running, or if Slurm does not respond."""
    answer = _ask(["squeue", "--noheader", "--states=all", f"--jobs={job.in_job}", "--format=%T"], environ)
    state = answer.strip() if answer is not None else "RUNNING"
    if state in TERMINAL:
        return f"the end of job {job.in_job} ({state})"
    return f"the end of job {job.in_job}" if state in ("", "COMPLETING") else ""


def _find(job: Job, environ: Mapping[str, str]) -> list[str] | None:
    """Return the ids of the run's steps, the script's first; None if Slurm does not respond."""
    answer = _ask(["squeue", "--steps", "--noheader", f"--jobs={job.in_job}", "--format=%i %j"], environ)
    if answer is None:
        return None
    pattern = rf"^{job.in_job}\.([0-9]{{1,9}}) {re.escape(step_name(job.token))}$"
    numbers = sorted(map(int, re.findall(pattern, answer, re.ASCII | re.MULTILINE)))
    return [f"{job.in_job}.{number}" for number in numbers]


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return a query's output, empty for a job that Slurm has forgotten; None if Slurm does not respond."""
    try:
        done = shell.run(argv, env=shell.query_environment(environ))
    except CommandError:
        return None
    if done.status != 0:
        return "" if _NO_SUCH_JOB in done.stderr else None
    return done.stdout


def _cancel(ids: Sequence[str], word: str, environ: Mapping[str, str]) -> None:
    # its status says nothing: 22.05 fails after it has sent the signal (seen), and `end` looks what is left
    _ask(["scancel", f"--signal={word}", *ids], environ)
