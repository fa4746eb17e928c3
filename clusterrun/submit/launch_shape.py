"""The options of clusterrun that a launcher's line amounts to, and the line that sets them. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import Value, gres_gpus, typed_option
from clusterrun.submit.launcher_table import on_each_node
from clusterrun.submit.launchers import Around, Launch, number

Values = Mapping[str, Value]


def job_options(launch: Launch, around: Around) -> dict[str, Value]:
    """Return the options that a launch sets. Raises RequestError if they contradict the given ones."""
    nodes, ranks = _shape(launch, around)
    count = number(nodes, around.nodes)
    gpus = _slurm_gpus(launch, count, ranks, around)
    options = launch.options | _nodes_option(launch, nodes, around) | _gpu_options(launch, gpus)
    if ranks:
        options |= _rank_options(ranks, gpus, around)
    devices = gpus_of(options) or gpus_around(around)
    ranks = ranks or _typed_ranks(around) or devices
    if launch.node_cpus:  # all ranks of a node share these
        each = launch.node_cpus.value // max(1, number(ranks))
        options["cpus-per-task"] = Value(max(1, each), launch.node_cpus.source)
    env = launch.env | _shape_env(launch, count, devices, ranks)
    if env:
        options["env"] = Value(env, f"--env of {launch.title}")
    _refuse_conflicts(options, around.given)
    return options


def gpus_around(around: Around) -> Value | None:
    """Return the GPUs per node that the options around a line set."""
    return gpus_of(around.given) or gpus_of(around.below)


def _typed_ranks(around: Around) -> Value | None:
    """Return the ranks per node that are typed, one per GPU if only GPUs are."""
    gpus = gpus_of(around.given)
    return around.given.get("tasks-per-node", gpus if number(gpus, 0) else None)


def _nodes_option(launch: Launch, nodes: Value | None, around: Around) -> dict[str, Value]:
    """Return the option for the nodes of a line, unless they are a default that the options around it have already."""
    if nodes is None or (launch.nodes is None and nodes.value == around.nodes):
        return {}
    return {"nodes": nodes}


def _gpu_options(launch: Launch, gpus: Value | None) -> dict[str, Value]:
    """Return the option for the GPUs that a line asks Slurm for."""
    if gpus is None:
        return {}
    if launch.gpu_type and gpus.value:
        return {"gres": Value(f"gpu:{launch.gpu_type}:{gpus.value}", gpus.source)}
    return {} if "gres" in launch.options else {"gpus-per-node": gpus}


def _rank_options(ranks: Value, gpus: Value | None, around: Around) -> dict[str, Value]:
    """Return the options that give a node this many ranks: one GPU each, unless the line or a profile sets the GPUs.

    Raises RequestError if another number is typed.
    """
    options: dict[str, Value] = {}
    typed = _typed_ranks(around)
    if typed:
        _refuse_difference(typed, ranks)
        return options
    devices = number(gpus or gpus_around(around), -1)
    if gpus is None and devices not in (0, ranks.value):  # there must be one for each, or none for all
        options["gpus-per-node"], devices = ranks, ranks.value
    if devices != ranks.value or "tasks-per-node" in around.below:
        options["tasks-per-node"] = ranks
    return options


def _shape_env(launch: Launch, nodes: int, devices: Value | None, ranks: Value | None) -> dict[str, str]:
    """Return the variables in which fabric passes the shape, and accelerate the CPU."""
    variables = {}
    if launch.title == "fabric run":
        variables["LT_NUM_NODES"] = str(nodes)
        if ranks:
            variables["LT_DEVICES"] = str(ranks.value or 1)
    elif launch.title == "accelerate launch" and number(devices) == 0:  # without it, each process trains alone
        variables["ACCELERATE_USE_CPU"] = "true"
    return variables


def _refuse_conflicts(options: Values, given: Values) -> None:
    """Raise RequestError if an option of the line has another value than the typed one."""
    for name, value in options.items():
        if name not in ("sbatch-arg", "setup"):
            _refuse_difference(given.get(name, value), value)


def _refuse_difference(typed: Value, other: Value) -> None:
    """Raise RequestError for two values of an option, or of a variable in both."""
    differs = typed.value != other.value
    if isinstance(typed.value, Mapping):
        differs = {**other.value, **typed.value} != {**typed.value, **other.value}
    if differs:
        message = f"{typed.source} is {typed.value}, but {other.source} is {other.value}"
        raise RequestError(message, hint="give only one of the two")


def _shape(launch: Launch, around: Around) -> tuple[Value | None, Value | None]:
    """Return nodes and ranks per node, each None if the line leaves it to clusterrun."""
    devices = _typed_ranks(around) or gpus_of(around.below)
    ranks = launch.ranks or _ranks_of_gpus(launch, devices)
    if launch.title == "accelerate launch":  # its number of processes means one node
        devices = None
    nodes = launch.nodes or around.given.get("nodes")
    if nodes is None:
        return _shape_of_total(launch, ranks, ranks or launch.gpus.get("gpus-per-node", devices))
    if launch.total and not ranks:
        ranks = _divided(launch.total, nodes)
    return launch.nodes, ranks


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
    each = max(1, min(total.value, by.value))
    if total.value % each:
        raise RequestError(
            f"{total.source}: {total.value} ranks are not a multiple of {by.value} ({by.source})",
            hint="use the same number of ranks on every node",
        )
    return Value(total.value // each, total.source)


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
        return Value(each.value * number(ranks), each.source)
    asked = gpus_of(launch.options)
    if asked is None and launch.title in ("srun", "python") and gpus_around(around) is None:
        return Value(0, f"--gres: {launch.title} without GPUs")
    return asked


def gpus_of(values: Values) -> Value | None:
    """Return the GPUs per node of ``--gpus-per-node`` or ``--gres``."""
    gres = values.get("gres", Value("", ""))
    count = gres_gpus(str(gres.value))
    return values.get("gpus-per-node") if count is None else Value(count, gres.source)


def format_line(options: Values, program: Sequence[str], quote: Callable[[str], str] = shlex.quote) -> str:
    """Return ``clusterrun submit OPTIONS -- PROGRAM`` as a line for the shell."""
    words = ["clusterrun submit", format_options(options, quote), "--", *map(quote, program)]
    return " ".join(filter(None, words))


def format_options(options: Values, quote: Callable[[str], str] = shlex.quote) -> str:
    """Return options as they are typed, in the order of ``FIELDS``."""
    words: list[str] = []
    for name in sorted(options, key=list(FIELD).index):
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
    kept = {**options, **launch.alternative}
    launcher = launch.instead.get("launcher")
    if launcher is not None:
        kept = _of_launcher(kept, launch, around.given)
    if launcher != "none":
        return format_line(kept, launch.program)
    around = around._replace(given=options)
    program = on_each_node(launch.line, around.nodes)
    if program is None:
        return of_one_node(launch.title)
    if "tasks-per-node" in options and not number(gpus_around(around), 0):
        kept["tasks-per-node"] = options["tasks-per-node"]
    return format_line(kept, program)


def of_one_node(title: str) -> str:
    """Return the hint for a launcher that cannot make the ranks of several nodes one group."""
    return f"{title} starts the ranks of one node only: use --nodes 1, or a line that torchrun would start"


def _of_launcher(options: Values, launch: Launch, given: Values) -> dict[str, Value]:
    """Return the options of a launch for its own launcher, which sets its variables and starts the ranks."""
    kept = {name: value for name, value in options.items() if name not in ("tasks-per-node", "env")}
    env = given.get("env", Value({}, "")).value | launch.typed
    if env:
        kept["env"] = Value(env, "")
    return kept
