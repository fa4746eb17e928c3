"""The options of clusterrun that a launcher's line amounts to, and the line that sets them. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterrun.base.errors import RequestError
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import FIELDS, Value, gres_gpus
from clusterrun.submit.launchers import Launch

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
    if gpus is not None and "gres" not in options:
        options["gpus-per-node"] = gpus
    devices = gpus or typed_gpus or profile_gpus
    if ranks is not None and typed_ranks is not None and typed_ranks.value != ranks.value:
        raise _conflict(typed_ranks, ranks)
    if ranks is not None and typed_ranks is None:
        if gpus is None and not (devices and devices.value in (0, ranks.value)):
            devices = options["gpus-per-node"] = ranks
        if devices is None or devices.value != ranks.value or "tasks-per-node" in below:
            options["tasks-per-node"] = ranks
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


def refused_line(launch: Launch, options: Values, given: Values) -> str:
    """Return the line that runs a launch which cannot be translated; ``options`` are all, ``given`` the typed ones."""
    launcher = launch.instead.get("launcher")
    kept = {**options, **{name: Value(value, "") for name, value in launch.instead.items()}}
    if launcher in ("accelerate", "none"):  # it sets its own variables, and starts the ranks
        env = {**(given["env"].value if "env" in given else {}), **launch.typed}
        kept = {name: value for name, value in kept.items() if name not in ("tasks-per-node", "env")}
        kept |= {"env": Value(env, "")} if env else {}
    line = format_line(kept, launch.line if launcher == "none" else launch.program)
    if launcher == "none" and options.get("nodes", _ONE).value != 1:
        variables = "$NODE_RANK, $MASTER_ADDR and $MASTER_PORT"
        line += f"   (on several nodes, the script must use {variables}; see docs/launchers.md)"
    return line


def _shape(launch: Launch, given: Values, devices: Value | None) -> tuple[Value | None, Value | None]:
    """Return nodes and ranks per node, each None if the line leaves it to clusterrun."""
    nodes, total, ranks = launch.nodes, launch.total, launch.ranks
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
