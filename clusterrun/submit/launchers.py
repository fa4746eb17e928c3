"""Parse the line of another launcher (torchrun, accelerate launch, srun …) into what it asks for.

``find_launch`` is pure but for the files that a line names: an accelerate configuration, and the script's source.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD
from clusterrun.jobspec.fields import Value
from clusterrun.submit import accelerate_yaml
from clusterrun.submit.job_python import JobPython
from clusterrun.submit.launcher_table import (
    DEVICES,
    Launcher,
    Option,
    assignments,
    is_own_program,
    is_set_here,
    parse_options,
    prefix_length,
    split_launcher,
    variables_before,
)
from clusterrun.submit.python_line import as_variables, split_python
from clusterrun.submit.script_source import local_rank_option, refuses_option, source_of

#: Numbers of ranks that mean the devices of the node: clusterrun's own number is used.
_AUTOMATIC = ("gpu", "auto", "cpu", "xpu", "-1", "")
#: Options of accelerate that may stand beside a configuration that only accelerate can use.
_BESIDE_CONFIG = {"config-file", "module", "multi-gpu", "num-machines", "num-processes", "machine-rank",
                  "main-process-ip", "main-process-port", "same-network", "rdzv-backend"}  # fmt: skip


@dataclass(slots=True)
class Launch:
    """What a launcher's line asks for; ``program`` is what each rank runs.

    ``nodes``, ``ranks`` (per node) and ``total`` are None if the line leaves them open; ``one_node`` is whether it then
    means one node. ``gpus`` holds Slurm's GPU options, ``gpu_type`` their type, and ``node_cpus`` the cores of each
    node for the ranks that a launcher starts in srun's tasks. ``own`` are the names of what clusterrun replaces,
    ``line`` all its words, ``typed`` the variables before it.
    ``refusal`` is the reason why the line cannot be translated, and ``instead`` the options that can run it.
    Of a script, ``titles`` are the names of the launchers in it, and ``innermost`` is the command of the script that it
    runs in the end.
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
    warning: str = ""
    refusal: str = ""
    instead: dict[str, Any] = field(default_factory=dict)
    titles: set[str] = field(default_factory=set)
    innermost: list[str] = field(default_factory=list)

    def refuse(self, reason: str, **instead: Any) -> None:
        """Record why the line cannot be translated, and the options that can run it; the first reason counts."""
        if not self.refusal:
            self.refusal = reason
            self.instead = instead

    @property
    def alternative(self) -> dict[str, Value]:
        """The options that can run a line which cannot be translated."""
        return {name: Value(value, "") for name, value in self.instead.items()}

    @property
    def sees_one_gpu(self) -> str:
        """The option with which each rank would see only its own GPU, if the line has one."""
        each = self.gpus.get("gpus-per-task") or self.gpus.get("ranks-per-gpu")
        if each is None or each.value != 1:
            return ""
        return each.source


class Around(NamedTuple):
    """What surrounds a typed line: the options, and where it was typed; ``notify`` gets lines for the user.

    ``given`` are the typed options and those of the job file, which the line must not contradict; ``below`` are those
    of the profiles. ``cwd`` and ``environ`` are the folder and the environment, ``python`` is the job's Python.
    """

    given: Mapping[str, Value]
    below: Mapping[str, Value]
    cwd: Path
    environ: Mapping[str, str]
    notify: Callable[[str], None] = lambda line: None
    python: JobPython = JobPython(sys.executable)

    def value(self, name: str) -> Any:
        """Return the value of an option, None if it is not set."""
        return {**self.below, **self.given}.get(name, Value(None, "")).value

    @property
    def nodes(self) -> int:
        return int(self.value("nodes") or 1)


def number(value: Value | None, otherwise: int = 1) -> int:
    """Return the number that an option sets, or the default if the option is not set."""
    return otherwise if value is None else int(value.value)


def find_launch(words: Sequence[str], around: Around) -> Launch | None:
    """Return what a command asks of its launcher, or None if it does not start one whose lines are translated.

    Variables before it (``NCCL_DEBUG=INFO torchrun …``) belong to it. Raises RequestError for an option that the
    launcher does not have, and for commands that start no training.
    """
    line = list(words[prefix_length(words) :])
    launcher, arguments = split_launcher(line)
    if not launcher.title:
        _refuse_other_commands(line)
    if not launcher.options:
        return None
    launch = parse_launch(launcher, arguments, around)
    launch.line = line
    _add_variables(launch, words)
    return launch


def _refuse_other_commands(words: Sequence[str]) -> None:
    """Raise RequestError for commands of launchers that start no ranks here."""
    if not words or is_own_program(words[0]):
        return
    hint = f"run this command without clusterrun: {shlex.join(words)}"
    if words[:3] == ["ray", "job", "submit"]:
        message = "`ray job submit` hands the program to a Ray cluster; each rank would do so"
        raise RequestError(message, hint=hint)
    if Path(words[0]).name != "accelerate":
        return
    if words[1:2] == ["config"]:
        hint = (
            "to write the accelerate configuration without prompts, run: clusterrun render --gpus-per-node 4"
            " --accelerate-config"
        )
    raise RequestError(f"`{' '.join(words[:2])}` does not start a training run", hint=hint)


def _add_variables(launch: Launch, words: Sequence[str]) -> None:
    """Add the variables before a launcher: some are clusterrun's own, and some are all that the line says."""
    assigned = assignments(words)
    launch.typed = variables_before(words)
    launch.env |= launch.typed
    launch.own += filter(is_set_here, assigned)
    if DEVICES in assigned and not launch.ranks and not launch.total:
        launch.ranks = Value(len(assigned[DEVICES].split(",")), f"--gpus-per-node from {DEVICES}")


def parse_launch(launcher: Launcher, words: Sequence[str], around: Around) -> Launch:
    """Parse the words after a launcher's name."""
    typed, program = parse_options(launcher, words)
    names = {option.name for option in typed}
    config = ""
    if launcher.title == "accelerate launch":
        added, config = accelerate_yaml.defaults(typed, launcher, around.cwd, around.python, around.environ)
        typed += added
    if "module" in names and program:
        program = ["-m", *program]
    launch = Launch(launcher.title, program, one_node=launcher.title not in ("srun", "#SBATCH"))
    for option in typed:
        _APPLY.get(option.kind, _do_nothing)(launch, option, _source_of(option, launcher.title))
    if launch.instead.get("launcher") == "accelerate":
        _leave_to_accelerate(launch, config, names)
    if program:
        _finish(launch, names, around.cwd)
    return launch


def _source_of(option: Option, title: str) -> str:
    """Return the name of a typed option in messages; `why` repeats options whose source starts with two hyphens."""
    name = option.spelled.lstrip("-")
    if len(name) == 1:
        name = option.name
    return f"--{name} of {title}"


def _leave_to_accelerate(launch: Launch, config: str, names: set[str]) -> None:
    """Let accelerate itself read its configuration; it has no place for other options."""
    if config and names <= _BESIDE_CONFIG:
        launch.instead["accelerate-config"] = config
    else:
        launch.instead["launcher"] = "none"


def _finish(launch: Launch, names: set[str], cwd: Path) -> None:
    """Do to the program what its launcher does beside its options."""
    if launch.title == "srun":
        python, launch.program = split_python(launch.program)
        variables, others = as_variables(python)
        launch.env |= variables
        launch.own += others
    elif launch.title == "torch.distributed.launch" and "use-env" not in names:
        _add_declared_local_rank(launch, cwd)
    elif launch.title == "deepspeed" and "no-local-rank" not in names:
        add_local_rank(launch.program, "--local_rank")
    elif launch.title == "fabric run":
        launch.env["LT_CLI_USED"] = "1"


def _add_declared_local_rank(launch: Launch, cwd: Path) -> None:
    """Add the local rank as the script spells it, and note if the script would refuse it."""
    source = source_of(launch.program, cwd)
    option = local_rank_option(source) or "--local-rank"
    if refuses_option(source, option):
        script = launch.program[0]
        launch.warning = f"{script} declares no {option}, which {launch.title} adds; with --use-env it does not"
    add_local_rank(launch.program, option)


def add_local_rank(program: list[str], option: str) -> None:
    """Insert ``OPTION={local_rank}``, which the worker fills in, before a script's arguments."""
    program.insert(2 if program[:1] == ["-m"] else 1, f"{option}={{local_rank}}")


# --- a launcher inside the tasks of Slurm ---


def combine(outer: Launch, inner: Launch) -> Launch:
    """Return what a launcher asks for that #SBATCH lines or srun start: ``srun -N2 torchrun …``."""
    if outer.nodes and inner.nodes and outer.nodes.value != inner.nodes.value:
        raise RequestError(
            f"{outer.nodes.source} is {outer.nodes.value}, but {inner.nodes.source} is {inner.nodes.value}",
            hint="set the number of nodes in only one place, or use the same number in both",
        )
    inner.nodes = outer.nodes or inner.nodes
    inner.one_node = inner.one_node and outer.one_node
    if inner.title in ("srun", "#SBATCH"):
        _inherit_tasks(outer, inner)
    else:
        _share_task(outer, inner)
    inner.gpus = outer.gpus | inner.gpus
    inner.gpu_type = inner.gpu_type or outer.gpu_type
    inner.own = [*outer.own, *inner.own]
    inner.env = outer.env | inner.env
    inner.typed = outer.env | inner.typed
    inner.options = join_options(outer.options, inner.options)
    if outer.refusal:
        inner.refusal, inner.instead, inner.line = outer.refusal, outer.instead, outer.line
    return inner


def _inherit_tasks(outer: Launch, inner: Launch) -> None:
    """Give srun the tasks of #SBATCH lines."""
    if not inner.ranks:
        inner.total = inner.total or outer.total
    inner.ranks = inner.ranks or outer.ranks


def _share_task(outer: Launch, inner: Launch) -> None:
    """Give the ranks that a launcher starts in a task of Slurm what the task has: its GPUs and its cores."""
    tasks = _tasks_per_node(outer)
    if tasks != 1 and outer.title != "#SBATCH":
        inner.refuse(f"this {outer.title} command starts more than one {inner.title} per node")
    tasks = max(1, tasks)
    gpus = outer.gpus.pop("gpus-per-task", None)
    if gpus is not None:
        outer.gpus.setdefault("gpus-per-node", Value(int(gpus.value * tasks), gpus.source))
    cpus = outer.options.get("cpus-per-task", Value(None, ""))
    inner.node_cpus = inner.node_cpus or outer.node_cpus
    if isinstance(cpus.value, int):
        del outer.options["cpus-per-task"]
        inner.node_cpus = Value(int(cpus.value * tasks), cpus.source)


def _tasks_per_node(launch: Launch) -> float:
    if launch.total and not launch.ranks:
        return float(launch.total.value / number(launch.nodes))
    return float(number(launch.ranks))


def join_options(upper: Mapping[str, Value], lower: Mapping[str, Value]) -> dict[str, Value]:
    """Return the options of two lines; the lower ones win, but variables and arguments of sbatch of both are kept."""
    joined = {**upper, **lower}
    if "env" in lower:
        above = upper.get("env", Value({}, lower["env"].source))
        joined["env"] = Value({**above.value, **lower["env"].value}, above.source)
    if "sbatch-arg" in lower:
        above = upper.get("sbatch-arg", Value([], lower["sbatch-arg"].source))
        joined["sbatch-arg"] = Value([*dict.fromkeys([*above.value, *lower["sbatch-arg"].value])], above.source)
    return joined


# --- what an option does to a launch; ``source`` names the option in messages ---


def _do_nothing(launch: Launch, typed: Option, source: str) -> None:
    """Leave what is about the whole line, which ``parse_launch`` reads."""


def _set_nodes(launch: Launch, typed: Option, source: str) -> None:
    launch.one_node = False
    launch.nodes = _count(launch, typed.value, source)


def _set_ranks(launch: Launch, typed: Option, source: str) -> None:
    if typed.value == "cpu":
        launch.gpus["gpus-per-node"] = Value(0, source)
    launch.ranks = _count(launch, typed.value, source)


def _set_total(launch: Launch, typed: Option, source: str) -> None:
    launch.total = _count(launch, typed.value, source)


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


def _use_cpu(launch: Launch, typed: Option, source: str) -> None:
    launch.gpus["gpus-per-node"] = Value(0, source)
    launch.env["ACCELERATE_USE_CPU"] = "true"


def _leave_out(launch: Launch, typed: Option, source: str) -> None:
    launch.own.append(typed.spelled)


def _leave_hosts_out(launch: Launch, typed: Option, source: str) -> None:
    """Leave out which hosts to use, which is the scheduler's choice."""
    launch.own.append(typed.spelled)
    launch.one_node = False


def _include_devices(launch: Launch, typed: Option, source: str) -> None:
    """Take the number of devices from ``--include localhost:0,1``."""
    if not re.fullmatch(r"localhost:\d+(,\d+)*", typed.value):
        launch.refuse(f"{source} is not supported", launcher="none")
        return
    launch.own.append(typed.spelled)
    launch.nodes = Value(1, source)
    launch.ranks = Value(typed.value.count(",") + 1, source)


def _set_variable(launch: Launch, typed: Option, source: str) -> None:
    """Set the variable that the launcher would set, unless its value needs the launcher itself."""
    name, value = typed.target, typed.value or "True"
    match name, value:
        case "ACCELERATE_MIXED_PRECISION", "fp8":
            launch.refuse(f"{source}: fp8 is not supported", launcher="accelerate")
        case "LT_STRATEGY", "dp":
            reason = f"{source}: dp is not supported, because it uses a single process for all GPUs"
            launch.refuse(reason, launcher="none")
        case "LT_ACCELERATOR", "cpu":
            launch.gpus["gpus-per-node"] = Value(0, source)
        case "ACCELERATE_DYNAMO_BACKEND", _:
            value = value.upper()
    launch.env[name] = value


def _refuse_output(launch: Launch, typed: Option, source: str) -> None:
    if _has_effect(typed):
        launch.refuse(f"{source} is not supported; `clusterrun logs JOBID --rank N` shows the output of one rank")


def _refuse(launch: Launch, typed: Option, source: str) -> None:
    launch.refuse(f"{source} is not supported")


def _refuse_for_launcher(launch: Launch, typed: Option, source: str) -> None:
    """Refuse an option that only the ``--launcher`` named by its kind can use."""
    if not _has_effect(typed):
        return
    launch.refuse(f"{source} is not supported", launcher=typed.kind)
    if typed.name == "max-restarts" and typed.value.isdigit():
        launch.instead.setdefault("max-restarts", int(typed.value))


def _has_effect(typed: Option) -> bool:
    """Return whether an option has an effect: the table names the value that has none."""
    return typed.target == "" or typed.value != typed.target


def _set_field(launch: Launch, typed: Option, source: str) -> None:
    """Set the option of clusterrun that has the same name."""
    kind, value = FIELD[typed.name].kind, typed.value
    read: Any = value
    if kind == "int" and value.isdigit():
        read = int(value)
    elif kind == "list":
        read = [value]
    launch.options[typed.name] = Value(read, source)


def _export(launch: Launch, typed: Option, source: str) -> None:
    """Export ``NAME=VALUE`` of ``--export``; NAME alone exports the shell's value, as sbatch does by itself."""
    if typed.value.startswith("NONE"):
        launch.own.append(typed.spelled)
    for part in typed.value.split(","):
        name, equals, value = part.partition("=")
        if equals:
            launch.env[name] = value


def _set_gres(launch: Launch, typed: Option, source: str) -> None:
    if re.fullmatch(r"gpu(:[^:,]+)?(:\d+)?", typed.value, re.ASCII):
        text = typed.value.removeprefix("gpu").removeprefix(":")
        _set_gpus(launch, "gpus-per-node", text, source)
    else:
        launch.options["gres"] = Value(typed.value, source)


def _set_gpu_option(launch: Launch, typed: Option, source: str) -> None:
    _set_gpus(launch, typed.kind, typed.value, source)


def _set_gpus(launch: Launch, kind: str, text: str, source: str) -> None:
    """Set a number of GPUs, with or without their type: ``4``, ``a100:4``, or ``h100-96`` for one."""
    if "," in text:
        launch.refuse(f"{source}: {text} has several types of GPU; --gres can ask for them")
        return
    gpu_type, _, count = text.rpartition(":")
    if not gpu_type and not re.fullmatch(r"[0-9$].*|", text):
        gpu_type, count = text, "1"
    launch.gpu_type = gpu_type or launch.gpu_type
    number = Value(0, source) if count == "0" else _count(launch, count or "1", source)
    if number:
        launch.gpus[kind] = number


def _set_ranks_per_gpu(launch: Launch, typed: Option, source: str) -> None:
    launch.gpus["ranks-per-gpu"] = Value(int(typed.value) if typed.value.isdecimal() else 1, source)


def _name_job(launch: Launch, typed: Option, source: str) -> None:
    """Leave out ``--jobid $SLURM_JOB_ID``; a number names another job."""
    if "$" in typed.value:
        launch.own.append(typed.spelled)
    else:
        launch.refuse(f"{source} is not supported: each run is a job of its own")


def _set_requeue(launch: Launch, typed: Option, source: str) -> None:
    if typed.value:
        launch.refuse(f"{source} is not supported: Slurm holds such a job when its program fails; use --requeue")
    launch.options["requeue"] = Value(typed.name == "requeue", source)


def _pass_to_sbatch(launch: Launch, typed: Option, source: str) -> None:
    name, value = typed.name, typed.value
    if typed.values == 1 and not value:  # ``--mail-user=``
        return
    argument = f"--{name}={value}" if value else f"--{name}"
    before = launch.options.get("sbatch-arg", Value([], "")).value
    launch.options["sbatch-arg"] = Value([*before, argument], "--sbatch-arg")


def _change_folder(launch: Launch, typed: Option, source: str) -> None:
    if typed.value != ".":
        reason = f"{source}: the job runs in the folder that it is submitted from; cd to {typed.value} first"
        launch.refuse(reason)


#: What an option does, by its kind in the tables.
_APPLY: dict[str, Callable[[Launch, Option, str], None]] = {
    "nodes": _set_nodes,
    "ranks": _set_ranks,
    "total": _set_total,
    "cpu": _use_cpu,
    "own": _leave_out,
    "hostfile": _leave_hosts_out,
    "include": _include_devices,
    "env": _set_variable,
    "output": _refuse_output,
    "unsupported": _refuse,
    "torchrun": _refuse_for_launcher,
    "accelerate": _refuse_for_launcher,
    "none": _refuse_for_launcher,
    "field": _set_field,
    "export": _export,
    "gres": _set_gres,
    "gpus": _set_gpu_option,
    "gpus-per-node": _set_gpu_option,
    "gpus-per-task": _set_gpu_option,
    "ranks-per-gpu": _set_ranks_per_gpu,
    "jobid": _name_job,
    "requeue": _set_requeue,
    "sbatch": _pass_to_sbatch,
    "folder": _change_folder,
}
