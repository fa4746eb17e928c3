"""The options of clusterrun that a launcher's line amounts to, and the line that sets them. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterrun.base.errors import RequestError
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import FIELDS, Value, gres_gpus
from clusterrun.submit.launchers import Launch
from clusterrun.submit.own_ranks import on_each_node

Values = Mapping[str, Value]
_ONE = Value(1, "default")


def job_options(launch: Launch, given: Values, below: Values) -> dict[str, Value]:
    """Return the options that a launch sets. Raises RequestError if they contradict ``given``."""
    options = dict(launch.options)
    typed_gpus, profile_gpus = gpus_of(given), gpus_of(below)
    typed_ranks = given.get("tasks-per-node") or (typed_gpus if typed_gpus and typed_gpus.value else None)
    nodes, ranks = _shape(launch, given, typed_ranks or profile_gpus)
    count = (nodes or given.get("nodes") or below.get("nodes") or _ONE).value
    if nodes is not None and (launch.nodes or nodes.value != given.get("nodes", below.get("nodes", _ONE)).value):
        options["nodes"] = nodes
    gpus = _slurm_gpus(launch, count, ranks)
    if gpus is None and launch.title in ("srun", "python") and not (typed_gpus or profile_gpus):
        gpus = Value(0, f"--gres: {launch.title} without GPUs")
    if gpus is not None and launch.gpu_type and gpus.value:
        options["gres"] = Value(f"gpu:{launch.gpu_type}:{gpus.value}", gpus.source)
    elif gpus is not None and "gres" not in options:
        options["gpus-per-node"] = gpus
    devices = gpus or typed_gpus or profile_gpus
    if ranks is not None and typed_ranks is not None and typed_ranks.value != ranks.value:
        raise _conflict(typed_ranks, ranks)
    if ranks is not None and typed_ranks is None:
        if gpus is None and not (devices and devices.value in (0, ranks.value)):
            devices = options["gpus-per-node"] = ranks
        if devices is None or devices.value != ranks.value or "tasks-per-node" in below:
            options["tasks-per-node"] = ranks
    if cpus := _cpus_of_rank(launch, ranks or typed_ranks or devices):
        options["cpus-per-task"] = cpus
    if env := launch.env | _shape_env(launch, count, devices, ranks or typed_ranks or devices):
        options["env"] = Value(env, f"--env of {launch.title}")
    for name, value in options.items():
        typed = given.get(name, value)
        if name == "env":
            if any(typed.value.get(key, text) != text for key, text in env.items()):
                raise _conflict(typed, value)
        elif typed.value != value.value and name not in ("sbatch-arg", "setup"):
            raise _conflict(typed, value)
    return options


def _cpus_of_rank(launch: Launch, ranks: Value | None) -> Value | None:
    """Return the cores of each rank, if a launcher starts the ranks in a task that has the cores of all."""
    if launch.node_cpus is None:
        return None
    return Value(max(1, launch.node_cpus.value // max(1, ranks.value if ranks else 1)), launch.node_cpus.source)


def _shape_env(launch: Launch, nodes: int, devices: Value | None, ranks: Value | None) -> dict[str, str]:
    """Return the variables in which fabric passes the shape, and accelerate the CPU."""
    if launch.title.endswith("fabric run"):
        return {"LT_NUM_NODES": str(nodes)} | ({"LT_DEVICES": str(ranks.value or 1)} if ranks else {})
    # without it, each process trains alone
    cpu = launch.title.endswith("accelerate launch") and devices is not None and not devices.value
    return {"ACCELERATE_USE_CPU": "true"} if cpu else {}


def gpus_of(values: Values) -> Value | None:
    """Return the GPUs per node of ``--gpus-per-node`` or ``--gres``."""
    gres = values.get("gres")
    count = gres_gpus(str(gres.value)) if gres else None
    return Value(count, gres.source) if gres and count is not None else values.get("gpus-per-node")


def format_line(options: Values, program: Sequence[str], quote: Callable[[str], str] = shlex.quote) -> str:
    """Return ``clusterrun submit OPTIONS -- PROGRAM`` as a line for the shell."""
    return " ".join(filter(None, ["clusterrun submit", format_options(options, quote), "--", *map(quote, program)]))


def format_options(options: Values, quote: Callable[[str], str] = shlex.quote) -> str:
    """Return options as they are typed, in the order of ``FIELDS``."""
    words: list[str] = []
    for name in dict.fromkeys([*(field.name for field in FIELDS if field.name in options), *options]):
        value: Any = options[name].value
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping):
            words += [f"--{name} {quote(f'{key}={text}')}" for key, text in value.items()]
        elif isinstance(value, list | tuple):
            words += [f"--{name}={quote(one)}" if name == "sbatch-arg" else f"--{name} {quote(one)}" for one in value]
        else:
            words.append(f"--{name} {quote(str(value))}")
    return " ".join(words)


def one_gpu_each(launch: Launch) -> str:
    """Return the notice about ranks that saw one GPU each, and now see all of their node."""
    return (
        f"with {launch.sees_one_gpu}, each task sees one GPU, as device 0; here each rank sees all GPUs of its node,"
        " and must use that of its LOCAL_RANK"
    )


def refused_line(launch: Launch, options: Values, given: Values, below: Values) -> str:
    """Return the line that runs a launch which cannot be translated; ``options`` are all, ``given`` the typed ones."""
    launcher = launch.instead.get("launcher")
    kept = {**options, **{name: Value(value, "") for name, value in launch.instead.items()}}
    if launcher is None:
        return format_line(kept, launch.program)
    kept = _of_launcher(kept, launch, given)
    if launcher != "none":
        return format_line(kept, launch.program)
    nodes = (options.get("nodes") or below.get("nodes") or _ONE).value
    program = on_each_node(launch.line, launch.launcher, nodes)
    if program is None:
        return f"{launch.title} starts the ranks of one node only: use --nodes 1, or a line that torchrun would start"
    if "tasks-per-node" in options and not _has_gpus(options, below):
        kept["tasks-per-node"] = options["tasks-per-node"]
    return format_line(kept, program)


def _has_gpus(options: Values, below: Values) -> bool:
    devices = gpus_of(options) or gpus_of(below)
    return devices is not None and bool(devices.value)


def _of_launcher(options: Values, launch: Launch, given: Values) -> dict[str, Value]:
    """Return the options of a launch for its own launcher, which sets its variables and starts the ranks."""
    typed = given["env"].value if "env" in given else {}
    env = {**typed, **launch.typed, **dict(launch.launcher.env if launch.launcher else ())}
    kept = {name: value for name, value in options.items() if name not in ("tasks-per-node", "env")}
    return kept | {"env": Value(env, "")} if env else kept


def _shape(launch: Launch, given: Values, devices: Value | None) -> tuple[Value | None, Value | None]:
    """Return nodes and ranks per node, each None if the line leaves it to clusterrun."""
    nodes, total, ranks = launch.nodes, launch.total, launch.ranks or _ranks_of_gpus(launch, devices)
    if nodes is None and "nodes" not in given:
        per_node = (
            ranks or launch.gpus.get("gpus-per-node") or (None if launch.title.startswith("accelerate") else devices)
        )
        if total and per_node and per_node.value:
            nodes = _divided(total, per_node)
            ranks = ranks or Value(min(total.value, per_node.value), total.source)
        elif launch.one_node or total:
            nodes = Value(1, f"--nodes: default, because the {launch.title} command does not set it")
    if total and not ranks:
        ranks = _divided(total, nodes or given["nodes"])
    return nodes, ranks


def _ranks_of_gpus(launch: Launch, devices: Value | None) -> Value | None:
    """Return the ranks per node of ``--ntasks-per-gpu``. Raises RequestError without a number of GPUs."""
    each = launch.gpus.get("ranks-per-gpu")
    gpus = launch.gpus.get("gpus-per-node") or gpus_of(launch.options) or devices
    if each is None:
        return None
    if gpus is None:
        raise RequestError(f"{each.source} needs the number of GPUs per node", hint="add --gpus-per-node N before `--`")
    return Value(each.value * gpus.value, each.source)


def _divided(total: Value, by: Value) -> Value:
    if total.value % by.value and total.value > by.value:
        raise RequestError(
            f"{total.source}: {total.value} ranks are not a multiple of {by.value} ({by.source})",
            hint="use the same number of ranks on every node",
        )
    return Value(max(1, total.value // by.value), total.source)


def _slurm_gpus(launch: Launch, nodes: int, ranks: Value | None) -> Value | None:
    """Return the GPUs per node that a line asks for, or None. Raises RequestError if they do not divide."""
    if "gpus-per-node" in launch.gpus:
        return launch.gpus["gpus-per-node"]
    if total := launch.gpus.get("gpus"):
        if total.value % nodes:
            gpus = plural(total.value, "GPU")
            raise RequestError(f"{total.source}: {gpus} cannot be split evenly over {nodes} nodes")
        return Value(total.value // nodes, total.source)
    if one := launch.gpus.get("gpus-per-task"):
        return Value(one.value * (ranks.value if ranks else 1), one.source)
    return gpus_of({"gres": launch.options["gres"]}) if "gres" in launch.options else None


def _conflict(one: Value, other: Value) -> RequestError:
    return RequestError(
        f"{one.source} is {one.value}, but {other.source} is {other.value}", hint="give only one of the two"
    )
