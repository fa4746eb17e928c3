"""The options of clusterrun that a launcher's line amounts to, and the line that sets them. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELDS
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import Value, gres_gpus, typed_option
from clusterrun.submit.launcher_table import on_each_node
from clusterrun.submit.launchers import Launch, Place

Values = Mapping[str, Value]
_NO_GPUS = Value(0, "default")


class Around(NamedTuple):
    """What surrounds a launcher's line: the options, and where it was typed; ``notify`` gets lines for the user.

    ``given`` are the typed options and those of the job file, which the line must not contradict; ``below`` are those
    of the profiles.
    """

    given: Values
    below: Values
    place: Place
    notify: Callable[[str], None] = lambda line: None

    def value(self, name: str) -> Any:
        """Return the value of an option, None if it is not set."""
        value = self.given.get(name) or self.below.get(name)
        return None if value is None else value.value

    @property
    def nodes(self) -> int:
        return int(self.value("nodes") or 1)

    @property
    def gpus(self) -> Value | None:
        """The GPUs per node."""
        return gpus_of(self.given) or gpus_of(self.below)

    @property
    def typed_ranks(self) -> Value | None:
        """The ranks per node that are typed, one per GPU if only GPUs are."""
        gpus = gpus_of(self.given) or _NO_GPUS
        return self.given.get("tasks-per-node") or (gpus if gpus.value else None)


def job_options(launch: Launch, around: Around) -> dict[str, Value]:
    """Return the options that a launch sets. Raises RequestError if they contradict the given ones."""
    nodes, ranks = _shape(launch, around)
    count = nodes.value if nodes else around.nodes
    gpus = _slurm_gpus(launch, count, ranks, around)
    options = launch.options | _nodes_option(launch, nodes, around) | _gpu_options(launch, gpus)
    if ranks and around.typed_ranks:
        _refuse_difference(around.typed_ranks, ranks)
    elif ranks:
        options |= _rank_options(ranks, gpus, around)
    devices = gpus_of(options) or around.gpus
    ranks = ranks or around.typed_ranks or devices
    if launch.node_cpus:
        options["cpus-per-task"] = _share_of_rank(launch.node_cpus, ranks)
    env = launch.env | _shape_env(launch, count, devices, ranks)
    if env:
        options["env"] = Value(env, f"--env of {launch.title}")
    _refuse_conflicts(options, around.given)
    return options


def _nodes_option(launch: Launch, nodes: Value | None, around: Around) -> dict[str, Value]:
    """Return the option for the nodes of a line, unless they are a default that the options around it have already."""
    if nodes is None:
        return {}
    is_default = launch.nodes is None and nodes.value == around.nodes
    return {} if is_default else {"nodes": nodes}


def _share_of_rank(cpus: Value, ranks: Value | None) -> Value:
    """Return the cores of each rank, if all ranks of a node share these."""
    count = ranks.value if ranks else 1
    return Value(max(1, cpus.value // max(1, count)), cpus.source)


def _gpu_options(launch: Launch, gpus: Value | None) -> dict[str, Value]:
    """Return the option for the GPUs that a line asks Slurm for."""
    if gpus is None:
        return {}
    if launch.gpu_type and gpus.value:
        return {"gres": Value(f"gpu:{launch.gpu_type}:{gpus.value}", gpus.source)}
    return {} if "gres" in launch.options else {"gpus-per-node": gpus}


def _rank_options(ranks: Value, gpus: Value | None, around: Around) -> dict[str, Value]:
    """Return the options that give a node this many ranks: one GPU each, unless the line or a profile sets the GPUs."""
    options = {}
    devices = gpus or around.gpus
    if gpus is None and not _fit(ranks, devices):
        devices = options["gpus-per-node"] = ranks
    if devices is None or devices.value != ranks.value or "tasks-per-node" in around.below:
        options["tasks-per-node"] = ranks
    return options


def _fit(ranks: Value, devices: Value | None) -> bool:
    """Return whether ranks can run on these GPUs: there is one for each, or none for all."""
    return devices is not None and devices.value in (0, ranks.value)


def _shape_env(launch: Launch, nodes: int, devices: Value | None, ranks: Value | None) -> dict[str, str]:
    """Return the variables in which fabric passes the shape, and accelerate the CPU."""
    if launch.title == "fabric run":
        variables = {"LT_NUM_NODES": str(nodes)}
        if ranks:
            variables["LT_DEVICES"] = str(ranks.value or 1)
        return variables
    on_cpu = devices is not None and devices.value == 0
    if launch.title == "accelerate launch" and on_cpu:  # without it, each process trains alone
        return {"ACCELERATE_USE_CPU": "true"}
    return {}


def _refuse_conflicts(options: Values, given: Values) -> None:
    """Raise RequestError if an option of the line has another value than the typed one."""
    for name, value in options.items():
        if name not in given or name in ("sbatch-arg", "setup"):
            continue
        if name == "env":
            _refuse_other_variables(given[name], value)
        else:
            _refuse_difference(given[name], value)


def _refuse_other_variables(typed: Value, other: Value) -> None:
    for name, text in other.value.items():
        if typed.value.get(name, text) != text:
            raise _conflict(typed, other)


def _refuse_difference(typed: Value, other: Value) -> None:
    if typed.value != other.value:
        raise _conflict(typed, other)


def _conflict(typed: Value, other: Value) -> RequestError:
    return RequestError(
        f"{typed.source} is {typed.value}, but {other.source} is {other.value}", hint="give only one of the two"
    )


def _shape(launch: Launch, around: Around) -> tuple[Value | None, Value | None]:
    """Return nodes and ranks per node, each None if the line leaves it to clusterrun."""
    devices = around.typed_ranks or gpus_of(around.below)
    ranks = launch.ranks or _ranks_of_gpus(launch, devices)
    nodes = launch.nodes or around.given.get("nodes")
    if nodes is not None:
        if launch.total and not ranks:
            ranks = _divided(launch.total, nodes)
        return launch.nodes, ranks
    per_node = ranks or launch.gpus.get("gpus-per-node")
    if launch.title != "accelerate launch":  # its number of processes means one node
        per_node = per_node or devices
    return _shape_of_total(launch, ranks, per_node)


def _shape_of_total(launch: Launch, ranks: Value | None, per_node: Value | None) -> tuple[Value | None, Value | None]:
    """Return nodes and ranks per node of a line that sets no nodes; ``per_node`` is how many ranks fit on one."""
    total = launch.total
    if total and per_node and per_node.value:
        return _divided(total, per_node), ranks or Value(min(total.value, per_node.value), total.source)
    if total or launch.one_node:
        return Value(1, f"--nodes: default, because the {launch.title} command does not set it"), ranks or total
    return None, ranks


def _ranks_of_gpus(launch: Launch, devices: Value | None) -> Value | None:
    """Return the ranks per node of ``--ntasks-per-gpu``. Raises RequestError without a number of GPUs."""
    each = launch.gpus.get("ranks-per-gpu")
    if each is None:
        return None
    gpus = launch.gpus.get("gpus-per-node") or gpus_of(launch.options) or devices
    if gpus is None:
        raise RequestError(f"{each.source} needs the number of GPUs per node", hint="add --gpus-per-node N before `--`")
    return Value(each.value * gpus.value, each.source)


def _divided(total: Value, by: Value) -> Value:
    if total.value > by.value and total.value % by.value:
        raise RequestError(
            f"{total.source}: {total.value} ranks are not a multiple of {by.value} ({by.source})",
            hint="use the same number of ranks on every node",
        )
    return Value(max(1, total.value // by.value), total.source)


def _slurm_gpus(launch: Launch, nodes: int, ranks: Value | None, around: Around) -> Value | None:
    """Return the GPUs per node that a line asks for, or None. Raises RequestError if they do not divide."""
    if "gpus-per-node" in launch.gpus:
        return launch.gpus["gpus-per-node"]
    if "gpus" in launch.gpus:
        total = launch.gpus["gpus"]
        if total.value % nodes:
            gpus = plural(total.value, "GPU")
            raise RequestError(f"{total.source}: {gpus} cannot be split evenly over {nodes} nodes")
        return Value(total.value // nodes, total.source)
    if "gpus-per-task" in launch.gpus:
        each = launch.gpus["gpus-per-task"]
        return Value(each.value * (ranks.value if ranks else 1), each.source)
    asked = gpus_of({"gres": launch.options["gres"]}) if "gres" in launch.options else None
    if asked is None and launch.title in ("srun", "python") and around.gpus is None:
        return Value(0, f"--gres: {launch.title} without GPUs")
    return asked


def gpus_of(values: Values) -> Value | None:
    """Return the GPUs per node of ``--gpus-per-node`` or ``--gres``."""
    gres = values.get("gres")
    if gres is not None:
        count = gres_gpus(str(gres.value))
        if count is not None:
            return Value(count, gres.source)
    return values.get("gpus-per-node")


def format_line(options: Values, program: Sequence[str], quote: Callable[[str], str] = shlex.quote) -> str:
    """Return ``clusterrun submit OPTIONS -- PROGRAM`` as a line for the shell."""
    words = ["clusterrun submit", format_options(options, quote), "--", *map(quote, program)]
    return " ".join(filter(None, words))


def format_options(options: Values, quote: Callable[[str], str] = shlex.quote) -> str:
    """Return options as they are typed, in the order of ``FIELDS``."""
    in_order = [field.name for field in FIELDS if field.name in options]
    words: list[str] = []
    for name in dict.fromkeys([*in_order, *options]):
        words += typed_option(name, options[name].value, quote)
    return " ".join(words)


def one_gpu_each(launch: Launch) -> str:
    """Return the notice about ranks that saw one GPU each, and now see all of their node."""
    return (
        f"with {launch.sees_one_gpu}, each task sees one GPU, as device 0; here each rank sees all GPUs of its node,"
        " and must use that of its LOCAL_RANK"
    )


def refused_line(launch: Launch, options: Values, around: Around) -> str:
    """Return the line that runs a launch which cannot be translated; ``options`` are all."""
    kept = {**options, **{name: Value(value, "") for name, value in launch.instead.items()}}
    launcher = launch.instead.get("launcher")
    if launcher is not None:
        kept = _of_launcher(kept, launch, around.given)
    if launcher != "none":
        return format_line(kept, launch.program)
    around = around._replace(given=options)
    program = on_each_node(launch.line, around.nodes)
    if program is None:
        return f"{launch.title} starts the ranks of one node only: use --nodes 1, or a line that torchrun would start"
    if "tasks-per-node" in options and not (around.gpus or _NO_GPUS).value:
        kept["tasks-per-node"] = options["tasks-per-node"]
    return format_line(kept, program)


def _of_launcher(options: Values, launch: Launch, given: Values) -> dict[str, Value]:
    """Return the options of a launch for its own launcher, which sets its variables and starts the ranks."""
    kept = {name: value for name, value in options.items() if name not in ("tasks-per-node", "env")}
    env = dict(launch.typed)
    if "env" in given:
        env = given["env"].value | env
    if env:
        kept["env"] = Value(env, "")
    return kept
