"""Find the launcher in a shell script or a batch script, with the lines around it. No I/O.

Only what a reader can be sure of is used: constants, arguments (``$1``, ``${2:-x}``, ``"$@"``) and commands at the top
level. Conditions, loops and here-documents make a script inexact.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.secrets import refuse_assignments, refuse_shapes

_CONTROL = re.compile(
    r"(if|then|else|elif|fi|for|while|until|do|done|case|esac|function|select|trap|exit|return|shift|getopts|eval|\[\[?|[{}(])(\s|;|$)"
    r"|[\w-]+\s*\(\)|.*(<<|;;)"
)
_ASSIGNMENT = re.compile(r"(?P<export>export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.ASCII)
#: Variables that clusterrun or Slurm sets for each rank.
_OWN = re.compile(r"MASTER_(ADDR|PORT)|(LOCAL_|GROUP_|NODE_|MACHINE_)?RANK|(LOCAL_)?WORLD_SIZE|CUDA_VISIBLE_DEVICES")
_LONGEST = 10_000
"""Characters of a line that is parsed; a longer one is data, such as an archive in an installer."""
_QUIET = ("echo", "printf", "set", "date", "hostname", "true", ":", "nvidia-smi", "wait")
_VARIABLE = re.compile(
    r"\"\$@\"|\$(?:(?P<plain>[A-Za-z_]\w*|[@*#\d])|\{(?P<name>[A-Za-z_]\w*|[@*\d]+)(?::?[-=](?P<default>[^{}]*))?\})",
    re.ASCII,
)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)")
_REDIRECTION = re.compile(r"\s+(?:[12&]?>>?|\|&?|&$).*")
_SUBSTITUTION = re.compile(r"\$\([^()]*\)|\$\(\([^()]*\)\)|`[^`]*`")


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
    script, begun = ShellScript(), False
    known = {str(number): word for number, word in enumerate(args, 1)}
    for number, line in _logical_lines(text):
        if line.startswith("#"):
            script.directives += [] if begun else _words(line.removeprefix("#SBATCH")) or []
            continue
        begun = True
        control = len(line) > _LONGEST or _CONTROL.match(line) is not None
        script.exact = script.exact and not control
        for part in [line] if re.search(r"['\"].*(&&|;).*['\"]", line) else re.split(r"\s*(?:&&|;)\s*", line):
            if control or not _read(script, _fill(part, known, args), known, is_command):
                script.lost.append(number)
    return script


def _read(script: ShellScript, line: str, known: dict[str, str], is_command: Callable[[Sequence[str]], bool]) -> bool:
    """Add a line, whose variables are filled in, to the script; return False if it is lost."""
    words = _words(_REDIRECTION.sub("", _without_commands(line)))
    if words and is_command(words):
        script.exact = script.exact and not script.command
        script.command = script.command or words
        return True
    match = _ASSIGNMENT.fullmatch(line)
    if match is not None and (done := _assign(script, match, known, is_command)) is not None:
        return done
    if match is None and words is not None and (not words or words[0] in _QUIET):
        return True
    lost = words is None or script.command or _is_secret(line) or re.match(r"cd\b", line)
    script.setup += [] if lost else [line]
    return not lost


def _assign(
    script: ShellScript, match: re.Match[str], known: dict[str, str], is_command: Callable[[Sequence[str]], bool]
) -> bool | None:
    """Note an assignment: return whether the script has it, None if it must run before the ranks."""
    name, words = match["name"], _words(match["value"])
    if _OWN.fullmatch(name):
        return True
    if words is None or len(words) > 1 or _SUBSTITUTION.search(match["value"]):
        known.pop(name, None)
    elif not script.command:
        known[name] = text = "".join(words)
        if not match["export"] or is_command(text.split()):  # of use only to the command
            return True
        if "$" not in text and not _is_secret(match[0]):
            script.env[name] = text
            return True
    return None if match["export"] else False


def _fill(line: str, known: Mapping[str, str], args: Sequence[str]) -> str:
    """Replace the variables of a line whose values are known; nothing between single quotes."""

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["name"] or "@"
        if name in ("@", "*"):
            return shlex.join(args) if match[0] == '"$@"' else " ".join(args)
        text = known.get(name, match["default"] or ("" if name.isdigit() else None))
        return match[0] if text is None or re.search(r"[\"'`\\]", text) else text

    pieces = re.split(r"('[^']*')", line)
    return "".join(piece if piece.startswith("'") else _VARIABLE.sub(value, piece) for piece in pieces)


def _is_secret(line: str) -> bool:
    try:
        refuse_assignments([line], "", "")
        refuse_shapes(line, "")
    except RequestError:
        return True
    return False


def _without_commands(line: str) -> str:
    """Replace ``$(…)``, ``$((…))`` and backticks by the variable ``$COMMAND``, so that a word stays one."""
    while (shorter := _SUBSTITUTION.sub("$COMMAND", line)) != line:
        line = shorter
    return line


def _words(line: str) -> list[str] | None:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each command line and #SBATCH line, continuations joined.

    Comments, empty lines and the text of here-documents are left out.
    """
    joined, first, here = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if here:
            here = "" if line.strip() == here else here
            continue
        if opened := _HERE_DOCUMENT.search(line):
            here = opened[1]
        first = first if joined else number
        if not joined and line.lstrip().startswith("#") and not line.startswith("#SBATCH"):
            continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            joined += line[:-1] + " "
            continue
        if whole := (joined + line).strip():
            yield first, whole
        joined = ""
