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
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.jobspec.fields import FIELD, Value, is_own_variable
from clusterrun.submit import accelerate_yaml
from clusterrun.submit.launcher_options import (
    ACCELERATE,
    DEEPSPEED,
    FABRIC,
    MPI,
    SBATCH,
    SRUN,
    TORCHRUN,
    Table,
    Typed,
    parse_options,
)
from clusterrun.submit.script_source import local_rank_option, mpi_name, source_of

#: Each launcher's options, and the words that start it, as a program or after -m.
LAUNCHERS: dict[str, tuple[Table, tuple[str, ...]]] = {
    "torchrun": (TORCHRUN, ("torchrun", "torch.distributed.run")),
    "torch.distributed.launch": (TORCHRUN, ("torch.distributed.launch",)),
    "accelerate launch": (ACCELERATE, ("accelerate launch", "accelerate-launch", "accelerate.commands.launch",
                                       "accelerate.commands.accelerate_cli launch")),
    "deepspeed": (DEEPSPEED, ("deepspeed", "deepspeed.launcher.runner")),
    "fabric run": (FABRIC, ("fabric run model", "fabric run", "lightning run model")),
    "srun": (SRUN, ("srun",)),
    "mpirun": (MPI, ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")),
    "horovodrun": (MPI, ("horovodrun",)),
    "#SBATCH": (SBATCH, ()),
}  # fmt: skip
_PREFIXES = ("env", "nohup", "time", "exec")
#: Numbers of ranks that mean the devices of the node: clusterrun's own number is used.
_AUTOMATIC = ("gpu", "auto", "cpu", "xpu", "-1", "")
DEVICES = "CUDA_VISIBLE_DEVICES"
LOCAL_RANK = "{local_rank}"
"""The worker replaces this in a script's arguments by the rank on the node."""


@dataclass(slots=True)
class Launch:
    """What a launcher's line asks for; ``program`` is what each rank runs.

    ``nodes``, ``ranks`` (per node) and ``total`` are None if the line leaves them open; ``one_node`` is whether it then
    means one node. ``gpus`` holds Slurm's GPU options, ``own`` the names of what clusterrun replaces, ``line`` all its
    words, ``variables`` what was typed before it. ``refusal`` is the reason why the line cannot be translated,
    ``instead`` the options that can run it, and ``folder`` a command before it.
    """

    title: str
    program: list[str] = field(default_factory=list)
    nodes: Value | None = None
    ranks: Value | None = None
    total: Value | None = None
    gpus: dict[str, Value] = field(default_factory=dict)
    cpu: Value | None = None
    one_node: bool = True
    options: dict[str, Value] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    refusal: str = ""
    instead: dict[str, Any] = field(default_factory=dict)
    folder: str = ""

    def set_env(self, name: str, text: str, source: str) -> None:
        """Add a variable of the job."""
        before = self.options.get("env", Value({}, source))
        self.options["env"] = Value(before.value | {name: text}, before.source)

    def refuse(self, reason: str, **instead: Any) -> None:
        """Record why the line cannot be translated, and the options that can run it; the first reason counts."""
        if not self.refusal:
            self.refusal, self.instead = reason, {name.replace("_", "-"): value for name, value in instead.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """The folder and the environment that a line was typed in, and the job's Python."""

    cwd: Path
    environ: Mapping[str, str]
    python: str = sys.executable


def without_python(words: Sequence[str]) -> list[str]:
    """Return a command without a leading ``python``, ``python -u`` and the like."""
    rest = list(words[1:]) if words and re.fullmatch(r"python[0-9.]*", Path(words[0]).name) else list(words)
    while len(rest) < len(words) and rest and rest[0] in ("-u", "-B", "-s"):
        rest = rest[1:]
    return rest


def launcher_of(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the launcher that a command starts, and the words after its name; None if it starts none."""
    rest = without_python(words)
    if not rest or rest[0].endswith(".py") or rest[0].startswith(("./", "../")):  # the user's own program
        return None
    rest = rest[1:] if rest[0] == "-m" else [Path(rest[0]).name, *rest[1:]]
    for title, (_, starts) in LAUNCHERS.items():
        for start in starts:
            if rest[: start.count(" ") + 1] == start.split():
                return title, rest[start.count(" ") + 1 :]
    return None


def variables_before(words: Sequence[str]) -> dict[str, str]:
    """Return the variables before a launcher or program that are not clusterrun's own: ``NCCL_DEBUG=INFO torchrun``."""
    pairs = [word.partition("=") for word in words[: prefix_length(words)] if "=" in word]
    return {name: text for name, _, text in pairs if name != DEVICES and not is_own_variable(name)}


def prefix_length(words: Sequence[str]) -> int:
    """Return the number of words before a launcher's name: ``NCCL_DEBUG=INFO nohup torchrun`` has 2."""
    start = 0
    while start < len(words) and (words[start] in _PREFIXES or re.match(r"[A-Za-z_]\w*=", words[start], re.ASCII)):
        start += 1
    return start


def find_launch(words: Sequence[str], place: Place) -> Launch | None:
    """Return what a command asks of its launcher, or None if it does not start with one.

    Variables before it (``NCCL_DEBUG=INFO torchrun …``) belong to it. Raises RequestError for an option that the
    launcher does not have, and for accelerate's other commands.
    """
    start = prefix_length(words)
    named = launcher_of(words[start:])
    if named is None:
        if words and Path(words[0]).name == "accelerate" and not words[0].startswith(("./", "../")):
            hint = f"run it without clusterrun: {shlex.join(words)}"
            if words[1:2] == ["config"]:
                hint = "for a file without questions: clusterrun render --gpus-per-node 4 --accelerate-config"
            raise RequestError(f"{' '.join(words[:2])} trains nothing", hint=hint)
        return None
    launch = parse_launch(*named, place)
    launch.line = list(words[start:])
    launch.variables = variables_before(words)
    for name, _, text in (word.partition("=") for word in words[:start] if "=" in word):
        if name == DEVICES:  # the scheduler chooses the devices; their number may be all the line says
            launch.own.append(name)
            if not launch.ranks and not launch.total:
                launch.ranks = Value(len(text.split(",")), f"--gpus-per-node from {name}")
        elif is_own_variable(name):
            launch.own.append(name)
        else:
            launch.set_env(name, text, f"--env before {launch.title}")
    inner = find_launch(launch.program, place)
    return combine(launch, inner) if inner is not None else launch


def parse_launch(title: str, words: Sequence[str], place: Place) -> Launch:
    """Parse the words after a launcher's name."""
    typed, program = parse_options(title, LAUNCHERS[title][0], words)
    launch = Launch(title, without_python(program) if title in ("srun", "mpirun", "horovodrun") else program)
    launch.one_node = title not in ("srun", "#SBATCH")
    names = {one.option.name for one in typed}
    config = ""
    if title == "accelerate launch":
        added, config = accelerate_yaml.defaults(typed, ACCELERATE, place.cwd, place.python, place.environ)
        typed += added
    if "module" in names and program:
        launch.program = ["-m", *program]
    for option in typed:  # `why` repeats options whose source starts with two hyphens
        long = option.spelled.lstrip("-") if len(option.spelled.lstrip("-")) > 1 else option.option.name
        _apply(launch, option, f"--{long} of {title}")
    if not program:
        return launch
    if launch.instead.get("launcher") == "accelerate":
        beside = names - {"config-file", "module", "multi-gpu", "num-machines", "num-processes", "machine-rank",
                          "main-process-ip", "main-process-port", "same-network", "rdzv-backend"}  # fmt: skip
        if config and not beside:
            launch.instead["accelerate-config"] = config
        else:  # other options beside a file have no place in it
            launch.instead["launcher"] = "none"
    if title == "torch.distributed.launch" and "use-env" not in names:
        add_local_rank(launch.program, local_rank_option(source_of(launch.program, place.cwd)) or "--local-rank")
    elif title == "deepspeed" and "no-local-rank" not in names:
        add_local_rank(launch.program, "--local_rank")
    elif title == "fabric run":
        launch.set_env("LT_CLI_USED", "1", f"--env of {title}")
    elif title in ("mpirun", "horovodrun") and (name := mpi_name(source_of(launch.program, place.cwd))):
        launch.refuse(f"{launch.program[0]} uses {name}, which needs {title}", launcher="none")
    return launch


def add_local_rank(program: list[str], option: str) -> None:
    """Insert ``OPTION={local_rank}`` before a script's arguments, as torch.distributed.launch does."""
    program.insert(2 if program[:1] == ["-m"] else 1, f"{option}={LOCAL_RANK}")


def combine(outer: Launch, inner: Launch) -> Launch:
    """Return the launch of a launcher inside another (``srun … torchrun …``, or #SBATCH lines and a command)."""
    if outer.nodes and inner.nodes and outer.nodes.value != inner.nodes.value:
        raise RequestError(
            f"{outer.nodes.source} is {outer.nodes.value}, but {inner.nodes.source} is {inner.nodes.value}",
            hint="set the same number of nodes in both places, or leave one out",
        )
    nodes = outer.nodes or inner.nodes
    if inner.title == "srun":  # it inherits the tasks of #SBATCH lines
        inner.total = inner.total or (None if inner.ranks else outer.total)
        inner.ranks = inner.ranks or outer.ranks
    elif outer.title != "#SBATCH":
        tasks = outer.ranks.value if outer.ranks else 1
        if outer.total and not outer.ranks:
            tasks = outer.total.value / (nodes.value if nodes else 1)
        if tasks != 1:
            inner.refuse(f"{outer.title} starts more than one {inner.title} per node")
        inner.title = f"{outer.title} {inner.title}"
    inner.nodes, inner.one_node = nodes, inner.one_node and outer.one_node
    inner.gpus, inner.own = outer.gpus | inner.gpus, [*outer.own, *inner.own]
    inner.line = outer.line if outer.refusal else inner.line
    if "env" in outer.options:  # of --export too
        inner.variables = outer.options["env"].value | inner.variables
    if outer.refusal:
        inner.refusal, inner.instead, inner.folder = outer.refusal, outer.instead, outer.folder
    inner.options = join_options(outer.options, inner.options)
    return inner


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
    if kind in ("nodes", "ranks", "total"):
        launch.one_node = launch.one_node and kind != "nodes"
        launch.cpu = Value(0, source) if (kind, value) == ("ranks", "cpu") else launch.cpu
        setattr(launch, kind, _count(launch, value, source))
    elif kind == "env":
        _apply_env(launch, one, source)
    elif kind == "cpu":
        launch.cpu = Value(0, source)
        launch.set_env("ACCELERATE_USE_CPU", "true", source)
    elif kind in ("own", "hosts", "hostfile", "map-by", "include"):
        launch.own.append(one.spelled)
        _apply_hosts(launch, kind, value, source)
    elif kind == "output" and value != "0":
        launch.refuse(f"{source} is not supported; `clusterrun logs JOBID --rank N` shows the output of one rank")
    elif kind in ("torchrun", "accelerate", "none") and value != "0":
        launch.refuse(f"{source} is not supported", launcher=kind)
        if name == "max-restarts" and value.isdigit():
            launch.instead.setdefault("max-restarts", int(value))
    elif kind == "mpi-env" and "=" in value:  # -x NAME alone exports the shell's value, as sbatch does by itself
        launch.set_env(value.partition("=")[0], value.partition("=")[2], source)
    else:
        _apply_slurm(launch, one, source)


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
        launch.refuse(f"{source}: {text} is not a fixed number", nodes=int(low))
    return Value(int(low), source)


def _apply_env(launch: Launch, one: Typed, source: str) -> None:
    name, value = one.option.target, one.value or "True"
    if (name, value) == ("ACCELERATE_MIXED_PRECISION", "fp8"):
        launch.refuse(f"{source} fp8 is not supported", launcher="accelerate")
    elif (name, value) == ("LT_STRATEGY", "dp"):
        launch.refuse(f"{source} dp runs one process on all GPUs", launcher="none")
    elif (name, value) == ("LT_ACCELERATOR", "cpu"):
        launch.cpu = Value(0, source)
    launch.set_env(name, value.upper() if name == "ACCELERATE_DYNAMO_BACKEND" else value, source)


def _apply_hosts(launch: Launch, kind: str, value: str, source: str) -> None:
    """Take the number of nodes and ranks from a list of hosts; which hosts is the scheduler's choice."""
    if kind == "map-by" and (per_node := re.fullmatch(r"ppr:(\d+):node(:.*)?", value)):
        launch.ranks = Value(int(per_node[1]), source)
    elif kind == "hostfile":
        launch.one_node = False
    elif kind == "hosts":
        launch.nodes = Value(len({host.partition(":")[0] for host in value.split(",")}), source)
    elif kind == "include":
        devices = [host.partition(":")[2] for host in value.split("@")]
        launch.nodes = Value(len(devices), source)
        if devices[0]:
            launch.ranks = Value(devices[0].count(",") + 1, source)
        if len({one.count(",") for one in devices}) > 1:
            launch.refuse(f"{source}: every node must have the same number of GPUs", launcher="none")


def _apply_slurm(launch: Launch, one: Typed, source: str) -> None:
    kind, name, value = one.option.kind, one.option.name, one.value
    if kind == "field":
        whole = FIELD[one.option.target].kind == "int" and value.isdigit()
        launch.options[one.option.target] = Value(int(value) if whole else value, source)
    elif kind == "gres" and re.fullmatch(r"gpu:\d+", value, re.ASCII):
        launch.gpus["gpus-per-node"] = Value(int(value[4:]), source)
    elif kind == "gres" or (kind == "gpus-per-node" and ":" in value):
        launch.options["gres"] = Value(value if kind == "gres" else f"gpu:{value}", source)
    elif kind in ("gpus-per-node", "gpus", "gpus-per-task"):
        if number := _count(launch, value.rpartition(":")[2], source):
            launch.gpus[kind] = number
    elif kind == "requeue":
        launch.options["requeue"] = Value(name == "requeue", source)
    elif kind == "export":
        launch.own += [one.spelled] if value.startswith("NONE") else []
        for variable, equals, text in (part.partition("=") for part in value.split(",")):
            if equals:
                launch.set_env(variable, text, source)
    elif kind == "sbatch":
        before = launch.options["sbatch-arg"].value if "sbatch-arg" in launch.options else []
        launch.options["sbatch-arg"] = Value([*before, f"--{name}={value}" if value else f"--{name}"], "--sbatch-arg")
    elif kind == "folder" and value != ".":
        launch.refuse(f"{source}: the job runs in the folder that it is submitted from")
        launch.folder = f"cd {shlex.quote(value)} && "
