"""The rungs of a ladder: a job as one process, on one node, and on all of its nodes. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import NAME_BYTES
from clusterrun.base.job import JobId
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import JobSpec, Task
from clusterrun.submit.request import AFTER_OK, WAITS_FOR_SUCCESS, Request

FEW_STEPS = 20
"""Steps of the rungs before the last one."""
#: Settings of the whole job that a short rung must not use: it would write into the job's own results.
_RESULTS = {"save_path", "checkpoint_dir", "push_to_hub", "wandb"}
_SOURCE = "--ladder"


def find_rungs(spec: JobSpec) -> list[tuple[int, int]]:
    """Return nodes and processes per node of each rung, the whole job's at last.

    Raises RequestError for a job of one process, or with a shape in a YAML.
    """
    if spec.world_size == 1:
        raise RequestError("--ladder needs a job with more than one process", hint="add --nodes N or --gpus-per-node N")
    if spec.accelerate_config:
        raise RequestError(
            "--ladder cannot be combined with --accelerate-config: the file fixes the number of nodes and processes",
            hint="submit each job size separately, each with its own file",
        )
    return list(dict.fromkeys([(1, 1), (1, spec.tasks_per_node), (spec.nodes, spec.tasks_per_node)]))


def rung_request(
    request: Request, spec: JobSpec, number: int, shape: tuple[int, int], before: JobId | None
) -> Request:  # fmt: skip
    """Return the request of a rung; ``spec`` is the whole job, ``before`` the job of the rung below."""
    values, work, (nodes, tasks_per_node) = dict(request.values), request.work, shape
    if before is not None:
        values["dependency"] = Value(f"{AFTER_OK}:{before.base}", WAITS_FOR_SUCCESS)
    if shape == (spec.nodes, spec.tasks_per_node):
        return replace(request, values=values)
    values["nodes"] = Value(nodes, _SOURCE)
    if nodes < spec.nodes:
        values.pop("nodelist", None)  # Slurm would add its other nodes
    values["tasks-per-node"] = Value(tasks_per_node, _SOURCE)
    if spec.gpus_per_node and tasks_per_node < spec.tasks_per_node:
        values["gpus-per-node"] = Value(tasks_per_node, _SOURCE)
    name = spec.job_name.encode("utf-8", "surrogateescape")[: NAME_BYTES - 6].decode("utf-8", "ignore")
    values["job-name"] = Value(f"{name}-rung{number}", _SOURCE)
    if isinstance(work, Task):
        values["set"] = _few_steps(values.get("set", Value({}, "")), spec.world_size)
        work = replace(work, settings=tuple(values["set"].value.items()))
    return replace(request, values=values, work=work)


def _few_steps(given: Value, world_size: int) -> Value:
    """Return the settings of a rung: those of the whole job, of this size, with few steps and without results."""
    steps = max(FEW_STEPS, _number(given.value, "log_every"))
    settings = given.value | dict.fromkeys(given.value.keys() & _RESULTS, "")
    settings |= {"ladder": world_size, "schedule": "constant"}
    settings["steps"] = min(steps, _number(given.value, "steps") or steps)
    return Value(settings, f"{_SOURCE}, {given.source}" if given.value else _SOURCE)


def _number(settings: Mapping[str, Any], name: str) -> int:
    """Return a whole number of the settings; 0 if it is not set, or invalid, which the worker refuses."""
    try:
        return int(settings.get(name, 0))
    except (TypeError, ValueError):
        return 0
