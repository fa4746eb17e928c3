"""A running job of the user that runs start in (ADR 41): what it was given, and whether a run fits into it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from clusterrun.base.errors import CommandError, NotDelivered, Refused
from clusterrun.base.job import parse_tasks
from clusterrun.base.units import plural
from clusterrun.scheduler import Submission
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.scontrol import parse_given, parse_jobs, show_argv
from clusterrun.scheduler.slurm.values import short
from clusterrun.system import shell

_NO_SUCH_JOB = "Invalid job id"
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,4})(?=[(,]|$)", re.ASCII)
_QUEUE = "--in-job none queues a new job instead"


class Allocation(NamedTuple):
    """What a job was given: the GPUs of each node, in the order of its nodes, and the CPUs of the node with fewest."""

    gpus: Mapping[str, int]
    cpus: int


def load(job: str, environ: Mapping[str, str]) -> Allocation:
    """Return what a job has. Raises Refused unless it is running and the user's, NotDelivered if Slurm is silent."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", job, re.ASCII):  # a record may say anything
        raise Refused("--in-job is not the id of a job", hint=_QUEUE)
    try:
        done = shell.run([*show_argv("job", [job]), "--details"], env=shell.query_environment(environ))
    except CommandError as error:
        raise _silence(job, error.detail) from error
    if done.status != 0:
        if _NO_SUCH_JOB in done.stderr:
            raise Refused(f"there is no job {job}, or it ended long ago", hint=_QUEUE)
        raise _silence(job, short(done.stderr.strip()))
    return parse(job, done.stdout, os.getuid())


def _silence(job: str, detail: str) -> NotDelivered:
    return NotDelivered(f"cannot tell what job {job} has: Slurm did not respond", detail=detail, hint="try again later")


def parse(job: str, answer: str, uid: int) -> Allocation:
    """Return what the user's job has, from ``scontrol show job --details``. Raises Refused."""
    blocks = parse_jobs(answer)
    if len(blocks) != 1 or blocks[0].get("JobId") != job:
        raise Refused(f"job {job} is an array or has several components, in which no run can start", hint=_QUEUE)
    _check_state(job, blocks[0], uid)
    gpus: dict[str, int] = {}
    cpus: list[int] = []
    for nodes, ids, gres in parse_given(answer):
        count = sum(map(int, _GPUS.findall(gres)))
        gpus |= dict.fromkeys(expand(nodes), count)
        cpus.append(len(parse_tasks(ids) or ()))
    if not gpus or not all(re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", node) for node in gpus):
        raise Refused(f"cannot read from scontrol which nodes job {job} has", hint=_QUEUE)
    return Allocation(gpus, min(cpus))


def _check_state(job: str, fields: Mapping[str, str], uid: int) -> None:
    """Raise Refused unless the job is running and belongs to this user."""
    owner, state = fields.get("UserId", ""), fields.get("JobState", "")
    if not owner.endswith(f"({uid})"):
        raise Refused(f"job {job} belongs to {owner.partition('(')[0]}, not to you", hint=_QUEUE)
    if state in ("PENDING", "CONFIGURING"):
        raise Refused(f"job {job} has not started yet ({state})", hint=f"wait until it runs; {_QUEUE}")
    if state == "SUSPENDED":
        raise Refused(f"job {job} is suspended", hint=_QUEUE)
    if state != "RUNNING":
        raise Refused(f"job {job} has ended ({state})", hint=_QUEUE)


def cpus_per_task(found: Allocation, submission: Submission) -> int:
    """Return the CPUs of each rank: as requested, else its share of what goes with its GPUs. Raises Refused."""
    _check_nodes(found, submission)
    most, gpus, tasks = max(found.gpus.values()), submission.gpus_per_node, submission.tasks_per_node
    cpus = found.cpus
    if gpus and submission.cpus_per_task is None:
        cpus = found.cpus * gpus // most
    wanted = tasks * (submission.cpus_per_task or 1)
    if wanted > cpus:
        text = f"job {submission.in_job} has {cpus} CPUs on a node for this run, but its ranks need {wanted}"
        raise Refused(text, hint=f"allocate more (salloc --cpus-per-task N); {_QUEUE}")
    return submission.cpus_per_task or cpus // tasks


def _check_nodes(found: Allocation, submission: Submission) -> None:
    """Raise Refused if the job has too few nodes, or too few with as many GPUs as the run needs on each."""
    job, nodes, gpus = submission.in_job, submission.nodes, submission.gpus_per_node
    if nodes > len(found.gpus):
        raise Refused(f"job {job} has {plural(len(found.gpus), 'node')}, but the run needs {nodes}", hint=_QUEUE)
    most = max(found.gpus.values())
    if most < gpus:
        text = f"job {job} has {plural(most, 'GPU')} on each node, but the run needs {gpus}"
        raise Refused(text, hint=f"--gpus-per-node {most}; {_QUEUE}")
    fitting = sum(count >= gpus for count in found.gpus.values())
    if fitting < nodes:
        text = f"job {job} has only {plural(fitting, 'node')} with {plural(gpus, 'GPU')}, but the run needs {nodes}"
        raise Refused(text, hint=_QUEUE)
