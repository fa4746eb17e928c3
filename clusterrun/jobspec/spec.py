"""What was asked for: a job's specification, frozen and valid at birth. No I/O.

``build_spec`` turns merged values of :mod:`clusterrun.jobspec.fields` into a :class:`JobSpec`, or raises with one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.jobspec.fields import (
    FIELD,
    FIELDS,
    JOIN_TIMEOUT,
    NAME_BYTES,
    PG_TIMEOUT,
    Value,
    check_value,
    gres_gpus,
    parse_time_limit,
)


@dataclass(frozen=True, slots=True)
class Task:
    """One of our own tasks (``lm``) with its settings."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """The user's Python script, an absolute path, run once per rank."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """The user's Python module (``-m pkg.train``), run once per rank."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """Any other executable, an absolute path, run once per rank with torch's variables."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A Python callable that submitit pickles into the run's folder and calls once per rank."""

    name: str


Work = Task | Script | Module | Command | Function


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as it was asked for.

    ``tasks_per_node`` is the number of ranks on a node; ``gpus_per_node`` is None where ``gres`` asks for them.
    ``directives`` are sbatch's own options in the order of ``FIELDS``; time-outs are seconds.
    ``sources`` tells where each value came from.
    """

    work: Work
    nodes: int
    gpus_per_node: int | None
    tasks_per_node: int
    job_name: str
    python: str
    requeue: bool
    comment: str = ""
    directives: tuple[tuple[str, str], ...] = ()
    cpus_per_task: int | None = None
    time_limit: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    setup: tuple[str, ...] = ()
    template: str = ""
    sbatch_args: tuple[str, ...] = ()
    master_port: int | None = None
    pg_timeout: int = PG_TIMEOUT
    join_timeout: int = JOIN_TIMEOUT
    shared: bool = False
    sources: Mapping[str, Value] = field(default_factory=dict, compare=False)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.tasks_per_node

    def directive(self, name: str) -> str:
        """sbatch's option of that name as it was asked for, or an empty text."""
        return dict(self.directives).get(name, "")


def build_spec(values: Mapping[str, Value], work: Work) -> JobSpec:
    """Make a specification of merged values and the work to do.

    ``values`` maps names of ``FIELDS`` to values of their kinds, ``gpus-per-node`` (unless there is a
    ``gres``) and ``python`` among them: their defaults depend on the cluster and the shell, so the
    caller looks them up. Raises RequestError, which names the source of a wrong value.
    """
    for name, value in values.items():
        check_value(FIELD[name], value)

    def get(name: str, default: Any = None) -> Any:
        return values[name].value if name in values else default

    gres, gpus = get("gres"), get("gpus-per-node")
    if gres is not None and gres_gpus(gres) is not None and gpus is not None:
        raise RequestError(
            "--gres and --gpus-per-node both ask for GPUs",
            hint="keep one of them; --gpus-per-node is enough on most clusters",
        )
    tasks = get("tasks-per-node") or (gres_gpus(gres) if gres is not None else None) or gpus or 1
    time = get("time")
    return JobSpec(
        work=work,
        nodes=get("nodes", 1),
        gpus_per_node=gpus,
        tasks_per_node=tasks,
        job_name=get("job-name") or default_name(work),
        python=get("python"),
        requeue=get("requeue", isinstance(work, Task)),  # our own tasks resume; a user's script may not
        comment=get("comment", ""),
        directives=tuple((f.name, str(get(f.name))) for f in FIELDS if f.directive and get(f.name) is not None),
        cpus_per_task=get("cpus-per-task"),
        time_limit=parse_time_limit(time) if time is not None else None,
        env=tuple(sorted(get("env", {}).items())),
        setup=tuple(get("setup", ())),
        template=get("template", ""),
        sbatch_args=tuple(get("sbatch-arg", ())),
        master_port=get("master-port"),
        pg_timeout=get("pg-timeout", PG_TIMEOUT),
        join_timeout=get("join-timeout", JOIN_TIMEOUT),
        shared=get("shared", False),
        sources=dict(values),
    )


def default_name(work: Work) -> str:
    """A job name made of what runs: the task, module or file, without its ending, cut to what fits.

    A module that is too long loses its first packages: its own name stands last.
    """
    text = work.name if isinstance(work, Task | Module | Function) else work.path.rsplit("/", 1)[-1].removesuffix(".py")
    plain = re.sub(r"[\x00-\x1f\x7f]", "_", text)  # a file may be called anything, a job may not
    while isinstance(work, Module) and "." in plain and len(plain.encode("utf-8", "surrogateescape")) > NAME_BYTES:
        plain = plain.partition(".")[2]
    return plain.encode("utf-8", "surrogateescape")[:NAME_BYTES].decode("utf-8", "ignore") or "job"
