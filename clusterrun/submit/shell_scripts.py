"""Find the launcher in a shell script or a batch script, with the lines around it. No I/O.

Only what a reader can be sure of is used: constants, arguments (``$1``, ``${2:-x}``, ``"$@"``) and commands at the top
level. Conditions, loops and here-documents make a script inexact.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from clusterrun.errors import RequestError
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
    known = _Variables({str(number): word for number, word in enumerate(args, 1)}, args)
    for number, line in _logical_lines(text):
        if len(line) > _LONGEST or _CONTROL.match(line):
            script.exact = False
            script.lost.append(number)
            continue
        joined = re.search(r"['\"].*(&&|;).*['\"]", line)  # perhaps within quotes
        for part in [line] if joined else re.split(r"\s*(?:&&|;)\s*", line):
            filled = known.fill(part)
            words = _words(_REDIRECTION.sub("", _without_commands(filled)))
            if words is None:
                script.lost.append(number)
            elif words and is_command(words):
                script.exact = script.exact and not script.command
                script.command = script.command or words
            elif match := _ASSIGNMENT.fullmatch(filled):
                _assign(script, known, number, match)
            elif words and words[0] not in _QUIET:
                _add_setup(script, known, number, filled)
    for name in known.used & {name for name, text in script.env.items() if " " in text}:
        del script.env[name]  # a part of the command
    return script


class _Variables:
    """The variables of a script: constants by name, the other assignments, and the script's arguments."""

    def __init__(self, values: dict[str, str], args: Sequence[str]) -> None:
        self.values, self.args = values, args
        self.others: dict[str, str] = {}
        self.used: set[str] = set()

    def fill(self, line: str) -> str:
        """Replace the variables of a line whose values are known; nothing between single quotes."""
        pieces = re.split(r"('[^']*')", line)
        return "".join(piece if piece.startswith("'") else _VARIABLE.sub(self._value, piece) for piece in pieces)

    def _value(self, match: re.Match[str]) -> str:
        name = match["plain"] or match["name"] or "@"
        if name in ("@", "*"):
            return shlex.join(self.args) if match[0] == '"$@"' else " ".join(self.args)
        self.used.add(name)
        text = self.values.get(name, match["default"])
        if text is None and name.isdigit():
            return ""
        return match[0] if text is None or re.search(r"[\"'`\\]", text) else text


def _assign(script: ShellScript, known: _Variables, number: int, match: re.Match[str]) -> None:
    """Note an assignment: a constant is filled in below, an exported one becomes a variable of the job."""
    name, words = match["name"], _words(_without_commands(match["value"]))
    if _OWN.fullmatch(name):
        return
    text = (words or [""])[0] if words is not None and len(words) <= 1 else None
    if text is None or script.command or "$COMMAND" in match["value"] or re.search(r"\$\(|`", match["value"]):
        known.values.pop(name, None)
        known.others[name] = match[0]
    if text is not None and not script.command:
        known.values[name] = text if "$COMMAND" not in text or " " in text else f"${name}"
    if not match["export"]:
        return
    if text is None or "$" in text:
        if " " not in (text or ""):  # with spaces: a part of the command
            _add_setup(script, known, number, match[0])
    elif _is_secret(match[0]):
        script.lost.append(number)
    else:
        script.env[name] = text


def _add_setup(script: ShellScript, known: _Variables, number: int, line: str) -> None:
    """Add a line that runs before the ranks, after the assignments that it uses; later ones and ``cd`` are lost."""
    if script.command or _is_secret(line) or re.match(r"cd\b", line):
        script.lost.append(number)
        return
    for name in [name for name in known.others if re.search(rf"\$\{{?{name}\b", line)]:
        if (assignment := known.others.pop(name)) != line:
            script.setup.append(assignment)
    script.setup.append(line)


def _is_secret(line: str) -> bool:
    try:
        refuse_assignments([line], "", "")
        refuse_shapes(line, "", "")
    except RequestError:
        return True
    return False


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
    """Yield line number and text of each command line, continuations joined.

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
