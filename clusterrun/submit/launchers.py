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
from clusterrun.submit.launcher_options import LAUNCHERS, Typed, parse_options
from clusterrun.submit.script_source import local_rank_option, mpi_name, source_of

_PREFIXES = ("env", "nohup", "time", "exec")
#: Numbers of ranks that mean the devices of the node: clusterrun's own number is used.
_AUTOMATIC = ("gpu", "auto", "cpu", "xpu", "-1", "")
_DEVICES = "CUDA_VISIBLE_DEVICES"
#: Options of accelerate that may stand beside a configuration that only accelerate can use.
_BESIDE_CONFIG = {"config-file", "module", "multi-gpu", "num-machines", "num-processes", "machine-rank",
                  "main-process-ip", "main-process-port", "same-network", "rdzv-backend"}  # fmt: skip


@dataclass(slots=True)
class Launch:
    """What a launcher's line asks for; ``program`` is what each rank runs.

    ``nodes``, ``ranks`` (per node) and ``total`` are None if the line leaves them open; ``one_node`` is whether it then
    means one node. ``gpus`` holds Slurm's GPU options, ``own`` the names of what clusterrun replaces, ``line`` all its
    words, ``typed`` the variables before it. ``refusal`` is the reason why the line cannot be translated, and
    ``instead`` the options that can run it.
    """

    title: str
    program: list[str] = field(default_factory=list)
    nodes: Value | None = None
    ranks: Value | None = None
    total: Value | None = None
    gpus: dict[str, Value] = field(default_factory=dict)
    one_node: bool = True
    options: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    refusal: str = ""
    instead: dict[str, Any] = field(default_factory=dict)

    def refuse(self, reason: str, **instead: Any) -> None:
        """Record why the line cannot be translated, and the options that can run it; the first reason counts."""
        if not self.refusal:
            self.refusal, self.instead = reason, {name.replace("_", "-"): value for name, value in instead.items()}


class Place(NamedTuple):
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
    return {name: text for name, _, text in pairs if name != _DEVICES and not is_own_variable(name)}


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
            hint = f"run this command without clusterrun: {shlex.join(words)}"
            if [*words[1:2]] == ["config"]:
                hint = (
                    "to write the accelerate configuration without prompts, run: clusterrun render --gpus-per-node 4"
                    " --accelerate-config"
                )
            raise RequestError(f"`{' '.join(words[:2])}` does not start a training run", hint=hint)
        return None
    launch = parse_launch(*named, place)
    launch.line, launch.typed = list(words[start:]), variables_before(words)
    launch.env |= launch.typed
    for name, _, text in (word.partition("=") for word in words[:start] if "=" in word):
        if name == _DEVICES or is_own_variable(name):  # the scheduler chooses the devices
            launch.own.append(name)
        if name == _DEVICES and not launch.ranks and not launch.total:  # their number may be all that the line says
            launch.ranks = Value(len(text.split(",")), f"--gpus-per-node from {name}")
    inner = find_launch(launch.program, place)
    return combine(launch, inner) if inner is not None else launch


def parse_launch(title: str, words: Sequence[str], place: Place) -> Launch:
    """Parse the words after a launcher's name."""
    table = LAUNCHERS[title][0]
    typed, program = parse_options(title, table, words)
    launch = Launch(title, without_python(program) if title in ("srun", "mpirun", "horovodrun") else program)
    launch.one_node = title not in ("srun", "#SBATCH")
    names = {one.option.name for one in typed}
    config = ""
    if title == "accelerate launch":
        added, config = accelerate_yaml.defaults(typed, table, place.cwd, place.python, place.environ)
        typed += added
    if "module" in names and program:
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
        add_local_rank(launch.program, local_rank_option(source_of(launch.program, place.cwd)) or "--local-rank")
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
    nodes = outer.nodes or inner.nodes
    if inner.title == "srun":  # it inherits the tasks of #SBATCH lines
        inner.total = inner.total or (None if inner.ranks else outer.total)
        inner.ranks = inner.ranks or outer.ranks
    elif outer.title != "#SBATCH":
        tasks = outer.ranks.value if outer.ranks else 1
        if outer.total and not outer.ranks:
            tasks = outer.total.value / (nodes.value if nodes else 1)
        if tasks != 1:
            inner.refuse(f"this {outer.title} command starts more than one {inner.title} per node")
        inner.title = f"{outer.title} {inner.title}"
    inner.nodes, inner.one_node = nodes, inner.one_node and outer.one_node
    inner.gpus, inner.own = outer.gpus | inner.gpus, [*outer.own, *inner.own]
    inner.env, inner.typed = outer.env | inner.env, outer.env | inner.typed
    inner.options = join_options(outer.options, inner.options)
    if outer.refusal:
        inner.refusal, inner.instead, inner.line = outer.refusal, outer.instead, outer.line
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
        case "output" if value != "0":
            launch.refuse(f"{source} is not supported; `clusterrun logs JOBID --rank N` shows the output of one rank")
        case "torchrun" | "accelerate" | "none" | "include" if value != "0":
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
        case "gres" if not re.fullmatch(r"gpu:\d+", value, re.ASCII):
            launch.options["gres"] = Value(value, source)
        case "gpus-per-node" if ":" in value:
            launch.options["gres"] = Value(f"gpu:{value}", source)
        case "gres" | "gpus-per-node" | "gpus" | "gpus-per-task":
            if number := _count(launch, value.rpartition(":")[2], source):
                launch.gpus["gpus-per-node" if kind == "gres" else kind] = number
        case "requeue":
            launch.options["requeue"] = Value(name == "requeue", source)
        case "sbatch":
            before = launch.options["sbatch-arg"].value if "sbatch-arg" in launch.options else []
            added = f"--{name}={value}" if value else f"--{name}"
            launch.options["sbatch-arg"] = Value([*before, added], "--sbatch-arg")
        case "folder" if value != ".":
            launch.refuse(f"{source}: the job runs in the folder that it is submitted from; cd to {value} first")


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
