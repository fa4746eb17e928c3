"""Compute the shapes with the same number of GPUs, and what a job of another shape requests. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from clusterrun.jobspec.fields import FIELDS, Value, gres_gpus
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler.slurm.values import parse_gpus
from clusterrun.submit.request import SubmitArgs

MOST_SHAPES = 4
_GPU_COUNT = re.compile(r"((?:^|,)gpu(?::[^:,()]+)?:)([0-9]+)(?=$|[,(])")
_MEM = re.compile(r"([0-9]+)([KMGT]?)(B?)", re.IGNORECASE)


class Shape(NamedTuple):
    """A number of nodes with a number of GPUs each (ranks, for a job without GPUs)."""

    nodes: int
    each: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.each}"


class Need(NamedTuple):
    """What a job needs of a node besides its shape: the type of GPU, "" for any, and the CPUs of each rank."""

    gpus: bool
    kind: str = ""
    cpus: int = 1

    @property
    def unit(self) -> str:
        return "GPU" if self.gpus else "rank"


def shape_of(spec: JobSpec) -> tuple[Shape, Need]:
    """Return the requested shape, and what the job needs of each node."""
    gres = spec.directive("gres")
    gpus = spec.gpus_per_node if spec.gpus_per_node is not None else gres_gpus(gres)
    kinds = [kind for kind, _ in parse_gpus(gres)]
    if gpus:
        return Shape(spec.allocated_nodes, gpus), Need(gpus=True, kind=kinds[0] if len(kinds) == 1 else "")
    return Shape(spec.allocated_nodes, spec.tasks_per_node), Need(gpus=False, cpus=spec.cpus_per_task or 1)


def shapes_alike(asked: Shape, most_each: int) -> list[Shape]:
    """Return the requested shape, then others of the same total that fit on a node, nearest first."""
    total = asked.nodes * asked.each
    others = [Shape(total // each, each) for each in range(1, min(total, most_each) + 1) if total % each == 0]
    near = sorted(
        (s for s in others if s != asked), key=lambda s: (max(s.each / asked.each, asked.each / s.each), -s.each)
    )
    return [asked, *near[: MOST_SHAPES - 1]]


def reshape_values(values: Mapping[str, Value], asked: Shape, shape: Shape, need: Need) -> dict[str, Value] | None:
    """Return the values that another shape changes, per-node values in proportion; None if it is not possible."""
    if shape == asked:
        return {}
    source = "another shape"
    changed = {"nodes": Value(shape.nodes, source)}
    if "nodelist" in values:
        return None  # named nodes fix their number
    if need.gpus and "gres" in values and gres_gpus(str(values["gres"].value)) is not None:
        gres, count = _GPU_COUNT.subn(rf"\g<1>{shape.each}", str(values["gres"].value))
        if count != 1:
            return None
        changed["gres"] = Value(gres, source)
    elif need.gpus:
        changed["gpus-per-node"] = Value(shape.each, source)
    if "tasks-per-node" in values or not need.gpus:
        tasks = (values["tasks-per-node"].value if "tasks-per-node" in values else asked.each) * shape.each
        if tasks % asked.each:
            return None
        changed["tasks-per-node"] = Value(tasks // asked.each, source)
    match = _MEM.fullmatch(str(values["mem"].value)) if "mem" in values else None
    if match is not None and int(match[1]):  # 0 is all of a node's
        number = int(match[1]) * shape.each
        if number % asked.each:
            number, unit = number * 1024, {"": "K", "M": "K", "G": "M", "T": "G"}.get(match[2].upper(), "K")
        else:
            unit = match[2]
        changed["mem"] = Value(f"{-(-number // asked.each)}{unit}{match[3]}", source)
    return changed


def submit_command(asked: SubmitArgs, changed: Mapping[str, Value]) -> str:
    """Return the typed submit command with these values changed."""
    words = ["clusterrun", "submit", *([asked.job] if asked.job else [])]
    words += ["--profile", asked.profile] if asked.profile else []
    for one in FIELDS:
        value = changed.get(one.name) or asked.flags.get(one.name)
        if value is None:
            continue
        match one.kind:
            case "flag":
                words.append(f"--{'' if value.value else 'no-'}{one.name}")
            case "map":
                words += [word for key, text in value.value.items() for word in (f"--{one.name}", f"{key}={text}")]
            case "list":
                words += [f"--{one.name}={text}" for text in value.value]
            case _:
                words += [f"--{one.name}", str(value.value)]
    return shlex.join([*words, *(["--", *asked.command] if asked.command else [])])
