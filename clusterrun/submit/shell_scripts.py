"""Find the launcher in a shell script or a batch script, with the lines around it. No I/O.

Only what a reader can be sure of is used: constants, arguments (``$1``, ``${2:-x}``, ``"$@"``) and commands at the top
level. Conditions, loops and here-documents make a script inexact.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterrun.errors import RequestError
from clusterrun.jobspec.secrets import refuse_assignments, refuse_shapes

_CONTROL = re.compile(
    r"(if|then|else|elif|fi|for|while|until|do|done|case|esac|function|select|trap|exit|return|\[\[?|[{}(])(\s|;|$)"
    r"|[\w-]+\s*\(\)|.*(<<|;;)"
)
_ASSIGNMENT = re.compile(r"(?P<export>export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.ASCII)
#: Variables that clusterrun or Slurm sets for each rank.
_OWN = re.compile(r"MASTER_(ADDR|PORT)|(LOCAL_|GROUP_|NODE_|MACHINE_)?RANK|(LOCAL_)?WORLD_SIZE|CUDA_VISIBLE_DEVICES")
_QUIET = ("echo", "printf", "set", "date", "hostname", "true", ":", "nvidia-smi", "shift", "wait")
_VARIABLE = re.compile(
    r"\"\$@\"|\$(?:(?P<plain>[A-Za-z_]\w*|[@*#\d])|\{(?P<name>[A-Za-z_]\w*|[@*\d]+)(?::?[-=](?P<default>[^{}]*))?\})",
    re.ASCII,
)
_REDIRECTION = re.compile(r"\s+(?:[12&]?>>?|\|&?|&$).*")


@dataclass(slots=True)
class ShellScript:
    """What a script does: ``directives`` are the words of its #SBATCH lines, ``command`` those of its launcher.

    ``setup`` are the lines before the command, ``env`` its exported constants. ``lost`` are the numbers of lines that
    are in none of these; ``exact`` is False if the command may not run exactly once as it is.
    """

    directives: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    exact: bool = True


def parse_script(text: str, args: Sequence[str], is_command: Callable[[Sequence[str]], bool]) -> ShellScript:
    """Parse a script that runs with ``args``; ``is_command`` recognises the line to find.

    A value is filled in where the script or the arguments give it; other variables stay (``$HOME``).
    """
    script = ShellScript(directives=list(_directives(text)))
    values: dict[str, str] = {str(number): word for number, word in enumerate(args, 1)}
    kept: dict[str, str] = {}
    for number, line in _logical_lines(text):
        if _CONTROL.match(line):
            script.exact = False
            script.lost.append(number)
            continue
        simple = not re.search(r"['\"].*(&&|;).*['\"]", line)
        for part in re.split(r"\s*(?:&&|;)\s*", line) if simple else [line]:
            filled = _fill(part, values, args)
            words = _words(_REDIRECTION.sub("", _without_commands(filled)))
            if words is None:
                script.lost.append(number)
            elif words and is_command(words):
                script.exact = script.exact and not script.command
                script.command = script.command or words
            elif match := _ASSIGNMENT.fullmatch(filled):
                _assign(script, values, kept, number, match)
            elif words and words[0] not in _QUIET:
                _add_setup(script, kept, number, filled)
    return script


def _assign(
    script: ShellScript, values: dict[str, str], kept: dict[str, str], number: int, match: re.Match[str]
) -> None:
    """Note an assignment: a constant is filled in below, an exported one becomes a variable of the job."""
    name, words = match["name"], _words(match["value"])
    if _OWN.fullmatch(name):
        return
    constant = words is not None and len(words) <= 1 and not re.search(r"[$`\"'\\]", "".join(words))
    text = (words or [""])[0] if constant else ""
    if constant and not script.command:
        values[name] = text
    else:
        values.pop(name, None)
        kept[name] = match[0]
    if match["export"] and constant:
        try:
            refuse_assignments([match[0]], "", "")
            refuse_shapes(text, "", "")
        except RequestError:
            script.lost.append(number)
        else:
            script.env[name] = text
    elif match["export"]:
        _add_setup(script, kept, number, match[0])


def _add_setup(script: ShellScript, kept: dict[str, str], number: int, line: str) -> None:
    """Add a line that runs before the ranks, after the assignments that it uses; later ones and ``cd`` are lost."""
    try:
        refuse_assignments([line], "", "")
        refuse_shapes(line, "", "")
    except RequestError:
        script.lost.append(number)
        return
    if script.command or re.match(r"cd\b", line) or re.search(r"\$\{?\d", line):
        script.lost.append(number)
        return
    for name in [name for name in kept if re.search(rf"\$\{{?{name}\b", line)]:
        if (assignment := kept.pop(name)) != line:
            script.setup.append(assignment)
    script.setup.append(line)


def _fill(line: str, values: Mapping[str, str], args: Sequence[str]) -> str:
    """Replace the variables of a line whose values are known; nothing between single quotes."""

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["name"] or "@"
        if name in ("@", "*"):
            return shlex.join(args) if match[0] == '"$@"' else " ".join(args)
        if name == "#":
            return str(len(args))
        text = values.get(name, match["default"] if match["default"] is not None else None)
        if text is None and name.isdigit():
            text = ""
        return match[0] if text is None or re.search(r"[\"'`\\$]", text) else text

    pieces = re.split(r"('[^']*')", line)
    return "".join(piece if piece.startswith("'") else _VARIABLE.sub(value, piece) for piece in pieces)


def _without_commands(line: str) -> str:
    """Replace ``$(…)``, ``$((…))`` and backticks by the variable ``$COMMAND``, so that a word stays one."""
    before = ""
    while before != line:
        before, line = line, re.sub(r"\$\([^()]*\)|\$\(\([^()]*\)\)|\([^()$]*\)(?=[^()]*\))|`[^`]*`", "$COMMAND", line)
    return line


def _words(line: str) -> list[str] | None:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each command line, continuations joined, comments and empty lines left out."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        if line.lstrip().startswith("#") and not joined:
            continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            joined += line[:-1] + " "
            continue
        if whole := (joined + line).strip():
            yield first, whole
        joined = ""


def _directives(text: str) -> Iterator[str]:
    """Yield the words of the #SBATCH lines before the first command, as sbatch does."""
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            yield from _words(line.removeprefix("#SBATCH")) or ()
        elif line.strip() and not line.startswith("#"):
            return
