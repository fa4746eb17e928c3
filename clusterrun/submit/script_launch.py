"""Refuse a shell script or batch script that starts ranks itself, with the line that does the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterrun.config.files import is_file
from clusterrun.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launch_shape import Values, format_line, job_options
from clusterrun.submit.launcher_options import SBATCH, parse_options
from clusterrun.submit.launchers import Launch, Place, combine, find_launch, parse_launch, without_python
from clusterrun.submit.script_source import read_text
from clusterrun.submit.shell_scripts import ShellScript, parse_script

_SHELL = re.compile(r"(ba|z|k|da)?sh")
_SHEBANG = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(\S*/)?(ba|z|k|da)?sh\b")
_WRAPPERS = ("uv", "poetry", "pipenv", "pdm", "conda", "mamba", "micromamba", "singularity", "apptainer", "numactl",
             "taskset", "timeout", "nice", "nsys", "stdbuf")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Found:
    """A script in a command: its name, text and arguments, and sbatch's typed options (None without sbatch)."""

    name: str
    text: str
    arguments: list[str]
    sbatch: list[str] | None = None


def refuse_scripts(words: Sequence[str], given: Values, below: Values, place: Place) -> None:
    """Raise RequestError if a command is sbatch, a shell script that starts a launcher, or a wrapper around one."""
    if Path(words[0]).name in _WRAPPERS:
        found = (find_launch(words[at:], place) for at in range(1, len(words)))
        launch = next((one for one in found if one is not None), None)
        if launch is not None:
            line = format_line({**given, **job_options(launch, given, below)}, launch.program)
            raise RequestError(f"{words[0]} starts {launch.title}, which starts its own ranks", hint=line)
    script = _script_of(words, place.cwd)
    if script is None:
        return
    batch = script.sbatch is not None

    def is_command(one: Sequence[str]) -> bool:
        return find_launch(one, place) is not None or (batch and without_python(one) != list(one))

    parsed = parse_script(script.text, script.arguments, is_command)
    if not batch and not parsed.command:
        return
    line, launcher = _line(script, parsed, words, given, below, place)
    lost = ""
    if batch and parsed.lost:
        lost = f"; not in the line below: line {', '.join(map(str, dict.fromkeys(parsed.lost)))}"
    if batch:
        raise RequestError(f"clusterrun submits jobs itself, without sbatch ({script.name}){lost}", hint=line)
    raise RequestError(f"{script.name} starts {launcher}, which starts its own ranks", hint=line)


def _script_of(words: Sequence[str], cwd: Path) -> _Found | None:
    first, rest = Path(words[0]).name, list(words[1:])
    if first == "sbatch":
        typed, program = parse_options("sbatch", SBATCH, rest)
        wrapped = next((one.value for one in typed if one.option.kind == "wrap"), None)
        if wrapped is not None:
            return _Found("--wrap", wrapped, [], [word for word in rest if not word.startswith("--wrap")])
        if not program or not is_file(cwd / program[0]):
            raise RequestError(f"sbatch: no such script: {' '.join(program[:1])}")
        return _Found(program[0], read_text(cwd / program[0]), program[1:], rest[: len(rest) - len(program)])
    if _SHELL.fullmatch(first):
        while rest and rest[0].startswith("-"):
            if "c" in rest[0] and not rest[0].startswith("--"):
                return _Found(shlex.join(words[:2]), "".join(rest[1:2]), rest[3:])
            rest = rest[1:]
        return _Found(rest[0], read_text(cwd / rest[0]), rest[1:]) if rest else None
    text = read_text(cwd / words[0])
    return _Found(words[0], text, rest) if first.endswith(".sh") or _SHEBANG.match(text) else None


def _line(
    script: _Found, parsed: ShellScript, words: Sequence[str], given: Values, below: Values, place: Place
) -> tuple[str, str]:
    """Return the line that does what a script does, and the launcher in it."""
    launch = find_launch(parsed.command, place) if parsed.command else None
    if launch is None:  # one process, or none that is known
        launch = Launch("python", without_python(parsed.command) or ["train.py"])
        launch.ranks = Value(1, f"--tasks-per-node: {script.name} starts one process")
        launch.one_node = script.sbatch is None
    title = launch.title
    directives = [*parsed.directives, *(script.sbatch or ())]
    if directives:
        launch = combine(parse_launch("#SBATCH", directives, place), launch)
    if parsed.env:
        launch.options["env"] = Value(
            parsed.env | (launch.options["env"].value if "env" in launch.options else {}), "--env"
        )
    if parsed.setup:
        launch.options["setup"] = Value(parsed.setup, "--setup")
    options = {**given, **job_options(launch, given, below)}
    unknown = any("$" in word for word in launch.program)
    if script.sbatch is None and (launch.refusal or unknown or parsed.lost or not parsed.exact):
        kept = {name: value for name, value in options.items() if name not in ("tasks-per-node", "env", "setup")}
        return format_line({**kept, "launcher": Value("none", "")}, words), title
    instead = {name: Value(value, "") for name, value in launch.instead.items() if value != "none"}
    return launch.folder + format_line({**options, **instead}, launch.program, _quote), title


def _quote(word: str) -> str:
    """Quote a word for the shell; a variable of the environment stays one."""
    if re.search(r"\$\{?[A-Za-z_]", word) and not re.search(r"[\"\\`!']", word):
        return f'"{word}"'
    return shlex.quote(word)
