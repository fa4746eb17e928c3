"""The table of job options, and the checks of their values. No I/O.

Flags, job files and profiles use the same names. Each value carries its source for error messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from clusterrun.errors import RequestError
from clusterrun.jobspec.secrets import refuse_assignments, refuse_named, refuse_shapes

Kind = Literal["int", "text", "flag", "list", "map"]

PG_TIMEOUT = 36_000
"""Seconds a process group waits for a collective; loading and saving may take long."""
JOIN_TIMEOUT = 600
"""Seconds a rank waits for the other ranks to start before it fails and names the missing ones."""
NAME_BYTES = 40
"""The maximum length of a job name; clusterrun appends a part of the run's token."""


@dataclass(frozen=True, slots=True)
class Field:
    """One option: name, kind, help text, and whether it is an ``#SBATCH`` directive of the same name."""

    name: str
    kind: Kind
    help: str
    directive: bool = False
    least: int = 0
    metavar: str = ""


FIELDS: tuple[Field, ...] = (
    Field("scheduler", "text", "slurm, local, or auto (Slurm if available, else this machine).", metavar="NAME"),
    Field("nodes", "int", "Number of nodes.", least=1, metavar="N"),
    Field("gpus-per-node", "int", "GPUs per node, one rank per GPU; 0 for a CPU job.", least=0, metavar="N"),
    Field("tasks-per-node", "int", "Ranks per node; default: one per GPU.", least=1, metavar="N"),
    Field(
        "launcher",
        "text",
        "What starts the ranks: srun (default), torchrun, accelerate, deepspeed or none.",
        metavar="NAME",
    ),
    Field("max-restarts", "int", "Restarts of all ranks after a failure, by torchrun; default 0.", metavar="N"),
    Field("accelerate-config", "text", "YAML for --launcher accelerate.", metavar="FILE"),
    Field("cpus-per-task", "int", "CPU cores per rank.", directive=True, least=1, metavar="N"),
    Field("mem", "text", "Memory per node (64G).", directive=True, metavar="SIZE"),
    Field("time", "text", "Time limit in an sbatch format (90, 2:00:00, 1-12).", directive=True, metavar="TIME"),
    Field("partition", "text", "Partition; auto picks the earliest start.", directive=True, metavar="NAME"),
    Field("account", "text", "Account to charge.", directive=True, metavar="NAME"),
    Field("qos", "text", "Quality of service.", directive=True, metavar="NAME"),
    Field("constraint", "text", "Required node features.", directive=True, metavar="EXPR"),
    Field(
        "gres",
        "text",
        "Generic resources per node (gpu:a100:4), instead of --gpus-per-node.",
        directive=True,
        metavar="LIST",
    ),
    Field("reservation", "text", "Reservation to use.", directive=True, metavar="NAME"),
    Field("exclude", "text", "Nodes to avoid.", directive=True, metavar="NODES"),
    Field("nodelist", "text", "Nodes to use.", directive=True, metavar="NODES"),
    Field("dependency", "text", "Start after other jobs (afterok:123).", directive=True, metavar="LIST"),
    Field("job-name", "text", f"Job name, at most {NAME_BYTES} bytes.", metavar="NAME"),
    Field("mail-type", "text", "Events to be emailed about (END,FAIL).", directive=True, metavar="LIST"),
    Field("comment", "text", "Comment stored with the job.", metavar="TEXT"),
    Field(
        "python",
        "text",
        "Python for the job; default: the active venv or conda environment, else clusterrun's own.",
        metavar="PATH",
    ),
    Field("env", "map", "Set an environment variable in the job; repeatable.", metavar="KEY=VALUE"),
    Field("setup", "list", "Shell line to run once before the ranks start; repeatable.", metavar="LINE"),
    Field("template", "text", "Custom sbatch template.", metavar="FILE"),
    Field("sbatch-arg", "list", "Extra argument for sbatch, passed unchanged; repeatable.", metavar="ARG"),
    Field("requeue", "flag", "Let Slurm restart the job after preemption or a node failure."),
    Field("master-port", "int", "Rendezvous port; default: a free port.", least=1, metavar="PORT"),
    Field("pg-timeout", "int", f"Time limit of a collective; default {PG_TIMEOUT}.", least=1, metavar="SECONDS"),
    Field(
        "join-timeout",
        "int",
        f"Seconds to wait for all ranks to start; default {JOIN_TIMEOUT}.",
        least=1,
        metavar="SECONDS",
    ),
    Field("set", "map", "Set a task setting (steps=300); repeatable.", metavar="KEY=VALUE"),
    Field("fp16", "flag", "Run a built-in task in fp16 (--no-fp16: fp32); default: chosen by device."),
    Field("shared", "flag", "Let your group read the run's records and logs."),
)
FIELD: dict[str, Field] = {f.name: f for f in FIELDS}

#: sbatch options that conflict with those that clusterrun sets, and what to use instead.
TAKEN_SBATCH_OPTIONS: dict[str, str] = {
    "job-name": "--job-name",
    "comment": "--comment",
    "output": "logs/train_JOBID.out (the location is fixed)",
    "error": "logs/train_JOBID.err (the location is fixed)",
    "open-mode": "no option: logs are always appended to",
    "parsable": "no option: clusterrun reads the job id",
    "wait": "--wait",
    "wrap": "-- SCRIPT",
    "test-only": "--dry-run",
    "array": "one submit per job; job arrays are not supported",
    "nodes": "--nodes",
    "ntasks": "--nodes and --tasks-per-node",
    "ntasks-per-node": "--tasks-per-node",
    "ntasks-per-core": "--tasks-per-node",
    "ntasks-per-gpu": "--tasks-per-node",
    "ntasks-per-socket": "--tasks-per-node",
    "ntasks-per-tres": "--tasks-per-node",
    "gpus": "--gpus-per-node",
    "gpus-per-node": "--gpus-per-node",
    "gpus-per-task": "--gpus-per-node",
    "gpus-per-socket": "--gpus-per-node",
    "chdir": "cd to the folder first",
    "export": "--env KEY=VALUE",
    "export-file": "--env KEY=VALUE",
    "requeue": "--requeue",
    "no-requeue": "--no-requeue",
    # these print a text and exit 0 without a job (observed on 22.05)
    "help": "man sbatch",
    "usage": "man sbatch",
    "version": "sbatch --version",
    "clusters": "the SLURM_CLUSTERS variable",
    "cluster": "the SLURM_CLUSTERS variable",
}
#: The values of ``--launcher``. All but srun start the ranks of a node from one task.
LAUNCHERS = ("srun", "torchrun", "accelerate", "deepspeed", "none")
_SHORT_SBATCH = {"J": "job-name", "o": "output", "e": "error", "W": "wait", "a": "array", "N": "nodes", "n": "ntasks",
                 "G": "gpus", "D": "chdir", "M": "clusters", "h": "help", "V": "version"}  # fmt: skip
_SHORT_FLAGS = "HIkOQsv"  # they take no argument, so another option may follow: -HJname sets the name
_OWN_VARIABLES = re.compile(
    r"(CLUSTERRUN|CR|SLURM|SBATCH|TORCHELASTIC)_.*|ROLE_(NAME|RANK|WORLD_SIZE)|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_ADDR|MASTER_PORT"
)
# Bash's own: an assignment is ignored, fails, or (IFS) changes how the script is parsed (observed on 5.2)
_BASH_VARIABLES = re.compile(
    r"_|BASH(OPTS|PID)|BASH_(ALIASES|ARGC|ARGV|CMDS|COMMAND|LINENO|SOURCE|SUBSHELL|VERSINFO)|DIRSTACK|EPOCH(REALTIME|SECONDS)"
    r"|E?UID|FUNCNAME|GROUPS|HISTCMD|IFS|LINENO|OPTIND|PIPESTATUS|PPID|S?RANDOM|SECONDS|SHELLOPTS|SHLVL"
)
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)",
    re.ASCII,
)
# Slurm stores minutes in an int: sbatch accepts more, and the job's limit is then INVALID (observed on 22.05)
_MOST_SECONDS = 60 * (2**31 - 1)
_MEM = re.compile(r"\d+(?:[KMGT]B?)?", re.ASCII | re.IGNORECASE)
_GRES_GPU = re.compile(r"(?:gres[:/])?gpu(?::(?!\d+(?:\(|$))[^:,()]+)?(?::(?P<count>\d{1,9}))?(?:\([^)]*\))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its source (``--nodes``, ``jobs/sft.toml``, ``SBATCH_ACCOUNT``, ``default`` …)."""

    value: Any
    source: str


def check_value(spec_field: Field, value: Value) -> None:
    """Raise RequestError for an invalid value, with its source."""
    checks = _CHECKS.get(spec_field.name)
    texts: list[str] = []
    if spec_field.kind == "int":
        _require(type(value.value) is int, spec_field, value, "a whole number")
        _require(value.value >= spec_field.least, spec_field, value, f"at least {spec_field.least}")
    elif spec_field.kind == "text":
        _require(isinstance(value.value, str) and value.value != "", spec_field, value, "a non-empty string")
        texts = [value.value]
    elif spec_field.kind == "flag":
        _require(isinstance(value.value, bool), spec_field, value, "true or false")
    elif spec_field.kind == "list":
        good = isinstance(value.value, list | tuple) and all(isinstance(v, str) for v in value.value)
        _require(good, spec_field, value, "a list of strings")
        texts = list(value.value)
    else:
        _require(isinstance(value.value, dict), spec_field, value, "a table of KEY = VALUE")
        texts = [f"{key}={_flat(item)}" for key, item in value.value.items()]
    refuse_shapes("\n".join(texts), f"--{spec_field.name}", value.source)
    for text in texts:
        check_text(text, f"--{spec_field.name}", value.source)
    if checks is not None:
        checks(spec_field, value)


def check_text(text: str, what: str, source: str) -> None:
    """Raise RequestError for a newline or NUL: in a script it could add a directive or cut the text short."""
    bad = next((name for char, name in (("\n", "newline"), ("\0", "NUL")) if char in text), None)
    if bad:
        raise RequestError(f"{what}: a {bad} is not allowed in {text[:40]!r} ({source})", hint="use a single line")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise RequestError(f"{what}: invalid Unicode in {text[:40]!r} ({source})", hint="use valid UTF-8") from None


def parse_time_limit(text: str) -> int | None:
    """Parse a time limit in one of sbatch's formats. Returns seconds, or None for UNLIMITED or 0."""
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    match = _TIME.fullmatch(text) if len(text) < 40 else None  # int() refuses thousands of digits
    if match is None:
        raise RequestError(
            f"--time: not a time limit: {text[:40]!r}", hint="use minutes (90), HH:MM:SS (2:00:00) or DAYS-HOURS (1-12)"
        )
    days, hours, minutes, seconds = (int(match[k] or 0) for k in ("days", "dh", "dm", "ds"))
    if match["days"] is None:
        a, b, c = (int(match[k] or 0) for k in ("a", "b", "c"))
        # sbatch reads 90 as minutes, 90:30 as minutes and seconds
        hours, minutes, seconds = (a, b, c) if match["c"] is not None else (0, a, b)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total > _MOST_SECONDS:
        raise RequestError(f"--time: {text!r} is too long for Slurm", hint="use UNLIMITED for no time limit")
    return total or None  # 0 means no time limit in sbatch


def gres_gpus(gres: str) -> int | None:
    """Return the number of GPUs in a gres list (``gpu:a100:4`` is 4), or None if it has no GPU entry."""
    counts = [int(m["count"] or 1) for part in re.split(r",(?![^(]*\))", gres) if (m := _GRES_GPU.fullmatch(part))]
    return sum(counts) if counts else None


def sbatch_option(argument: str) -> str:
    """Return the long name of the option that an sbatch argument sets, or an empty text for a bare value."""
    if argument.startswith("--"):
        return argument[2:].split("=", 1)[0]
    if len(argument) > 1 and argument.startswith("-"):
        letter = argument[1:].lstrip(_SHORT_FLAGS)[:1] or argument[1]
        return _SHORT_SBATCH.get(letter, letter)
    return ""


def _flat(item: Any) -> str:
    return " ".join(str(one) for one in item) if isinstance(item, list | tuple) else str(item)


def _require(good: bool, spec_field: Field, value: Value, expected: str) -> None:
    flag = f"--{spec_field.name}"
    if not good:
        source = "" if value.source == flag else f" ({value.source})"
        raise RequestError(f"{flag} must be {expected}, not {value.value!r}{source}")


def _check_sbatch_args(spec_field: Field, value: Value) -> None:
    for argument in value.value:
        option = sbatch_option(argument)
        if not option:
            raise RequestError(
                f"--sbatch-arg: {argument!r} is not an option ({value.source})",
                hint="write option and value together: --sbatch-arg=--switches=1",
            )
        # sbatch accepts any unambiguous prefix of a long option
        is_prefix = len(option) > 1 and option not in FIELD
        taken = next((t for t in TAKEN_SBATCH_OPTIONS if t == option or (is_prefix and t.startswith(option))), None)
        if taken:
            raise RequestError(
                f"--sbatch-arg: {argument!r} is not supported: it conflicts with clusterrun's own options",
                hint=f"use {TAKEN_SBATCH_OPTIONS[taken]}",
            )


def _check_env(spec_field: Field, value: Value) -> None:
    for key, text in value.value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key, re.ASCII):
            raise RequestError(f"--env: {key!r} is not a valid variable name ({value.source})")
        if not isinstance(text, str):
            raise RequestError(
                f"--env: the value of {key} must be a string ({value.source})", hint=f'write {key} = "{text}"'
            )
        if _OWN_VARIABLES.fullmatch(key):
            raise RequestError(f"--env: {key} is set by clusterrun ({value.source})", hint="remove it")
        if _BASH_VARIABLES.fullmatch(key):
            raise RequestError(f"--env: {key} is reserved by bash ({value.source})", hint="remove it")
        refuse_named(key, text, "--env", value.source)


def _check_setup(spec_field: Field, value: Value) -> None:
    refuse_assignments(value.value, "--setup", value.source)


def _check_name(spec_field: Field, value: Value) -> None:
    if len(value.value.encode("utf-8", "surrogateescape")) > NAME_BYTES:
        raise RequestError(
            f"--job-name: {value.value!r} is longer than {NAME_BYTES} bytes ({value.source})", hint="use a shorter name"
        )


def _check_scheduler(spec_field: Field, value: Value) -> None:
    _require(value.value in ("slurm", "local", "auto"), spec_field, value, "slurm, local or auto")


def _check_launcher(spec_field: Field, value: Value) -> None:
    _require(value.value in LAUNCHERS, spec_field, value, f"{', '.join(LAUNCHERS[:-1])} or {LAUNCHERS[-1]}")


def _check_mem(spec_field: Field, value: Value) -> None:
    _require(_MEM.fullmatch(value.value) is not None, spec_field, value, "a size such as 64G")


def _check_port(spec_field: Field, value: Value) -> None:
    _require(1024 <= value.value <= 65535, spec_field, value, "a port between 1024 and 65535")


def _check_time(spec_field: Field, value: Value) -> None:
    parse_time_limit(value.value)


_CHECKS = {
    "sbatch-arg": _check_sbatch_args,
    "env": _check_env,
    "setup": _check_setup,
    "job-name": _check_name,
    "scheduler": _check_scheduler,
    "launcher": _check_launcher,
    "mem": _check_mem,
    "master-port": _check_port,
    "time": _check_time,
}
