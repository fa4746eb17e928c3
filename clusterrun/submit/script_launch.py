"""Find the launcher in a script that a command starts, and what it asks for.

A script is a shell script, ``bash -c …``, ``sbatch job.sh``, or a wrapper's line (``uv run torchrun …``). What it runs
may be another script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from clusterrun.base.errors import RequestError
from clusterrun.config.files import is_file
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launcher_table import (
    SBATCH,
    has_starter_variable,
    launcher_of,
    parse_options,
    prefix_length,
    split_launcher,
)
from clusterrun.submit.launchers import Around, Launch, combine, find_launch, parse_launch
from clusterrun.submit.python_line import is_python, split_python
from clusterrun.submit.script_source import read_text

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


@dataclass(slots=True)
class ShellScript:
    """A script in a command: its name, text and arguments, sbatch's typed options (None without sbatch), what it does.

    ``directives`` are the words of its #SBATCH lines, ``command`` those of its launcher. ``late`` are the numbers of
    #SBATCH lines after the first command, which sbatch ignores. ``setup`` are the lines before the command, ``env`` its
    exported constants. ``lost`` are the numbers of lines that are in none of these; ``exact`` is False if the command
    may not run exactly once as it is, ``loop`` is the line of the loop around it, and ``output`` its redirections.
    """

    name: str
    text: str
    arguments: Sequence[str] = ()
    sbatch: Sequence[str] | None = None
    wrapper: bool = False
    directives: list[str] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    exact: bool = True
    loop: int = 0
    output: str = ""


def script_of(words: Sequence[str], cwd: Path) -> ShellScript | None:
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
        return ShellScript(words[0], text, rest)
    return None


def _batch_script(words: list[str], cwd: Path) -> ShellScript:
    typed, program = parse_options(SBATCH._replace(title="sbatch"), words)
    options = words[: len(words) - len(program)]
    for option in typed:
        if option.kind == "wrap":
            return ShellScript("--wrap", option.value, (), options)
    name = "".join(program[:1])
    if not is_file(cwd / name):
        raise RequestError(f"sbatch: no such script: {name}")
    return ShellScript(name, read_text(cwd / name), program[1:], options)


def _shell_script(words: Sequence[str], cwd: Path) -> ShellScript | None:
    """Return the script of ``bash x.sh`` or ``bash -c …``."""
    for at, word in enumerate(words[1:], 1):
        if not word.startswith("-"):
            return ShellScript(word, read_text(cwd / word), words[at + 1 :])
        if "c" in word and not word.startswith("--"):
            return ShellScript(shlex.join(words[:2]), "".join(words[at + 1 : at + 2]), words[at + 3 :])
    return None


def _wrapped_launcher(words: Sequence[str]) -> ShellScript | None:
    """Return the launcher's part of a wrapper's line (``uv run torchrun …``), None if it starts none."""
    for at in range(1, len(words)):
        if split_launcher(words[at:])[0].title and not _is_value(words, at):
            return ShellScript(words[0], shlex.join(words[at:]), wrapper=True)
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


def read(script: ShellScript, around: Around, seen: dict[str, bool] | None = None) -> ShellScript:
    """Read what a script does; its command is a launcher's line, or starts another script that has one.

    ``seen`` is whether the texts that were read before have such a line; it is not known yet of those being read.
    """
    from clusterrun.submit import shell_scripts  # most commands start no script

    has_command = {} if seen is None else seen
    has_command[script.text] = False

    def is_command(words: Sequence[str]) -> bool:
        rest = words[prefix_length(words) :]
        if not rest or not _NO_START.isdisjoint(rest):
            return False
        return _starts_ranks(words, rest[0], script) or _runs_launcher(rest, around, has_command)

    shell_scripts.read(script, is_command, around.environ)
    has_command[script.text] = bool(script.command)
    return script


def _starts_ranks(words: Sequence[str], program: str, script: ShellScript) -> bool:
    """Return whether a line starts a launcher, or in a batch script Python; ``program`` is its first word."""
    if launcher_of(words).title or has_starter_variable(words):
        return True
    return script.sbatch is not None and is_python(program)


def _runs_launcher(rest: Sequence[str], around: Around, has_command: dict[str, bool]) -> bool:
    """Return whether a line runs a script with a launcher in it."""
    if rest[0] == "sbatch":
        return False
    inner = script_of(rest, around.cwd)
    if inner is None:
        return False
    if inner.text not in has_command and len(has_command) < _MOST:
        read(inner, around, has_command)
    return has_command.get(inner.text, False)


def launch_in(script: ShellScript, around: Around) -> Launch:
    """Return what a script asks for that was read; if it starts no launcher, one process.

    What the scripts inside it do is added to it. Raises RequestError for a line that cannot be understood.
    """
    layers: list[Launch] = []
    texts: set[str] = set()
    current = script
    while True:
        texts.add(current.text)
        command = _command_of(current)
        launches = _launches_of(command, around)
        layers += [*_directives(current, around), *launches]
        inner = script_of(launches[-1].program if launches else command, around.cwd)
        if inner is None or inner.text in texts or not read(inner, around).command:
            break
        _absorb(script, inner)
        current = inner
    if not launches:
        layers.append(_one_process(current, command))
    launch = reduce(combine, layers)
    launch.innermost, launch.titles = command, {layer.title for layer in layers}
    launch.env = script.env | launch.env
    if script.setup and command:
        launch.options["setup"] = Value(script.setup, "--setup")
    return launch


def _directives(script: ShellScript, around: Around) -> list[Launch]:
    """Return what the #SBATCH lines of a script and the options typed for sbatch ask for."""
    directives = [*script.directives, *(script.sbatch or ())]
    return [parse_launch(SBATCH, directives, around)] if directives else []


def _launches_of(command: Sequence[str], around: Around) -> list[Launch]:
    """Return the launchers of a line, outermost first: srun and torchrun for ``srun torchrun …``."""
    launches: list[Launch] = []
    while launch := find_launch(command, around):
        launches.append(launch)
        command = launch.program
    return launches


def _command_of(script: ShellScript) -> list[str]:
    """Return the command of a script, in a loop without the srun of one pass, whose options are about that pass."""
    start = prefix_length(script.command)
    launcher, arguments = split_launcher(script.command[start:])
    if not script.loop or launcher.title != "srun":
        return list(script.command)
    return [*script.command[:start], *parse_options(launcher, arguments)[1]]


def _one_process(script: ShellScript, command: Sequence[str]) -> Launch:
    launch = Launch("python", split_python(command)[1] or ["train.py"])
    if command:
        launch.ranks = Value(1, f"--tasks-per-node of {script.name} (one process)")
    return launch


def _absorb(script: ShellScript, inner: ShellScript) -> None:
    """Add what a script inside another does to the outer one."""
    script.env |= inner.env
    script.setup += inner.setup
    script.lost += [f"{number} of {inner.name}" for number in inner.lost]
    script.exact = script.exact and inner.exact and not inner.wrapper
    script.loop = script.loop or inner.loop
    script.output = script.output or inner.output


def text_of_all(script: ShellScript, cwd: Path) -> str:
    """Return the texts of a script and of the shell scripts that it names, and those that they name."""
    texts = {script.name: script.text}
    waiting = [script.text]
    while waiting and len(texts) < _MOST:
        for name in re.findall(r"[\w./-]+\.(?:sh|bash|env)\b", waiting.pop())[:_MOST]:
            if name not in texts:
                texts[name] = read_text(cwd / name)
                waiting.append(texts[name])
    return "\n".join([*texts.values(), shlex.join(script.arguments)])
