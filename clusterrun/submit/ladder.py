"""The rungs of a ladder: a job as one process, on one node, and on all of its nodes. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from clusterrun.errors import RequestError
from clusterrun.job import JobId
from clusterrun.jobspec.fields import NAME_BYTES, Value
from clusterrun.jobspec.spec import JobSpec, Task
from clusterrun.scheduler import KILL_ON_INVALID_DEP
from clusterrun.submit.request import Request

FEW_STEPS = 20
"""Steps of the rungs before the last one."""
#: The global batch of a task without batch sizes, before it is rounded up; other tasks have 16 (worker/tasks).
_DEFAULT_BATCH = {"sft": 8, "diffusion": 8}
#: Settings of the whole job that a short rung must not use: it would write into the job's own results.
_RESULTS = ("save_path", "checkpoint_dir", "push_to_hub", "wandb")
_SOURCE = "--ladder"


class Rung(NamedTuple):
    """The shape of one rung, and its place in the ladder; ``number`` counts from 1."""

    number: int
    nodes: int
    tasks_per_node: int
    is_last: bool

    @property
    def ranks(self) -> int:
        return self.nodes * self.tasks_per_node


def find_rungs(spec: JobSpec) -> list[Rung]:
    """Return the rungs of a job. Raises RequestError for a job of one process, or with a shape in a YAML."""
    if spec.world_size == 1:
        raise RequestError("--ladder: the job has one process", hint="add --nodes N or --gpus-per-node N")
    if spec.accelerate_config:
        raise RequestError(
            "--ladder and --accelerate-config cannot be combined: the file is for one shape",
            hint="submit the shapes one by one, each with its own file",
        )
    shapes = list(dict.fromkeys([(1, 1), (1, spec.tasks_per_node), (spec.nodes, spec.tasks_per_node)]))
    return [Rung(number, *shape, number == len(shapes)) for number, shape in enumerate(shapes, 1)]


def rung_request(request: Request, spec: JobSpec, rung: Rung, before: JobId | None) -> Request:
    """Return the request of a rung; ``spec`` is the whole job, ``before`` the job of the rung below."""
    values = dict(request.values)
    if rung.nodes < spec.nodes:
        values["nodes"] = Value(rung.nodes, _SOURCE)
        values.pop("nodelist", None)  # Slurm would add its other nodes
    if rung.tasks_per_node < spec.tasks_per_node:
        values["tasks-per-node"] = Value(rung.tasks_per_node, _SOURCE)
        if spec.gpus_per_node:
            values["gpus-per-node"] = Value(rung.tasks_per_node, _SOURCE)
    if not rung.is_last:
        name = spec.job_name.encode("utf-8", "surrogateescape")[: NAME_BYTES - 6].decode("utf-8", "ignore")
        values["job-name"] = Value(f"{name}-rung{rung.number}", _SOURCE)
    if before is not None:  # the source is not an option: `why` would repeat this line for a job of its own
        values["dependency"] = Value(f"afterok:{before.base}", "ladder")
        own = values["sbatch-arg"].value if "sbatch-arg" in values else ()
        values["sbatch-arg"] = Value([*own, KILL_ON_INVALID_DEP], values["sbatch-arg"].source if own else "ladder")
    work = request.work
    if isinstance(work, Task):
        given = values.get("set", Value({}, _SOURCE))
        settings = {**given.value, **batch_sizes(work.name, given.value, spec.world_size)}
        if not rung.is_last:
            steps = max(FEW_STEPS, _number(settings, "log_every"))
            settings |= {"steps": min(steps, _number(settings, "steps") or steps), "schedule": "constant"}
            settings |= {name: "" for name in _RESULTS if name in settings}
        values["set"] = Value(settings, f"{_SOURCE}, {given.source}" if given.value else _SOURCE)
        work = replace(work, settings=tuple(settings.items()))
    return replace(request, values=values, work=work)


def batch_sizes(task: str, settings: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """Return the batch sizes that keep global and micro batch the same in every rung of a job of ``ranks`` ranks.

    Empty if only the size per rank is set: then the global batch grows with the ranks. Raises RequestError for a global
    batch that does not divide over the ranks.
    """
    whole, micro = _number(settings, "global_batch_size"), _number(settings, "micro_batch_size")
    accumulated = _number(settings, "grad_accum_steps")
    if not whole and (micro or accumulated):
        return {}
    part = ranks * (micro or accumulated or 1)
    whole = whole or -(-_DEFAULT_BATCH.get(task, 16) // ranks) * ranks
    if whole % part:
        raise RequestError(
            f"--ladder: global_batch_size={whole} does not divide over {ranks} ranks",
            hint=f"use a multiple of {part}, such as --set global_batch_size={-(-whole // part) * part}",
        )
    return {
        "global_batch_size": whole, "micro_batch_size": micro or whole // part, "grad_accum_steps": 0
    }  # fmt: skip


def global_batch(settings: Mapping[str, Any], ranks: int) -> int:
    """Return the global batch of a rung's settings; 0 if they do not say."""
    micro, accumulated = _number(settings, "micro_batch_size"), _number(settings, "grad_accum_steps")
    return _number(settings, "global_batch_size") or micro * (accumulated or 1) * ranks


def _number(settings: Mapping[str, Any], name: str) -> int:
    """Return a whole number of the settings; 0 if it is not set, or invalid, which the worker refuses."""
    try:
        return int(settings.get(name, 0))
    except (TypeError, ValueError):
        return 0
