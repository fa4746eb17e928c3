"""Parse the line of another launcher (torchrun, accelerate launch, srun …) into what it asks for.

``find_launch`` is pure but for the files that a line names: an accelerate configuration, and the script's source.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import FIELD, Value, is_own_variable
from clusterrun.submit import accelerate_yaml
from clusterrun.submit.job_python import JobPython
from clusterrun.submit.launcher_options import LAUNCHERS, Launcher, Typed, parse_options
from clusterrun.submit.python_line import as_variables, split_python
from clusterrun.submit.script_source import local_rank_option, mpi_name, refuses_option, source_of

_PREFIXES = ("env", "nohup", "time", "exec")
#: Numbers of ranks that mean the devices of the node: clusterrun's own number is used.
_AUTOMATIC = ("gpu", "auto", "cpu", "xpu", "-1", "")
_DEVICES = "CUDA_VISIBLE_DEVICES"
#: Variables with which people tell a program to start torchrun: it must run once per node.
STARTER_VARIABLES = {"FORCE_TORCHRUN", "NNODES", "NPROC_PER_NODE"}
#: Those that --launcher none sets.
STARTER_NUMBERS = {"NNODES", "NPROC_PER_NODE"}
#: Options of accelerate that may stand beside a configuration that only accelerate can use.
_BESIDE_CONFIG = {"config-file", "module", "multi-gpu", "num-machines", "num-processes", "machine-rank",
                  "main-process-ip", "main-process-port", "same-network", "rdzv-backend"}  # fmt: skip


@dataclass(slots=True)
class Launch:
    """What a launcher's line asks for; ``program`` is what each rank runs.

    ``nodes``, ``ranks`` (per node) and ``total`` are None if the line leaves them open; ``one_node`` is whether it then
    means one node. ``gpus`` holds Slurm's GPU options, ``gpu_type`` their type, and ``node_cpus`` the cores of each
    node for the ranks that a launcher starts in srun's tasks. ``own`` are the names of what clusterrun replaces,
    ``line`` all its words, ``typed`` the variables before it. ``launcher`` is its row of the table, None for a program
    of the user's own; ``own_ranks`` is whether only the program can start its ranks.
    ``refusal`` is the reason why the line cannot be translated, and ``instead`` the options that can run it.
    """

    title: str
    program: list[str] = field(default_factory=list)
    nodes: Value | None = None
    ranks: Value | None = None
    total: Value | None = None
    gpus: dict[str, Value] = field(default_factory=dict)
    gpu_type: str = ""
    node_cpus: Value | None = None
    one_node: bool = True
    options: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    launcher: Launcher | None = None
    own_ranks: bool = False
    warning: str = ""
    refusal: str = ""
    instead: dict[str, Any] = field(default_factory=dict)

    def refuse(self, reason: str, **instead: Any) -> None:
        """Record why the line cannot be translated, and the options that can run it; the first reason counts."""
        if not self.refusal:
            self.refusal, self.instead = reason, {name.replace("_", "-"): value for name, value in instead.items()}

    @property
    def sees_one_gpu(self) -> str:
        """The option with which each rank would see only its own GPU, if the line has one."""
        one = self.gpus.get("gpus-per-task") or self.gpus.get("ranks-per-gpu")
        return one.source if one is not None and one.value == 1 else ""


class Place(NamedTuple):
    """The folder and the environment that a line was typed in, and the job's Python."""

    cwd: Path
    environ: Mapping[str, str]
    python: JobPython = JobPython(sys.executable)


def launcher_of(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the launcher that a command starts, and the words after its name; None if it starts none."""
    rest = split_python(words)[1]
    if not rest or rest[0].endswith(".py") or rest[0].startswith(("./", "../")):  # the user's own program
        return None
    rest = rest[1:] if rest[0] == "-m" else [Path(rest[0]).name, *rest[1:]]
    for title, launcher in LAUNCHERS.items():
        for start in launcher.starts:
            if rest[: start.count(" ") + 1] == start.split():
                return title, rest[start.count(" ") + 1 :]
    return None


def variables_before(words: Sequence[str]) -> dict[str, str]:
    """Return the variables before a launcher or program that are not clusterrun's own: ``NCCL_DEBUG=INFO torchrun``."""
    pairs = [word.partition("=") for word in words[: prefix_length(words)] if "=" in word]
    return {name: text for name, _, text in pairs if name != _DEVICES and not is_own_variable(name)}


def prefix_length(words: Sequence[str]) -> int:
    """Return the number of words before a launcher's name: ``NCCL_DEBUG=INFO nohup torchrun`` has 2.

    A prefix with options of its own (``env -i torchrun``) is a program.
    """
    start = 0
    while start < len(words) and (_is_prefix(words, start) or re.match(r"[A-Za-z_]\w*=", words[start], re.ASCII)):
        start += 1
    return start


def _is_prefix(words: Sequence[str], at: int) -> bool:
    return words[at] in _PREFIXES and not any(word.startswith("-") for word in words[at + 1 : at + 2])


def find_launch(words: Sequence[str], place: Place, outer: Launch | None = None) -> Launch | None:
    """Return what a command asks of its launcher, or None if it does not start with one.

    Variables before it (``NCCL_DEBUG=INFO torchrun …``) belong to it, and ``outer`` is the launch that it is in. Raises
    RequestError for an option that the launcher does not have, and for commands that start no training.
    """
    start = prefix_length(words)
    named = launcher_of(words[start:])
    if named is None:
        _refuse_other_commands(words[start:])
    variables = variables_before(words)
    if named is not None:
        launch = parse_launch(*named, place)
    elif words[start:] and STARTER_VARIABLES & variables.keys():
        launch = _own_launch(words[start], words[start + 1 :])
    else:
        return None
    launch.line, launch.typed = list(words[start:]), variables
    _add_variables(launch, words[:start])
    if launch.own_ranks:
        launch.nodes = _take_number(launch, "NNODES") or launch.nodes
        launch.ranks = _take_number(launch, "NPROC_PER_NODE") or launch.ranks
    if outer is not None:
        launch = combine(outer, launch)
    inner = None if launch.own_ranks else find_launch(launch.program, place, launch)
    return inner or launch


def _refuse_other_commands(words: Sequence[str]) -> None:
    """Raise RequestError for commands of launchers that start no ranks here."""
    if tuple(words[:3]) == ("ray", "job", "submit"):
        message = "`ray job submit` hands the program to a Ray cluster; each rank would do so"
        raise RequestError(message, hint=f"run this command without clusterrun: {shlex.join(words)}")
    if not words or Path(words[0]).name != "accelerate" or words[0].startswith(("./", "../")):
        return
    hint = f"run this command without clusterrun: {shlex.join(words)}"
    if [*words[1:2]] == ["config"]:
        hint = (
            "to write the accelerate configuration without prompts, run: clusterrun render --gpus-per-node 4"
            " --accelerate-config"
        )
    raise RequestError(f"`{' '.join(words[:2])}` does not start a training run", hint=hint)


def _add_variables(launch: Launch, before: Sequence[str]) -> None:
    """Add the variables before a launcher: some are clusterrun's own, and some are all that the line says."""
    launch.env |= launch.typed
    assigned = dict(word.split("=", 1) for word in before if "=" in word)
    launch.own += [name for name in assigned if name == _DEVICES or is_own_variable(name)]
    if _DEVICES in assigned and not launch.ranks and not launch.total:  # their number may be all that the line says
        launch.ranks = Value(len(assigned[_DEVICES].split(",")), f"--gpus-per-node from {_DEVICES}")


def _take_number(launch: Launch, name: str) -> Value | None:
    """Take a variable that ``--launcher none`` sets out of the launch; return its number, None if it has none."""
    text = launch.typed.pop(name, "")
    launch.env.pop(name, None)
    return Value(int(text), f"--{name} before {launch.title}") if text.isdecimal() and int(text) else None


def _own_launch(title: str, program: Sequence[str]) -> Launch:
    """Return the launch of a program that starts its own ranks."""
    launch = Launch(title, list(program) or [title], one_node=False, own_ranks=True)
    launch.refuse(f"{title} starts the ranks of a node itself", launcher="none")
    return launch


def parse_launch(title: str, words: Sequence[str], place: Place) -> Launch:
    """Parse the words after a launcher's name."""
    launcher = LAUNCHERS[title]
    table = launcher.table
    typed, program = parse_options(title, table, words) if table.options else ([], list(words))
    launch = _own_launch(title, program) if launcher.own else Launch(title, program)
    launch.launcher = launcher
    if title in ("srun", "mpirun", "horovodrun"):
        python, launch.program = split_python(program)
        variables, others = as_variables(python)
        launch.env |= variables
        launch.own += others
    launch.one_node = launch.one_node and title not in ("srun", "#SBATCH")
    names = {one.option.name for one in typed}
    config = ""
    if title == "accelerate launch":
        added, config = accelerate_yaml.defaults(typed, table, place.cwd, place.python, place.environ)
        typed += added
    if any(one.option.kind == "module" for one in typed) and program:
        launch.program = ["-m", *program]
    for option in typed:  # `why` repeats options whose source starts with two hyphens
        long = option.spelled.lstrip("-") if len(option.spelled.lstrip("-")) > 1 else option.option.name
        _apply(launch, option, f"--{long} of {title}")
    if not program:
        return launch
    if launch.instead.get("launcher") == "accelerate" and config and names <= _BESIDE_CONFIG:
        launch.instead["accelerate-config"] = config
    elif launch.instead.get("launcher") == "accelerate":  # other options beside a file have no place in it
        launch.instead["launcher"] = "none"
    if title == "torch.distributed.launch" and "use-env" not in names:
        source = source_of(launch.program, place.cwd)
        local_rank = local_rank_option(source) or "--local-rank"
        if refuses_option(source, local_rank):
            launch.warning = f"{program[0]} declares no {local_rank}, which {title} adds; with --use-env it does not"
        add_local_rank(launch.program, local_rank)
    elif title == "deepspeed" and "no-local-rank" not in names:
        add_local_rank(launch.program, "--local_rank")
    elif title == "fabric run":
        launch.env["LT_CLI_USED"] = "1"
    elif title in ("mpirun", "horovodrun") and (name := mpi_name(source_of(launch.program, place.cwd))):
        script = launch.program[1 if launch.program[0] == "-m" else 0]
        launch.refuse(f"{script} uses {name}, so {title} must start the ranks", launcher="none")
    return launch


def add_local_rank(program: list[str], option: str) -> None:
    """Insert ``OPTION={local_rank}``, which the worker fills in, before a script's arguments."""
    program.insert(2 if program[:1] == ["-m"] else 1, f"{option}={{local_rank}}")


def combine(outer: Launch, inner: Launch) -> Launch:
    """Return the launch of a launcher inside another (``srun … torchrun …``, or #SBATCH lines and a command)."""
    if outer.nodes and inner.nodes and outer.nodes.value != inner.nodes.value:
        raise RequestError(
            f"{outer.nodes.source} is {outer.nodes.value}, but {inner.nodes.source} is {inner.nodes.value}",
            hint="set the number of nodes in only one place, or use the same number in both",
        )
    inner.nodes, inner.one_node = outer.nodes or inner.nodes, inner.one_node and outer.one_node
    options = dict(outer.options)
    if inner.title == "srun":  # it inherits the tasks of #SBATCH lines
        inner.total = inner.total or (None if inner.ranks else outer.total)
        inner.ranks = inner.ranks or outer.ranks
    else:
        _share_task(outer, inner, options)
    inner.gpus, inner.own = outer.gpus | inner.gpus, [*outer.own, *inner.own]
    inner.gpu_type = inner.gpu_type or outer.gpu_type
    inner.env, inner.typed = outer.env | inner.env, outer.env | inner.typed
    inner.options = join_options(options, inner.options)
    if outer.refusal:
        inner.refusal, inner.instead, inner.line = outer.refusal, outer.instead, outer.line
    if outer.title != "#SBATCH":
        inner.title = f"{outer.title} {inner.title}"
    return inner


def _share_task(outer: Launch, inner: Launch, options: dict[str, Value]) -> None:
    """Give the ranks that a launcher starts in a task of Slurm what the task has: its GPUs and its cores."""
    tasks = _tasks_per_node(outer)
    if tasks != 1 and outer.title != "#SBATCH":
        inner.refuse(f"this {outer.title} command starts more than one {inner.title} per node")
    if (gpus := outer.gpus.pop("gpus-per-task", None)) is not None:
        outer.gpus.setdefault("gpus-per-node", Value(int(gpus.value * max(1, tasks)), gpus.source))
    if (cpus := options.pop("cpus-per-task", None)) is not None and isinstance(cpus.value, int):
        inner.node_cpus = Value(int(cpus.value * max(1, tasks)), cpus.source)
    elif cpus is not None:
        options["cpus-per-task"] = cpus
    inner.node_cpus = inner.node_cpus or outer.node_cpus


def _tasks_per_node(launch: Launch) -> float:
    if launch.ranks:
        return float(launch.ranks.value)
    return launch.total.value / (launch.nodes.value if launch.nodes else 1) if launch.total else 1.0


def join_options(upper: Mapping[str, Value], lower: Mapping[str, Value]) -> dict[str, Value]:
    """Return the options of two lines; the lower ones win, but variables and arguments of sbatch of both are kept."""
    joined = {**upper, **lower}
    for name in {"env", "sbatch-arg"} & upper.keys() & lower.keys():
        one, other = upper[name].value, lower[name].value
        both = {**one, **other} if name == "env" else list(dict.fromkeys([*one, *other]))
        joined[name] = Value(both, upper[name].source)
    return joined


def _apply(launch: Launch, one: Typed, source: str) -> None:
    """Add a typed option to the launch; ``source`` names it in messages."""
    kind, name, value = one.option.kind, one.option.name, one.value
    match kind:
        case "nodes" | "ranks" | "total":
            launch.one_node = launch.one_node and kind != "nodes"
            if value == "cpu":
                launch.gpus["gpus-per-node"] = Value(0, source)
            setattr(launch, kind, _count(launch, value, source))
        case "env":
            _apply_env(launch, one.option.target, value or "True", source)
        case "cpu":
            launch.gpus["gpus-per-node"] = Value(0, source)
            launch.env["ACCELERATE_USE_CPU"] = "true"
        case "own":
            launch.own.append(one.spelled)
        case "hosts" | "hostfile":  # which hosts is the scheduler's choice
            launch.own.append(one.spelled)
            launch.one_node = False
            if kind == "hosts":
                launch.nodes = Value(len({host.partition(":")[0] for host in value.split(",")}), source)
        case "include" if re.fullmatch(r"localhost:\d+(,\d+)*", value):
            launch.own.append(one.spelled)
            launch.nodes, launch.ranks = Value(1, source), Value(value.count(",") + 1, source)
        case "output" if value != one.option.target:
            launch.refuse(f"{source} is not supported; `clusterrun logs JOBID --rank N` shows the output of one rank")
        case "unsupported":
            launch.refuse(f"{source} is not supported")
        case "torchrun" | "accelerate" | "none" | "include" if value != (one.option.target or None):
            launch.refuse(f"{source} is not supported", launcher="none" if kind == "include" else kind)
            if name == "max-restarts" and value.isdigit():
                launch.instead.setdefault("max-restarts", int(value))
        case _:
            _apply_slurm(launch, one, source)


def _apply_slurm(launch: Launch, one: Typed, source: str) -> None:
    """Add an option of Slurm or of mpirun that others do not have."""
    kind, name, value = one.option.kind, one.option.name, one.value
    match kind:
        case "mpi-env" | "export":  # NAME alone exports the shell's value, as sbatch does by itself
            launch.own += [one.spelled] if kind == "export" and value.startswith("NONE") else []
            parts = value.split(",") if kind == "export" else [value]
            launch.env |= {part.partition("=")[0]: part.partition("=")[2] for part in parts if "=" in part}
        case "field":
            kind = FIELD[name].kind
            read = int(value) if kind == "int" and value.isdigit() else [value] if kind == "list" else value
            launch.options[name] = Value(read, source)
        case "gres" if not re.fullmatch(r"gpu(:[^:,]+)?(:\d+)?", value, re.ASCII):
            launch.options["gres"] = Value(value, source)
        case "gres" | "gpus-per-node" | "gpus" | "gpus-per-task":
            _apply_gpus(launch, kind, value.removeprefix("gpu").removeprefix(":") if kind == "gres" else value, source)
        case "ranks-per-gpu":
            launch.gpus[kind] = Value(int(value) if value.isdecimal() else 1, source)
        case "jobid" if "$" not in value:
            launch.refuse(f"{source} is not supported: each run is a job of its own")
        case "jobid":
            launch.own.append(one.spelled)
        case "requeue":
            launch.options["requeue"] = Value(name == "requeue", source)
        case "sbatch":
            before = launch.options["sbatch-arg"].value if "sbatch-arg" in launch.options else []
            added = [f"--{name}={value}"] if value else [f"--{name}"] if one.option.values <= 0 else []
            if before or added:
                launch.options["sbatch-arg"] = Value([*before, *added], "--sbatch-arg")
        case "folder" if value != ".":
            launch.refuse(f"{source}: the job runs in the folder that it is submitted from; cd to {value} first")


def _apply_gpus(launch: Launch, kind: str, text: str, source: str) -> None:
    """Add a number of GPUs, with or without their type: ``4``, ``a100:4``, or ``h100-96`` for one."""
    if "," in text:
        launch.refuse(f"{source}: {text} has several types of GPU; --gres can ask for them")
        return
    kind = "gpus-per-node" if kind == "gres" else kind
    gpu_type, _, count = text.rpartition(":")
    if not gpu_type and not re.fullmatch(r"[0-9$].*|", text):
        gpu_type, count = text, "1"
    launch.gpu_type = gpu_type or launch.gpu_type
    number = Value(0, source) if count == "0" else _count(launch, count or "1", source)
    if number:
        launch.gpus[kind] = number


def _count(launch: Launch, text: str, source: str) -> Value | None:
    """Return a number of nodes or ranks; None for ``gpu``, ``auto`` or a shell variable."""
    if "$" in text or text in _AUTOMATIC:
        return None
    if re.fullmatch(r"\d+(,\d+)+", text, re.ASCII):  # fabric run --devices 0,1
        return Value(text.count(",") + 1, source)
    low, _, high = text.replace("-", ":").partition(":")
    if not re.fullmatch(r"[1-9][0-9]{0,5}", low, re.ASCII):
        raise RequestError(f"{source}: not a number: {text!r}")
    if high not in ("", low):
        launch.refuse(f"{source}: {text} is a range; a fixed number is required", nodes=int(low))
    return Value(int(low), source)


def _apply_env(launch: Launch, name: str, value: str, source: str) -> None:
    """Set a variable that the launcher would set, unless its value needs the launcher itself."""
    if (name, value) == ("ACCELERATE_MIXED_PRECISION", "fp8"):
        launch.refuse(f"{source}: fp8 is not supported", launcher="accelerate")
    elif (name, value) == ("LT_STRATEGY", "dp"):
        launch.refuse(f"{source}: dp is not supported, because it uses a single process for all GPUs", launcher="none")
    elif (name, value) == ("LT_ACCELERATOR", "cpu"):
        launch.gpus["gpus-per-node"] = Value(0, source)
    launch.env[name] = value.upper() if name == "ACCELERATE_DYNAMO_BACKEND" else value
