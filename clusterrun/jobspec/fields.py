"""The checks of the values of options, each of which carries its source for error messages. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any

from clusterrun.base.errors import RequestError, from_source
from clusterrun.base.fields import FIELD, NAME_BYTES, Field, Kind
from clusterrun.base.job import is_reserved
from clusterrun.base.units import parse_duration, parse_time_limit
from clusterrun.jobspec.secrets import refuse_assignments, refuse_named, refuse_shapes

HOLD = "30m"
"""How long --on-failure hold keeps the nodes."""
EVENTS = ("started", "first-step", "stalled", "restarted", "stopped", "failed", "done")
"""What --notify-on chooses from; ``worker/job/notify.py`` sends them."""


#: sbatch options that conflict with those that clusterrun sets, and what to use instead.
TAKEN_SBATCH_OPTIONS: dict[str, str] = {
    "job-name": "use --job-name",
    "comment": "use --comment",
    "output": "remove this option; stdout goes to logs/train_JOBID.out",
    "error": "remove this option; stderr goes to logs/train_JOBID.err",
    "open-mode": "remove this option; clusterrun always appends to the logs",
    "parsable": "remove this option; clusterrun reads the job id itself",
    "wait": "use --wait",
    "wrap": "use -- SCRIPT",
    "test-only": "use --dry-run",
    "array": "use --array",
    "nodes": "use --nodes",
    "ntasks": "use --nodes and --tasks-per-node",
    **{f"ntasks-per-{part}": "use --tasks-per-node" for part in ("node", "core", "gpu", "socket", "tres")},
    "tasks-per-node": "use --tasks-per-node",
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), "use --gpus-per-node"),
    "chdir": "cd to that folder before you submit",
    **dict.fromkeys(("export", "export-file"), "use --env KEY=VALUE"),
    **{f"container-{part}": f"use --container-{part}" for part in ("image", "mounts")},
    "requeue": "use --requeue",
    "no-requeue": "use --no-requeue",
    # these print a text and exit 0 without a job (observed on 22.05)
    **dict.fromkeys(("help", "usage"), "run man sbatch"),
    "version": "run sbatch --version",
    **dict.fromkeys(("clusters", "cluster"), "set the environment variable SLURM_CLUSTERS"),
}
#: The values of ``--launcher``. All but srun start the ranks of a node from one task.
LAUNCHERS = ("srun", "torchrun", "accelerate", "deepspeed", "none")
_SHORT_SBATCH = {"J": "job-name", "o": "output", "e": "error", "W": "wait", "a": "array", "N": "nodes", "n": "ntasks",
                 "G": "gpus", "D": "chdir", "M": "clusters", "h": "help", "V": "version"}  # fmt: skip
_SHORT_FLAGS = "HIkOQsv"  # they take no argument, so another option may follow: -HJname sets the name
_OWN_VARIABLES = re.compile(
    r"(CLUSTERRUN(?!_SWEEP_)|CR|SLURM|SBATCH|TORCHELASTIC(?!_USE_AGENT_STORE$))_.*|ROLE_(NAME|RANK|WORLD_SIZE)|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|NODE_RANK|MASTER_ADDR|MASTER_PORT"
)
# Bash's own: an assignment is ignored, fails, or (IFS) changes how the script is parsed (observed on 5.2)
_BASH_VARIABLES = re.compile(
    r"_|BASH(OPTS|PID)|BASH_(ALIASES|ARGC|ARGV|CMDS|COMMAND|LINENO|SOURCE|SUBSHELL|VERSINFO)|DIRSTACK|EPOCH(REALTIME|SECONDS)"
    r"|E?UID|FUNCNAME|GROUPS|HISTCMD|IFS|LINENO|OPTIND|PIPESTATUS|PPID|S?RANDOM|SECONDS|SHELLOPTS|SHLVL"
)
_MEM = re.compile(r"\d+(?:[KMGT]B?)?", re.ASCII | re.IGNORECASE)
_GRES_GPU = re.compile(
    r"(?:gres[:/])?gpu(?::(?!\d+[KMGTP]?(?:\(|$))[^:,()=]+)?(?::(?P<count>\d{1,9}))?(?:\([^)]*\))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its source (``--nodes``, ``jobs/sft.toml``, ``SBATCH_ACCOUNT``, ``default`` …).

    ``place`` finds the file and line of a value from a file, for a message.
    """

    value: Any
    source: str
    place: Callable[[], str] | None = attribute(default=None, compare=False, repr=False)


def check_value(field: Field, value: Value) -> None:
    """Raise RequestError for an invalid value, with its source: ``jobs/sft.toml:3``."""
    try:
        _check_value(field, value)
    except RequestError:
        if value.place is None:
            raise
        _check_value(field, Value(value.value, value.place()))


def _check_value(field: Field, value: Value) -> None:
    expected, is_good = _KINDS[field.kind]
    _require(is_good(value.value), field, value, expected)
    if field.kind == "int":
        _require(value.value >= field.least, field, value, f"at least {field.least}")
    texts = _texts(value.value)
    refuse_shapes("\n".join(texts), f"--{field.name}", value.source)
    for text in texts:
        check_text(text, f"--{field.name}", value.source)
    if rule := _RULES.get(field.name):
        _require(bool(rule[0](value.value)), field, value, rule[1])
    elif check := _CHECKS.get(field.name):
        check(value.value, value.source)


def _texts(given: Any) -> list[str]:
    """Return the texts of a value of any kind; an item of a table is ``KEY=VALUE``."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list | tuple):
        return list(given)
    if isinstance(given, dict):
        return [f"{key}={_joined(item)}" for key, item in given.items()]
    return []


def _joined(item: Any) -> str:
    return " ".join(map(str, item)) if isinstance(item, list | tuple) else str(item)


def check_text(text: str, what: str, source: str) -> None:
    """Raise RequestError for a newline or NUL: in a script it could add a directive or cut the text short."""
    bad = next((name for char, name in (("\n", "newline"), ("\0", "NUL")) if char in text), None)
    if bad:
        message = f"{what}: a {bad} is not allowed in {text[:40]!r}{from_source(source, what)}"
        raise RequestError(message, hint=f"remove the {bad}")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        message = f"{what}: invalid Unicode in {text[:40]!r}{from_source(source, what)}"
        raise RequestError(message, hint="use valid UTF-8") from None


def parse_hold(text: str, source: str = "--on-failure") -> int:
    """Parse the value of --on-failure, ``hold`` or ``hold=TIME``. Returns seconds. Raises RequestError."""
    word, separator, time = text.partition("=")
    if word != "hold" or bool(separator) != bool(time):
        message = f"--on-failure must be hold or hold=TIME, not {text[:40]!r}{from_source(source, '--on-failure')}"
        raise RequestError(message, hint="--on-failure hold=30m")
    return parse_duration(time or HOLD, "--on-failure", source)


def gres_gpus(gres: str) -> int | None:
    """Return the number of GPUs in a gres list (``gpu:a100:4`` is 4), or None if it has no GPU entry."""
    counts = [int(m["count"] or 1) for part in _gres_parts(gres) if (m := _GRES_GPU.fullmatch(part))]
    return sum(counts) if counts else None


def has_known_gpus(gres: str) -> bool:
    """Return whether ``gres_gpus`` counts each GPU of a gres list; Slurm also takes other forms (``gpu:1K``)."""
    named = [part for part in _gres_parts(gres) if "gpu" in part.lower()]
    return bool(named) and all(map(_GRES_GPU.fullmatch, named))


def _gres_parts(gres: str) -> list[str]:
    return re.split(r",(?![^(]*\))", gres)


def sbatch_option(argument: str) -> str:
    """Return the long name of the option that an sbatch argument sets, or an empty text for a bare value."""
    if argument.startswith("--"):
        return argument[2:].split("=", 1)[0]
    if len(argument) > 1 and argument.startswith("-"):
        letter = argument[1:].lstrip(_SHORT_FLAGS)[:1] or argument[1]
        return _SHORT_SBATCH.get(letter, letter)
    return ""


def is_own_variable(name: str) -> bool:
    """Return whether clusterrun sets this variable itself (``MASTER_PORT``, ``RANK``)."""
    return _OWN_VARIABLES.fullmatch(name) is not None


def _require(good: bool, field: Field, value: Value, expected: str) -> None:
    flag = f"--{field.name}"
    if not good:
        raise RequestError(f"{flag} must be {expected}, not {value.value!r}{from_source(value.source, flag)}")


def _check_sbatch_args(arguments: Iterable[str], source: str) -> None:
    for argument in arguments:
        option = sbatch_option(argument)
        if not option:
            raise RequestError(
                f"--sbatch-arg: {argument!r} is not an option{from_source(source, '--sbatch-arg')}",
                hint="write the option and its value together: --sbatch-arg=--switches=1",
            )
        # sbatch accepts any unambiguous prefix of a long option
        is_prefix = len(option) > 1 and option not in FIELD
        taken = next((t for t in TAKEN_SBATCH_OPTIONS if t == option or (is_prefix and t.startswith(option))), None)
        if taken:
            raise RequestError(
                f"--sbatch-arg: {argument!r} is not supported: it conflicts with clusterrun's own options",
                hint=TAKEN_SBATCH_OPTIONS[taken],
            )


def _check_env(variables: Mapping[str, Any], source: str) -> None:
    where = from_source(source, "--env")
    for key, text in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key, re.ASCII):
            raise RequestError(f"--env: {key!r} is not a valid variable name{where}")
        if not isinstance(text, str):
            raise RequestError(f"--env: the value of {key} must be a string{where}", hint=f'write {key} = "{text}"')
        if is_own_variable(key):
            raise RequestError(f"--env: {key} is set by clusterrun{where}", hint=f"remove {key}")
        if _BASH_VARIABLES.fullmatch(key):
            raise RequestError(f"--env: {key} is reserved by bash{where}", hint=f"remove {key}")
        refuse_named(key, text, "--env", source)


def _check_secrets(names: Iterable[str], source: str) -> None:
    where = from_source(source, "--secret")
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            wrong = "must be given without a value" if "=" in name else "is not a variable name"
            message = f"--secret: {name.partition('=')[0][:40]!r} {wrong}{where}"
            hint = "export the variable in your shell and give only its name: --secret HF_TOKEN"
            raise RequestError(message, hint=hint)
        if is_own_variable(name) or _BASH_VARIABLES.fullmatch(name):
            raise RequestError(f"--secret: {name} is set by clusterrun or bash{where}", hint=f"remove {name}")


def _check_name(name: str, source: str) -> None:
    if is_reserved(name):
        where = from_source(source, "--job-name")
        message = f"--job-name {name!r} is reserved: `clusterrun status {name}` would show another job{where}"
        raise RequestError(message, hint="use another name")
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES:
        message = f"--job-name: {name!r} is longer than {NAME_BYTES} bytes{from_source(source, '--job-name')}"
        raise RequestError(message, hint="use a shorter name")


def _check_events(events: Any, source: str) -> None:
    for event in events:
        if event not in EVENTS:
            message = f"--notify-on: no such event: {event[:40]!r}{from_source(source, '--notify-on')}"
            raise RequestError(message, hint=f"choose from {', '.join(EVENTS)}")


def is_list_of_texts(value: Any) -> bool:
    """Return whether a value is a list of strings."""
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def typed_option(name: str, value: Any, quote: Callable[[str], str] = shlex.quote) -> list[str]:
    """Return an option as it is typed, once for each of its values."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name} {quote(f'{key}={text}')}" for key, text in value.items()]
    if isinstance(value, list | tuple):
        joint = "=" if name == "sbatch-arg" else " "  # its values begin with hyphens
        return [f"--{name}{joint}{quote(str(text))}" for text in value]
    return [f"--{name} {quote(str(value))}"]


_KINDS: dict[Kind, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a whole number", lambda given: type(given) is int),
    "text": ("a non-empty string", lambda given: isinstance(given, str) and given != ""),
    "flag": ("true or false", lambda given: isinstance(given, bool)),
    "list": ("a list of strings", is_list_of_texts),
    "map": ("a table of KEY = VALUE", lambda given: isinstance(given, dict)),
}
_SIGNAL = re.compile(r"(?:SIG)?(?:TERM|INT|HUP|USR1|USR2)(?:@\d{1,5})?", re.ASCII)
_RULES: dict[str, tuple[Callable[[Any], object], str]] = {
    "scheduler": (("slurm", "local", "auto").__contains__, "slurm, local or auto"),
    "in-job": (re.compile("[1-9][0-9]{0,17}|none", re.ASCII).fullmatch, "the id of a job, such as 123, or none"),
    "launcher": (LAUNCHERS.__contains__, f"{', '.join(LAUNCHERS[:-1])} or {LAUNCHERS[-1]}"),
    "signal": (_SIGNAL.fullmatch, "TERM, INT, HUP, USR1 or USR2, with or without seconds (TERM@300)"),
    "hang-timeout": (lambda seconds: seconds == 0 or seconds >= 10, "0 or at least 10"),
    # with longer ones, a rank between two records would look as if it hung
    "progress-interval": (range(1, 11).__contains__, "from 1 to 10 seconds"),
    "container-runtime": (("pyxis", "apptainer").__contains__, "pyxis or apptainer"),
    "mem": (_MEM.fullmatch, "a size such as 64G"),
    "master-port": (range(1024, 65536).__contains__, "a port between 1024 and 65535"),
}
_CHECKS: dict[str, Callable[[Any, str], object]] = {
    "sbatch-arg": _check_sbatch_args,
    "env": _check_env,
    "secret": _check_secrets,
    "setup": lambda lines, source: refuse_assignments(lines, "--setup", source),
    "job-name": _check_name,
    "time": lambda text, source: parse_time_limit(text, "--time", source),
    "total-time": lambda text, source: parse_duration(text, "--total-time", source),
    "on-failure": parse_hold,
    "notify-on": _check_events,
}
