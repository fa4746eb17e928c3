"""Refuse a shell script or batch script that starts ranks itself, with the line that does the same."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterrun.config.files import is_file
from clusterrun.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.secrets import refuse_shapes
from clusterrun.submit.launch_shape import Values, format_line, job_options
from clusterrun.submit.launcher_options import SBATCH, Typed, parse_options
from clusterrun.submit.launchers import (
    Launch,
    Place,
    combine,
    find_launch,
    join_options,
    launcher_of,
    parse_launch,
    prefix_length,
    without_python,
)
from clusterrun.submit.script_source import read_text
from clusterrun.submit.shell_scripts import ShellScript, parse_script

_SHELL = re.compile(r"(ba|z|k|da)?sh")
_SHEBANG = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(\S*/)?(ba|z|k|da)?sh\b")
_WRAPPERS = ("uv", "poetry", "pipenv", "pdm", "conda", "mamba", "micromamba", "singularity", "apptainer", "numactl",
             "taskset", "timeout", "nice", "nsys", "stdbuf")  # fmt: skip
_OF_RANKS = ("tasks-per-node", "env", "setup")  # options that a program which starts its own ranks sets itself


@dataclass(frozen=True, slots=True)
class _Found:
    """A script in a command: its name, text and arguments, and sbatch's typed options (None without sbatch)."""

    name: str
    text: str
    arguments: list[str]
    sbatch: list[str] | None = None


def refuse_scripts(
    words: Sequence[str], given: Values, below: Values, place: Place, outer: tuple[Launch, Values] | None = None
) -> None:
    """Raise RequestError if a command is sbatch, a shell script that starts a launcher, or a wrapper around one.

    ``outer`` is the srun that starts the command, and the options without those of srun.
    """
    words = list(words)
    if Path(words[0]).name in _WRAPPERS:
        at = _wrapped_launcher(words)
        if at is not None and (named := launcher_of(words[at:])) is not None:
            shape: Values = {}
            with contextlib.suppress(RequestError):
                if (launch := find_launch(words[at:], place)) is not None:
                    shape = {n: v for n, v in job_options(launch, given, below).items() if n not in _OF_RANKS}
            line = format_line({**given, **shape, "launcher": Value("none", "")}, words)
            raise RequestError(f"{words[0]} starts {named[0]}, which starts its own ranks", hint=line)
    script = _script_of(words, place.cwd)
    if script is None:
        return
    batch = script.sbatch is not None

    def is_command(one: Sequence[str]) -> bool:
        rest = one[prefix_length(one) :]
        if {"--version", "--help", "-h"} & {*rest}:
            return False
        return launcher_of(rest) is not None or (batch and without_python(rest) != list(rest))

    parsed = parse_script(script.text, script.arguments, is_command)
    if batch:
        raise RequestError(_batch_message(script, parsed), hint=_line(script, parsed, words, given, below, place))
    if parsed.command:
        named = launcher_of(parsed.command[prefix_length(parsed.command) :])
        raise RequestError(
            f"{script.name} starts {named[0] if named else 'ranks'}, which starts its own ranks",
            hint=_line(script, parsed, words, given, below, place, outer),
        )


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


def _batch_message(script: _Found, parsed: ShellScript) -> str:
    """Return why a batch script is refused, and what of it the line does not have."""
    parts = [f"sbatch {script.name} is refused, since clusterrun submits jobs itself"]
    if not parsed.command:
        parts.append("no line that starts the training was found")
    if parsed.lost:
        parts.append(f"not in the line below: line {', '.join(map(str, dict.fromkeys(parsed.lost)))}")
    return "; ".join(parts)


def _script_of(words: Sequence[str], cwd: Path) -> _Found | None:
    first, rest = Path(words[0]).name, list(words[1:])
    if first == "sbatch":
        typed, program = parse_options("sbatch", SBATCH, rest)
        options = [word for one in typed if one.option.kind != "wrap" for word in _words_of(one)]
        wrapped = next((one.value for one in typed if one.option.kind == "wrap"), None)
        if wrapped is not None:
            return _Found("--wrap", wrapped, [], options)
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


def _words_of(one: Typed) -> list[str]:
    return [one.spelled, one.value] if one.option.values == 1 else [f"{one.spelled}={one.value}".rstrip("=")]


def _line(
    script: _Found, parsed: ShellScript, words: Sequence[str], given: Values, below: Values, place: Place,
    outer: tuple[Launch, Values] | None = None,
) -> str:  # fmt: skip
    """Return the line that does what a script does."""
    launch = None
    with contextlib.suppress(RequestError):
        launch = find_launch(parsed.command, place)
    if launch is None and script.sbatch is None:
        return format_line({**given, "launcher": Value("none", "")}, words)
    if launch is None:  # one process, or nothing that is known
        launch = Launch("python", without_python(parsed.command) or ["bash", script.name])
        if not parsed.command:
            parsed.setup, launch.options["launcher"] = [], Value("none", "")
        else:
            launch.ranks = Value(1, f"--tasks-per-node: {script.name} starts one process")
    if outer is not None:
        launch, given = combine(outer[0], launch), outer[1]
    directives = [*parsed.directives, *(script.sbatch or ())]
    if directives:
        launch = combine(parse_launch("#SBATCH", directives, place), launch)
    if parsed.env:
        own = launch.options["env"].value if "env" in launch.options else {}
        launch.options["env"] = Value(parsed.env | own, "--env")
    if parsed.setup:
        launch.options["setup"] = Value(parsed.setup, "--setup")
    options = join_options(given, job_options(launch, given, below))
    values = [str(value.value) for name, value in launch.options.items() if name != "setup"]
    unknown = any("$" in word for word in [*launch.program, *values])
    if script.sbatch is None and (launch.refusal or unknown or parsed.lost or not parsed.exact):
        kept = {**{name: value for name, value in options.items() if name not in _OF_RANKS}, **given}
        if outer is not None and outer[0].variables:
            kept = join_options(kept, {"env": Value(outer[0].variables, "--env")})
        return format_line({**kept, "launcher": Value("none", "")}, words)
    refuse_shapes(" ".join(launch.program), f"the launcher's line in {script.name}", "read from the script")
    if launch.refusal and launch.instead.get("launcher") != "none":
        options |= {name: Value(value, "") for name, value in launch.instead.items()}
    return launch.folder + format_line(options, launch.program, _quote)


def _quote(word: str) -> str:
    """Quote a word for the shell; a variable of the environment stays one."""
    if re.search(r"\$\{?[A-Za-z_]", word) and not re.search(r"[\"\\`!']", word):
        return f'"{word}"'
    return shlex.quote(word)
