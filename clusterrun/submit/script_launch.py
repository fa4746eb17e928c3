"""Find the launcher in a script that a command starts, and what it asks for.

A script is a shell script, ``bash -c …``, ``sbatch job.sh``, or a wrapper's line (``uv run torchrun …``). What it runs
may be another script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.config.files import is_file
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launcher_options import SBATCH, SRUN, parse_options
from clusterrun.submit.launcher_table import has_starter_variable, launcher_of, prefix_length
from clusterrun.submit.launchers import Launch, Place, combine, find_launch, parse_launch
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
_NO_START = {"--version", "--help", "-h"}
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
    program, rest = Path(words[0]).name, list(words[1:])
    if program in _WRAPPERS:
        return _wrapped_launcher(words)
    if program == "sbatch":
        return _batch_script(rest, cwd)
    if _SHELL.fullmatch(program):
        return _shell_script(words, cwd)
    text = read_text(cwd / words[0])
    if program.endswith(".sh") or _SHEBANG.match(text):
        return Script(words[0], text, rest)
    return None


def _batch_script(words: list[str], cwd: Path) -> Script:
    typed, program = parse_options("sbatch", SBATCH, words)
    options = words[: len(words) - len(program)]
    for option in typed:
        if option.option.kind == "wrap":
            return Script("--wrap", option.value, (), options)
    if not program or not is_file(cwd / program[0]):
        raise RequestError(f"sbatch: no such script: {' '.join(program[:1])}")
    return Script(program[0], read_text(cwd / program[0]), program[1:], options)


def _shell_script(words: Sequence[str], cwd: Path) -> Script | None:
    """Return the script of ``bash x.sh`` or ``bash -c …``."""
    for at, word in enumerate(words[1:], 1):
        if not word.startswith("-"):
            return Script(word, read_text(cwd / word), words[at + 1 :])
        if "c" in word and not word.startswith("--"):
            return Script(shlex.join(words[:2]), "".join(words[at + 1 : at + 2]), words[at + 3 :])
    return None


def _wrapped_launcher(words: Sequence[str]) -> Script | None:
    """Return the launcher's part of a wrapper's line (``uv run torchrun …``), None if it starts none."""
    for at in range(1, len(words)):
        if launcher_of(words[at:]) is not None and not _is_value(words, at):
            return Script(words[0], shlex.join(words[at:]), wrapper=True)
        if words[at].endswith(".py") or is_python(words[at]):
            return None  # the program: the rest is its arguments
    return None


def _is_value(words: Sequence[str], at: int) -> bool:
    """Return whether a launcher's name may be the value of the option before it: ``uv run --with deepspeed x.py``."""
    before = words[at - 1]
    if before == "--" or not before.startswith("-"):
        return False
    if words[at] in _PACKAGES:
        return True
    return at + 1 < len(words) and is_python(words[at + 1])


def parse(script: Script, place: Place, seen: dict[str, bool] | None = None) -> ShellScript:
    """Parse a script; its command is a launcher's line, or starts another script that has one.

    ``seen`` is whether the texts that were read before have such a line; it is not known yet of those being read.
    """
    from clusterrun.submit.shell_scripts import parse_script  # most commands start no script

    has_command = {} if seen is None else seen
    has_command[script.text] = False

    def is_command(words: Sequence[str]) -> bool:
        rest = words[prefix_length(words) :]
        if not rest or not _NO_START.isdisjoint(rest):
            return False
        return _starts_ranks(words, rest, script) or _runs_launcher(rest, place, has_command)

    parsed = parse_script(script.text, script.arguments, is_command, script.name, place.environ)
    has_command[script.text] = bool(parsed.command)
    return parsed


def _starts_ranks(words: Sequence[str], rest: Sequence[str], script: Script) -> bool:
    """Return whether a line starts a launcher, or in a batch script Python; ``rest`` is it without variables."""
    if launcher_of(rest) is not None or has_starter_variable(words):
        return True
    return script.sbatch is not None and is_python(rest[0])


def _runs_launcher(rest: Sequence[str], place: Place, has_command: dict[str, bool]) -> bool:
    """Return whether a line runs a script with a launcher in it."""
    if rest[0] == "sbatch":
        return False
    inner = script_of(rest, place.cwd)
    if inner is None:
        return False
    if inner.text not in has_command and len(has_command) < _MOST:
        parse(inner, place, has_command)
    return has_command.get(inner.text, False)


def launch_in(script: Script, parsed: ShellScript, place: Place) -> Launch:
    """Return what a parsed script asks for; if it starts no launcher, one process.

    What the scripts inside it do is added to ``parsed``, with the names of all launchers. Raises RequestError for a
    line that cannot be understood.
    """
    layers: list[Launch] = []
    texts: set[str] = set()
    current, inside = script, parsed
    while True:
        texts.add(current.text)
        layers += _directives(current, inside, place)
        command = _command_of(inside)
        launches = _launches_of(command, place)
        layers += launches
        program = launches[-1].program if launches else command[prefix_length(command) :]
        inner = script_of(program, place.cwd)
        if inner is None or inner.text in texts:
            break
        inside = parse(inner, place)
        if not inside.command:
            break
        _absorb(parsed, inside, inner)
        current = inner
    if not launches:
        layers.append(_one_process(current, command))
    parsed.innermost = command
    parsed.titles = {layer.title for layer in layers}
    launch = reduce(combine, layers)
    launch.env = parsed.env | launch.env
    if parsed.setup and command:
        launch.options["setup"] = Value(parsed.setup, "--setup")
    return launch


def _directives(script: Script, parsed: ShellScript, place: Place) -> list[Launch]:
    """Return what the #SBATCH lines of a script and the options typed for sbatch ask for."""
    directives = [*parsed.directives, *(script.sbatch or ())]
    return [parse_launch("#SBATCH", SBATCH, directives, place)] if directives else []


def _launches_of(command: Sequence[str], place: Place) -> list[Launch]:
    """Return the launchers of a line, outermost first: srun and torchrun for ``srun torchrun …``."""
    launches: list[Launch] = []
    launch = find_launch(command, place)
    while launch is not None:
        launches.append(launch)
        launch = find_launch(launch.program, place)
    return launches


def _command_of(parsed: ShellScript) -> list[str]:
    """Return the command of a script, in a loop without the srun of one pass, whose options are about that pass."""
    command = list(parsed.command)
    start = prefix_length(command)
    started = launcher_of(command[start:])
    if not parsed.loop or started is None or started.title != "srun":
        return command
    _, program = parse_options("srun", SRUN, started.words)
    return [*command[:start], *program]


def _one_process(script: Script, command: Sequence[str]) -> Launch:
    launch = Launch("python", split_python(command)[1] or ["train.py"])
    if command:
        launch.ranks = Value(1, f"--tasks-per-node of {script.name} (one process)")
    return launch


def _absorb(parsed: ShellScript, inside: ShellScript, inner: Script) -> None:
    """Add what a script inside another does to the outer one."""
    parsed.env |= inside.env
    parsed.setup += inside.setup
    parsed.lost += [f"{number} of {inner.name}" for number in inside.lost]
    if inner.wrapper or not inside.exact:
        parsed.exact = False
    parsed.loop = parsed.loop or inside.loop
    parsed.output = parsed.output or inside.output


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
