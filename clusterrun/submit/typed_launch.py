"""Translate another launcher's line into options of clusterrun and the program of each rank, or refuse it.

A shell script or batch script that starts ranks itself is refused with the line that does the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.config.files import is_file
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.secrets import refuse_shapes
from clusterrun.submit.launch_shape import Values, format_line, format_options, job_options, refused_line
from clusterrun.submit.launcher_options import SBATCH, parse_options
from clusterrun.submit.launchers import (
    Launch,
    Place,
    add_local_rank,
    combine,
    find_launch,
    join_options,
    launcher_of,
    parse_launch,
    prefix_length,
    variables_before,
    without_python,
)
from clusterrun.submit.script_source import read_text, source_of, wanted_local_rank

if TYPE_CHECKING:
    from clusterrun.submit.shell_scripts import ShellScript

_SHELL = re.compile(r"(ba|z|k|da)?sh")
_SHEBANG = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(\S*/)?(ba|z|k|da)?sh\b")
_WRAPPERS = ("uv", "poetry", "pipenv", "pdm", "conda", "mamba", "micromamba", "singularity", "apptainer", "numactl",
             "taskset", "timeout", "nice", "nsys", "stdbuf")  # fmt: skip
_OF_RANKS = ("tasks-per-node", "env", "setup")  # options that a program which starts its own ranks sets itself


def translate(
    words: Sequence[str], given: Values, below: Values, place: Place, notify: Callable[[str], None]
) -> tuple[tuple[str, ...], dict[str, Value]]:
    """Return the command that each rank runs, and the options that a launcher's line sets.

    ``given`` are the typed options and those of the job file, which a launcher's line must not contradict; ``below``
    are those of the profiles. With ``--launcher`` other than srun the command stays as it is. Raises RequestError, with
    the line to type, for a line that cannot be translated exactly.
    """
    launcher = given.get("launcher") or below.get("launcher")
    other = "" if launcher is None or launcher.value == "srun" else str(launcher.value)
    launch = None if other == "none" else find_launch(words, place)
    before, program = words[: prefix_length(words)], words[prefix_length(words) :]
    if program and before and "=" in before[0] and (other or launch is None):
        variables = variables_before(words)
        env = {"env": Value(variables, "--env from the variables before the program")} if variables else {}
        rest, options = translate(program, join_options(given, env), below, place, notify)
        if env:
            notify("environment variables before the program are passed as: " + format_options(env))
        if ignored := {word.partition("=")[0] for word in before if "=" in word} - variables.keys():
            notify(f"ignoring {', '.join(sorted(ignored))}: set by the scheduler or by clusterrun")
        return rest, {**options, **env}
    if other:
        if launch is not None and launch.program:
            line = format_line(join_options(given, job_options(launch, given, below)), launch.program)
            raise RequestError(f"--launcher {other} would start {launch.title} once per rank", hint=line)
        return tuple(words), {}
    if launch is None:
        if launcher is None:  # with --launcher srun the user knows that the script fits one rank per GPU
            _refuse_scripts(words, given, below, place)
        return with_local_rank(words, given, below, place, notify), {}
    if not launch.program:
        raise RequestError(f"{launch.title}: no script or program given", hint="clusterrun submit -- train.py")
    options = job_options(launch, given, below)
    all_options = join_options(given, options)
    if launch.refusal:
        raise RequestError(launch.refusal, hint=refused_line(launch, all_options, given))
    # without defaults such as "srun without --gres has no GPUs", which a launcher in the script may contradict
    explicit = {name: one for name, one in all_options.items() if not one.source.startswith(("--gres:", "--nodes:"))}
    if launch.title == "srun" and "tasks-per-node" in explicit and explicit["tasks-per-node"].value == 1:
        del explicit["tasks-per-node"]  # a script with a launcher in it, once per node
    _refuse_scripts(launch.program, explicit, below, place)
    own = f"   (left out: {', '.join(dict.fromkeys(launch.own))})" if launch.own else ""
    notify(f"translated {launch.title} to: {format_line(all_options, launch.program)}{own}")
    if not {"gpus-per-node", "gres", "tasks-per-node"} & {*all_options, *below}:
        notify(
            f"the {launch.title} command does not set the number of GPUs; to use more than one per node,"
            " add --gpus-per-node N"
        )
    return tuple(launch.program), options


def with_local_rank(
    words: Sequence[str], given: Values, below: Values, place: Place, notify: Callable[[str], None]
) -> tuple[str, ...]:
    """Return a command with the local rank as an argument, if its script needs it and there are several ranks."""
    nodes, gpus, tasks = (
        (given.get(name) or below.get(name) or Value(default, "")).value
        for name, default in (("nodes", 1), ("gpus-per-node", -1), ("tasks-per-node", 1))
    )
    program = without_python(words)
    option = wanted_local_rank(source_of(program, place.cwd))
    typed = any(word.partition("=")[0] in ("--local_rank", "--local-rank") for word in program)
    if not option or typed or (nodes == tasks == 1 and gpus in (0, 1)):
        return tuple(words)
    python = words[: len(words) - len(program)]
    add_local_rank(program, option)
    notify(f"adding {option}={{local_rank}}: the script declares this option and does not read LOCAL_RANK")
    return (*python, *program)


@dataclass(frozen=True, slots=True)
class _Found:
    """A script in a command: its name, text and arguments, and sbatch's typed options (None without sbatch)."""

    name: str
    text: str
    arguments: Sequence[str] = ()
    sbatch: Sequence[str] | None = None
    wrapper: bool = False


def _refuse_scripts(words: Sequence[str], given: Values, below: Values, place: Place) -> None:
    """Raise RequestError if a command is sbatch, a shell script that starts a launcher, or a wrapper around one."""
    script = _script_of(words, place.cwd)
    if script is None:
        return
    from clusterrun.submit.shell_scripts import parse_script  # most commands start no shell script

    def is_command(one: Sequence[str]) -> bool:
        rest = one[prefix_length(one) :]
        if {"--version", "--help", "-h"} & {*rest}:
            return False
        return launcher_of(rest) is not None or (script.sbatch is not None and without_python(rest) != list(rest))

    parsed = parse_script(script.text, script.arguments, is_command)
    if script.sbatch is not None:
        message = f"`sbatch {script.name}` is not supported, since clusterrun submits the job itself"
        if not parsed.command:
            message += "; no line of the script starts the training"
        if parsed.lost:
            lost = list(dict.fromkeys(parsed.lost))
            message += f"; the command below leaves out line{'s'[: len(lost) > 1]} {', '.join(map(str, lost))}"
    elif parsed.command:
        named = launcher_of(parsed.command[prefix_length(parsed.command) :])
        starter = f"the {script.name} command" if script.wrapper or " -" in script.name else script.name
        message = f"{starter} starts {named[0] if named else 'its own ranks'}"
        message += f", but clusterrun would run {starter} once per rank"
    else:
        return
    raise RequestError(message, hint=_line(script, parsed, words, given, below, place))


def _script_of(words: Sequence[str], cwd: Path) -> _Found | None:
    first, rest = Path(words[0]).name, list(words[1:])
    if first in _WRAPPERS:
        at = _wrapped_launcher(words)
        return None if at is None else _Found(words[0], shlex.join(words[at:]), wrapper=True)
    if first == "sbatch":
        typed, program = parse_options("sbatch", SBATCH, rest)
        options = rest[: len(rest) - len(program)]
        wrapped = next((one.value for one in typed if one.option.kind == "wrap"), None)
        if wrapped is not None:
            return _Found("--wrap", wrapped, (), options)
        if not program or not is_file(cwd / program[0]):
            raise RequestError(f"sbatch: no such script: {' '.join(program[:1])}")
        return _Found(program[0], read_text(cwd / program[0]), program[1:], options)
    if _SHELL.fullmatch(first):
        while rest and rest[0].startswith("-"):
            if "c" in rest[0] and not rest[0].startswith("--"):
                return _Found(shlex.join(words[:2]), "".join(rest[1:2]), rest[3:])
            rest = rest[1:]
        return _Found(rest[0], read_text(cwd / rest[0]), rest[1:]) if rest else None
    text = read_text(cwd / words[0])
    return _Found(words[0], text, rest) if first.endswith(".sh") or _SHEBANG.match(text) else None


def _wrapped_launcher(words: Sequence[str]) -> int | None:
    """Return where the launcher begins in a wrapper's line (``uv run torchrun …``), None if it starts none.

    A word after an option may be the option's value (``uv run --with accelerate``), so it does not count.
    """
    for at in range(1, len(words)):
        if launcher_of(words[at:]) is not None and not words[at - 1].startswith("-"):
            return at
        if words[at].endswith(".py") or re.fullmatch(r"python[0-9.]*", Path(words[at]).name):
            return None  # the program: the rest is its arguments
    return None


def _line(script: _Found, parsed: ShellScript, words: Sequence[str], given: Values, below: Values, place: Place) -> str:
    """Return the line that does what a script does."""
    try:
        launch = _launch_of(script, parsed, place)
        options = join_options(given, job_options(launch, given, below))
    except RequestError:
        if script.sbatch is not None:
            raise
        return format_line({**given, "launcher": Value("none", "")}, words)
    values = [str(value.value) for name, value in launch.options.items() if name != "setup"]
    unknown = any("$" in word for word in [*launch.program, *launch.env.values(), *values])
    if script.wrapper or (script.sbatch is None and (launch.refusal or unknown or parsed.lost or not parsed.exact)):
        kept = {**{name: value for name, value in options.items() if name not in _OF_RANKS}, **given}
        return format_line({**kept, "launcher": Value("none", "")}, words)
    refuse_shapes(" ".join(launch.program), f"the launch command in {script.name}")
    if launch.refusal and launch.instead.get("launcher") != "none":
        options |= {name: Value(value, "") for name, value in launch.instead.items()}
    return format_line(options, launch.program, _quote)


def _launch_of(script: _Found, parsed: ShellScript, place: Place) -> Launch:
    """Return what a script asks for; if it starts no launcher, one process."""
    launch = find_launch(parsed.command, place)
    if launch is None:
        launch = Launch("python", without_python(parsed.command) or ["train.py"])
        if parsed.command:
            launch.ranks = Value(1, f"--tasks-per-node of {script.name} (one process)")
    if directives := [*parsed.directives, *(script.sbatch or ())]:
        launch = combine(parse_launch("#SBATCH", directives, place), launch)
    launch.env = parsed.env | launch.env
    if parsed.setup and parsed.command:
        launch.options["setup"] = Value(parsed.setup, "--setup")
    return launch


def _quote(word: str) -> str:
    """Quote a word for the shell; a variable of the environment stays one."""
    if re.search(r"\$\{?[A-Za-z_]", word) and not re.search(r"[\"\\`!']", word):
        return f'"{word}"'
    return shlex.quote(word)
