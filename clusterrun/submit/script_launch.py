"""Find the launcher in a script that a command starts, and the line that does the same; or refuse it.

A script is a shell script, ``bash -c …``, ``sbatch job.sh``, or a wrapper's line (``uv run torchrun …``). What it runs
may be another script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.config.files import is_file
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launcher_options import SBATCH, SRUN, parse_options
from clusterrun.submit.launchers import (
    STARTER_VARIABLES,
    Launch,
    Place,
    combine,
    find_launch,
    launcher_of,
    parse_launch,
    prefix_length,
    variables_before,
)
from clusterrun.submit.python_line import is_python, split_python
from clusterrun.submit.script_source import read_text

if TYPE_CHECKING:
    from clusterrun.submit.shell_scripts import ShellScript

_SHELL = re.compile(r"(ba|z|k|da)?sh")
_SHEBANG = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(\S*/)?(ba|z|k|da)?sh\b")
_WRAPPERS = ("uv", "poetry", "pipenv", "pdm", "conda", "mamba", "micromamba", "singularity", "apptainer", "numactl",
             "taskset", "timeout", "nice", "nsys", "stdbuf", "env",
             "time")  # fmt: skip
_PACKAGES = ("deepspeed", "composer")
"""Launchers that are named as a package, an environment or a group may be."""
_MOST = 50
"""The maximum number of scripts that are read because one names another."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script in a command: its name, text and arguments, and sbatch's typed options (None without sbatch)."""

    name: str
    text: str
    arguments: Sequence[str] = ()
    sbatch: Sequence[str] | None = None
    wrapper: bool = False


def script_of(words: Sequence[str], cwd: Path) -> Script | None:
    """Return the script that a command starts, or None. Raises RequestError if sbatch's script is missing."""
    words = words[prefix_length(words) :]
    if not words:
        return None
    first, rest = Path(words[0]).name, list(words[1:])
    if first in _WRAPPERS:
        at = _wrapped_launcher(words)
        return None if at is None else Script(words[0], shlex.join(words[at:]), wrapper=True)
    if first == "sbatch":
        return _batch_script(rest, cwd)
    if _SHELL.fullmatch(first):
        return _shell_script(words, cwd)
    text = read_text(cwd / words[0])
    return Script(words[0], text, rest) if first.endswith(".sh") or _SHEBANG.match(text) else None


def _batch_script(words: list[str], cwd: Path) -> Script:
    typed, program = parse_options("sbatch", SBATCH, words)
    options = words[: len(words) - len(program)]
    wrapped = next((one.value for one in typed if one.option.kind == "wrap"), None)
    if wrapped is not None:
        return Script("--wrap", wrapped, (), options)
    if not program or not is_file(cwd / program[0]):
        raise RequestError(f"sbatch: no such script: {' '.join(program[:1])}")
    return Script(program[0], read_text(cwd / program[0]), program[1:], options)


def _shell_script(words: Sequence[str], cwd: Path) -> Script | None:
    """Return the script of ``bash x.sh`` or ``bash -c …``."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        if "c" in rest[0] and not rest[0].startswith("--"):
            return Script(shlex.join(words[:2]), "".join(rest[1:2]), rest[3:])
        rest = rest[1:]
    return Script(rest[0], read_text(cwd / rest[0]), rest[1:]) if rest else None


def _wrapped_launcher(words: Sequence[str]) -> int | None:
    """Return where the launcher begins in a wrapper's line (``uv run torchrun …``), None if it starts none."""
    for at in range(1, len(words)):
        if launcher_of(words[at:]) is not None and not _is_value(words, at):
            return at
        if words[at].endswith(".py") or is_python(words[at]):
            return None  # the program: the rest is its arguments
    return None


def _is_value(words: Sequence[str], at: int) -> bool:
    """Return whether a launcher's name may be the value of the option before it: ``uv run --with deepspeed x.py``."""
    if words[at - 1] == "--" or not words[at - 1].startswith("-"):
        return False
    return words[at] in _PACKAGES or any(is_python(word) for word in words[at + 1 : at + 2])


def parse(script: Script, place: Place, seen: dict[str, bool] | None = None) -> ShellScript:
    """Parse a script; its command is a launcher's line, or starts another script that has one.

    ``seen`` is whether the texts that were read before have such a line; it is not known yet of those being read.
    """
    from clusterrun.submit.shell_scripts import parse_script  # most commands start no script

    known = {} if seen is None else seen
    known[script.text] = False

    def is_command(words: Sequence[str]) -> bool:
        rest = words[prefix_length(words) :]
        if not rest or {"--version", "--help", "-h"} & {*rest}:
            return False
        return _starts_ranks(words, rest, script) or _runs_launcher(rest, place, known)

    parsed = parse_script(script.text, script.arguments, is_command, script.name, place.environ)
    known[script.text] = bool(parsed.command)
    return parsed


def _starts_ranks(words: Sequence[str], rest: Sequence[str], script: Script) -> bool:
    """Return whether a line starts a launcher, or in a batch script Python; ``rest`` is it without variables."""
    if launcher_of(rest) is not None or STARTER_VARIABLES & variables_before(words).keys():
        return True
    return script.sbatch is not None and is_python(rest[0])


def _runs_launcher(rest: Sequence[str], place: Place, known: dict[str, bool]) -> bool:
    """Return whether a line runs a script with a launcher in it."""
    inner = script_of(rest, place.cwd) if rest[0] != "sbatch" else None
    if inner is None:
        return False
    if inner.text not in known and len(known) < _MOST:
        parse(inner, place, known)
    return known.get(inner.text, False)


def launch_in(
    script: Script, parsed: ShellScript, place: Place, outer: Launch | None = None, around: tuple[str, ...] = ()
) -> Launch:
    """Return what a parsed script asks for; if it starts no launcher, one process.

    What the scripts inside it do is added to ``parsed``; ``around`` are the texts of those around it. Raises
    RequestError for a line that cannot be understood.
    """
    outer = _with_directives(script, parsed, place, outer)
    command = _without_srun(parsed.command) if parsed.loop else parsed.command
    launch = find_launch(command, place, outer)
    inner = script_of(launch.program if launch else command[prefix_length(command) :], place.cwd)
    if inner is None or inner.text in (*around, script.text) or not (inside := parse(inner, place)).command:
        found = launch or _one_process(script, command, outer)
    else:
        found = launch_in(inner, inside, place, launch or outer, (*around, script.text))
        _absorb(parsed, inside, inner)
    found.env = parsed.env | found.env
    if parsed.setup and command:
        found.options["setup"] = Value(parsed.setup, "--setup")
    return found


def _with_directives(script: Script, parsed: ShellScript, place: Place, outer: Launch | None) -> Launch | None:
    directives = [*parsed.directives, *(script.sbatch or ())]
    if not directives:
        return outer
    asked = parse_launch("#SBATCH", directives, place)
    return combine(outer, asked) if outer is not None else asked


def _without_srun(command: Sequence[str]) -> list[str]:
    """Return a command without the srun of one pass of a loop, whose options are about that pass (``-w $node``)."""
    start = prefix_length(command)
    named = launcher_of(command[start:])
    if named is None or named[0] != "srun":
        return list(command)
    return [*command[:start], *parse_options("srun", SRUN, named[1])[1]]


def _one_process(script: Script, command: Sequence[str], outer: Launch | None) -> Launch:
    launch = Launch("python", split_python(command)[1] or ["train.py"])
    if command:
        launch.ranks = Value(1, f"--tasks-per-node of {script.name} (one process)")
    return combine(outer, launch) if outer is not None else launch


def _absorb(parsed: ShellScript, inside: ShellScript, inner: Script) -> None:
    """Add what a script inside another does to the outer one."""
    parsed.env |= inside.env
    parsed.setup += inside.setup
    parsed.lost += [f"{number} of {inner.name}" for number in inside.lost]
    parsed.exact = parsed.exact and inside.exact and not inner.wrapper
    parsed.loop, parsed.output = parsed.loop or inside.loop, parsed.output or inside.output


def text_of_all(script: Script, cwd: Path) -> str:
    """Return the texts of a script and of the shell scripts that it names, and those that they name."""
    texts = {script.name: script.text}
    waiting = [script.text]
    while waiting and len(texts) < _MOST:
        for name in re.findall(r"[\w./-]+\.(?:sh|bash|env)\b", waiting.pop())[:_MOST]:
            if name not in texts:
                texts[name] = read_text(cwd / name)
                waiting.append(texts[name])
    return "\n".join([*texts.values(), shlex.join(script.arguments)])
