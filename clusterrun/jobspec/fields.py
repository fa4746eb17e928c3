"""What can be asked: one table of fields, and what makes a value of each wrong. No I/O.

Flags, job files and profiles use these names; a value knows where it came from, so that an error can say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from clusterrun.errors import RequestError
from clusterrun.jobspec.secrets import refuse_assignments, refuse_named, refuse_shapes

Kind = Literal["int", "text", "flag", "list", "map"]

PG_TIMEOUT = 36_000
"""Seconds a process group waits for a collective: loading and saving may take long (design 5.4)."""
JOIN_TIMEOUT = 600
"""Seconds a rank waits for the others to come before it names those that did not."""
NAME_BYTES = 40
"""The longest user part of a job name; the token's part follows it."""


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that can be asked: its name everywhere, its kind, its help, and sbatch's option if it is one."""

    name: str
    kind: Kind
    help: str
    directive: bool = False
    least: int = 0
    metavar: str = ""


FIELDS: tuple[Field, ...] = (
    Field("scheduler", "text", "slurm, local, or auto: Slurm where it answers, else this machine.", metavar="NAME"),
    Field("nodes", "int", "Number of nodes.", least=1, metavar="N"),
    Field("gpus-per-node", "int", "GPUs on each node, one rank each; 0 for a CPU job.", least=0, metavar="N"),
    Field("tasks-per-node", "int", "Ranks on each node, where it is not one per GPU.", least=1, metavar="N"),
    Field("cpus-per-task", "int", "CPU cores for each rank.", directive=True, least=1, metavar="N"),
    Field("mem", "text", "Memory per node, as sbatch takes it (64G).", directive=True, metavar="SIZE"),
    Field("time", "text", "Time limit, as sbatch takes it (90, 2:00:00, 1-12).", directive=True, metavar="TIME"),
    Field("partition", "text", "Partition; auto: where it starts soonest.", directive=True, metavar="NAME"),
    Field("account", "text", "Account to charge.", directive=True, metavar="NAME"),
    Field("qos", "text", "Quality of service.", directive=True, metavar="NAME"),
    Field("constraint", "text", "Node features.", directive=True, metavar="EXPR"),
    Field(
        "gres",
        "text",
        "Generic resources per node, instead of --gpus-per-node (gpu:a100:4).",
        directive=True,
        metavar="LIST",
    ),
    Field("reservation", "text", "Reservation.", directive=True, metavar="NAME"),
    Field("exclude", "text", "Nodes to stay away from.", directive=True, metavar="NODES"),
    Field("nodelist", "text", "Nodes to use.", directive=True, metavar="NODES"),
    Field("dependency", "text", "Start after other jobs (afterok:123).", directive=True, metavar="LIST"),
    Field("job-name", "text", f"Name of the job, at most {NAME_BYTES} bytes.", metavar="NAME"),
    Field("mail-type", "text", "Events that Slurm mails you about (END,FAIL).", directive=True, metavar="LIST"),
    Field("comment", "text", "A comment kept with the job.", metavar="TEXT"),
    Field(
        "python",
        "text",
        "The job's Python; default: the active venv or conda environment, else this one.",
        metavar="PATH",
    ),
    Field("env", "map", "Set an environment variable in the job; may be repeated.", metavar="KEY=VALUE"),
    Field("setup", "list", "A line of shell run once before the ranks start; may be repeated.", metavar="LINE"),
    Field("template", "text", "Your own sbatch template.", metavar="FILE"),
    Field("sbatch-arg", "list", "Pass an argument to sbatch as it is; may be repeated.", metavar="ARG"),
    Field("requeue", "flag", "Let Slurm start the job again after preemption or a node failure."),
    Field("master-port", "int", "Port of the rendezvous; default: a free one, held.", least=1, metavar="PORT"),
    Field("pg-timeout", "int", f"Seconds a collective may take; default {PG_TIMEOUT}.", least=1, metavar="SECONDS"),
    Field(
        "join-timeout",
        "int",
        f"Seconds to wait for all ranks to come; default {JOIN_TIMEOUT}.",
        least=1,
        metavar="SECONDS",
    ),
    Field("set", "map", "Set a value of the task (steps=300); may be repeated.", metavar="KEY=VALUE"),
    Field("fp16", "flag", "Precision of clusterrun's own tasks: fp16, or with --no-fp16 fp32; default: by the device."),
    Field("shared", "flag", "Let your group read the run's records and logs."),
)
FIELD: dict[str, Field] = {f.name: f for f in FIELDS}

#: sbatch options that would undo what we rely on, and what to use instead (run-model 4).
TAKEN_SBATCH_OPTIONS: dict[str, str] = {
    "job-name": "--job-name",
    "comment": "--comment",
    "output": "logs/train_JOBID.out (it cannot be moved)",
    "error": "logs/train_JOBID.err (it cannot be moved)",
    "open-mode": "nothing: logs are always appended to",
    "parsable": "nothing: clusterrun reads the id",
    "wait": "--wait",
    "wrap": "-- SCRIPT",
    "test-only": "--dry-run",
    "array": "one submit per job: arrays are not offered yet",
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
    # these print something and exit 0 without a job: seen on 22.05
    "help": "man sbatch",
    "usage": "man sbatch",
    "version": "sbatch --version",
    "clusters": "the SLURM_CLUSTERS variable",
    "cluster": "the SLURM_CLUSTERS variable",
}
_SHORT_SBATCH = {"J": "job-name", "o": "output", "e": "error", "W": "wait", "a": "array", "N": "nodes", "n": "ntasks",
                 "G": "gpus", "D": "chdir", "M": "clusters", "h": "help", "V": "version"}  # fmt: skip
_SHORT_FLAGS = "HIkOQsv"  # take no argument, so another option may follow in the same word: -HJname sets the name
_OWN_VARIABLES = re.compile(
    r"(CLUSTERRUN|CR|SLURM|SBATCH|TORCHELASTIC)_.*|ROLE_(NAME|RANK|WORLD_SIZE)|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_ADDR|MASTER_PORT"
)
# Bash's own: an assignment is lost or refused, or (IFS) bends the script itself (seen on 5.2)
_BASH_VARIABLES = re.compile(
    r"_|BASH(OPTS|PID)|BASH_(ALIASES|ARGC|ARGV|CMDS|COMMAND|LINENO|SOURCE|SUBSHELL|VERSINFO)|DIRSTACK|EPOCH(REALTIME|SECONDS)"
    r"|E?UID|FUNCNAME|GROUPS|HISTCMD|IFS|LINENO|OPTIND|PIPESTATUS|PPID|S?RANDOM|SECONDS|SHELLOPTS|SHLVL"
)
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)",
    re.ASCII,
)
# Slurm counts minutes in an int: sbatch takes more, and the limit of the job is then INVALID (22.05: seen)
_MOST_SECONDS = 60 * (2**31 - 1)
_MEM = re.compile(r"\d+(?:[KMGT]B?)?", re.ASCII | re.IGNORECASE)
_GRES_GPU = re.compile(r"(?:gres[:/])?gpu(?::(?!\d+(?:\(|$))[^:,()]+)?(?::(?P<count>\d{1,9}))?(?:\([^)]*\))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Value:
    """A value and where it came from (``--nodes``, ``jobs/sft.toml``, ``SBATCH_ACCOUNT``, ``default`` …)."""

    value: Any
    source: str


def check_value(spec_field: Field, value: Value) -> None:
    """Refuse a value that cannot be meant, naming where it came from."""
    checks = _CHECKS.get(spec_field.name)
    texts: list[str] = []
    if spec_field.kind == "int":
        _refuse_unless(type(value.value) is int and value.value >= spec_field.least, spec_field, value,
                       f"a whole number, {spec_field.least} or more")  # fmt: skip
    elif spec_field.kind == "text":
        _refuse_unless(isinstance(value.value, str) and value.value != "", spec_field, value, "some text")
        texts = [value.value]
    elif spec_field.kind == "flag":
        _refuse_unless(isinstance(value.value, bool), spec_field, value, "true or false")
    elif spec_field.kind == "list":
        _refuse_unless(isinstance(value.value, list | tuple) and all(isinstance(v, str) for v in value.value),
                       spec_field, value, "a list of texts")  # fmt: skip
        texts = list(value.value)
    else:
        _refuse_unless(isinstance(value.value, dict), spec_field, value, "a table of KEY = VALUE")
        texts = [f"{key}={_flat(item)}" for key, item in value.value.items()]
    refuse_shapes("\n".join(texts), f"--{spec_field.name}", value.source)
    for text in texts:
        check_text(text, f"--{spec_field.name}", value.source)
    if checks is not None:
        checks(spec_field, value)


def check_text(text: str, what: str, source: str) -> None:
    """Refuse a newline or a NUL: in a script either could turn data into a directive or cut it short."""
    bad = next((name for char, name in (("\n", "newline"), ("\0", "NUL")) if char in text), None)
    if bad:
        raise RequestError(f"{what}: a {bad} is not allowed in {text[:40]!r} ({source})", hint="give one line of text")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise RequestError(f"{what}: half a character in {text[:40]!r} ({source})", hint="give whole text") from None


def parse_time_limit(text: str) -> int | None:
    """Seconds of a time limit in one of sbatch's formats, None for UNLIMITED or 0; raises RequestError for others."""
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
        raise RequestError(f"--time: {text!r} is beyond what Slurm can count", hint="use UNLIMITED for no time limit")
    return total or None  # sbatch takes 0 as no time limit


def gres_gpus(gres: str) -> int | None:
    """The number of GPUs per node that a gres list asks for (``gpu:a100:4`` is 4), None where it names none."""
    counts = [int(m["count"] or 1) for part in re.split(r",(?![^(]*\))", gres) if (m := _GRES_GPU.fullmatch(part))]
    return sum(counts) if counts else None


def sbatch_option(argument: str) -> str:
    """The long name of the option that an sbatch argument sets, or an empty text for a bare value."""
    if argument.startswith("--"):
        return argument[2:].split("=", 1)[0]
    if len(argument) > 1 and argument.startswith("-"):
        letter = argument[1:].lstrip(_SHORT_FLAGS)[:1] or argument[1]
        return _SHORT_SBATCH.get(letter, letter)
    return ""


def _flat(item: Any) -> str:
    return " ".join(str(one) for one in item) if isinstance(item, list | tuple) else str(item)


def _refuse_unless(good: bool, spec_field: Field, value: Value, wanted: str) -> None:
    if not good:
        raise RequestError(f"--{spec_field.name}: {value.value!r} is not {wanted} ({value.source})")


def _check_sbatch_args(spec_field: Field, value: Value) -> None:
    for argument in value.value:
        option = sbatch_option(argument)
        if not option:
            raise RequestError(
                f"--sbatch-arg: {argument!r} is not an option ({value.source})",
                hint="write it in one word: --sbatch-arg=--switches=1",
            )
        # sbatch accepts any unambiguous beginning of a long option, so a beginning of a taken one is taken
        taken = next(
            (
                t
                for t in TAKEN_SBATCH_OPTIONS
                if t == option or (len(option) > 1 and t.startswith(option) and option not in FIELD)
            ),
            None,
        )
        if taken:
            raise RequestError(
                f"--sbatch-arg: {argument!r} would undo what clusterrun relies on",
                hint=f"use {TAKEN_SBATCH_OPTIONS[taken]}",
            )


def _check_env(spec_field: Field, value: Value) -> None:
    for key, text in value.value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key, re.ASCII):
            raise RequestError(f"--env: {key!r} is not the name of a variable ({value.source})")
        if not isinstance(text, str):
            raise RequestError(
                f"--env: the value of {key} must be a text ({value.source})", hint=f'write {key} = "{text}"'
            )
        if _OWN_VARIABLES.fullmatch(key):
            raise RequestError(f"--env: {key} is set by clusterrun itself ({value.source})", hint="leave it out")
        if _BASH_VARIABLES.fullmatch(key):
            raise RequestError(f"--env: {key} is bash's own and cannot be set ({value.source})", hint="leave it out")
        refuse_named(key, text, "--env", value.source)


def _check_setup(spec_field: Field, value: Value) -> None:
    refuse_assignments(value.value, "--setup", value.source)


def _check_name(spec_field: Field, value: Value) -> None:
    if len(value.value.encode("utf-8", "surrogateescape")) > NAME_BYTES:
        raise RequestError(
            f"--job-name: longer than {NAME_BYTES} bytes: {value.value!r} ({value.source})", hint="shorten it"
        )


def _check_scheduler(spec_field: Field, value: Value) -> None:
    _refuse_unless(value.value in ("slurm", "local", "auto"), spec_field, value, "slurm, local or auto")


def _check_mem(spec_field: Field, value: Value) -> None:
    _refuse_unless(_MEM.fullmatch(value.value) is not None, spec_field, value, "a size such as 64G")


def _check_port(spec_field: Field, value: Value) -> None:
    _refuse_unless(1024 <= value.value <= 65535, spec_field, value, "a port between 1024 and 65535")


def _check_time(spec_field: Field, value: Value) -> None:
    parse_time_limit(value.value)


_CHECKS = {
    "sbatch-arg": _check_sbatch_args,
    "env": _check_env,
    "setup": _check_setup,
    "job-name": _check_name,
    "scheduler": _check_scheduler,
    "mem": _check_mem,
    "master-port": _check_port,
    "time": _check_time,
}
