"""Find the launcher in a shell script or a batch script, with the lines around it. No I/O.

Only what a reader can be sure of is used: constants, arguments (``$1``, ``${2:-x}``, ``"$@"``) and commands at the top
level. Conditions, loops and here-documents make a script inexact.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.secrets import refuse_assignments, refuse_shapes

if TYPE_CHECKING:
    from clusterrun.submit.script_launch import ShellScript

_CONTROL = re.compile(
    r"(if|then|else|elif|fi|for|while|until|do|done|case|esac|function|select|trap|exit|return|getopts|eval|\[\[?|[{}(])(\s|;|$)"
    r"|[\w-]+\s*\(\)|.*(<<|;;)"
)
#: Words that open and close a block, where a command may stand.
_BLOCKS = re.compile(r"(?:^|[;&|]|\b(?:do|then|else)\s)\s*(if|for|while|until|case|select|fi|done|esac)\b")
_ASSIGNMENT = re.compile(r"(?P<export>export\s+)?(?P<name>[A-Za-z_]\w*)(?P<plus>\+)?=(?P<value>.*)", re.ASCII)
_OPEN_ARRAY = re.compile(r"(export\s+)?[A-Za-z_]\w*\+?=\([^()]*", re.ASCII)
_LOOPS = ("for", "while", "until")
#: Variables that clusterrun or Slurm sets for each rank.
_OWN = re.compile(r"MASTER_(ADDR|PORT)|(LOCAL_|GROUP_|NODE_|MACHINE_)?RANK|(LOCAL_)?WORLD_SIZE|CUDA_VISIBLE_DEVICES")
_LONGEST = 10_000
"""Characters of a line that is parsed; a longer one is data, such as an archive in an installer."""
_QUIET = ("echo", "printf", "set", "date", "hostname", "true", ":", "nvidia-smi", "wait")
_VARIABLE = re.compile(
    r"(?P<quoted>\")?\$\{(?P<list>[A-Za-z_]\w*)\[[@*]\]\}(?(quoted)\")"
    r"|\"\$(?:@|\{@\})\"|\$\{[@*]:(?P<first>\d+)\}"
    r"|\$(?:(?P<plain>[A-Za-z_]\w*|[@*#\d])|\{(?P<name>[A-Za-z_]\w*|[@*\d]+)(?::?[-=](?P<default>[^{}]*))?\})",
    re.ASCII,
)
#: What separates the commands of a line, and quotes that may contain it.
_SEPARATOR = re.compile(r"\s*(?:&&|;)\s*")
_QUOTED_SEPARATOR = re.compile(r"['\"].*(&&|;).*['\"]")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)")
_REDIRECTION = re.compile(r"\s+(?:[12&]?>>?|\|&?|&$).*")
_SUBSTITUTION = re.compile(r"\$\([^()]*\)|\$\(\([^()]*\)\)|`[^`]*`")
_HIDDEN = re.compile(r"\$CLUSTERRUN_HIDDEN_(\d+)_")
#: The folder of the script itself, as scripts find it.
_DIRNAME = re.compile(r"\$\(\s*dirname\s+(?:--\s+)?\"?(?P<path>[^\s\"'$`()]+)\"?\s*\)")
_CD_PWD = re.compile(
    r"\$\(\s*cd\s+(?:--\s+)?\"?(?P<path>[^\s\"'$`()]+)\"?\s*(?:>\s*/dev/null\s*)?(?:&&|;)\s*pwd(?:\s+-P)?\s*\)"
)

Words = Sequence[str]


def read(script: ShellScript, is_command: Callable[[Words], bool], environ: Mapping[str, str]) -> None:
    """Read what a script does, which runs with its arguments; ``is_command`` recognises the line to find.

    A value is filled in where the script, the arguments or the name give it, and for ``${GPUS:-8}`` also from the
    environment; other variables stay (``$HOME``).
    """
    reader = _Reader(script, is_command, environ)
    for number, line in _logical_lines(script.text):
        if line.startswith("#"):
            reader.read_directive(number, line)
        else:
            reader.read_line(number, line)


class _Reader:
    """A script as far as it was read: ``known`` are the values of its variables, ``lists`` those of its arrays.

    ``unknown`` are variables that only the node will know. ``blocks`` are the open blocks: what opened each, and its
    line.
    """

    def __init__(self, script: ShellScript, is_command: Callable[[Words], bool], environ: Mapping[str, str]) -> None:
        self.script, self.is_command, self.environ = script, is_command, environ
        self.args = list(script.arguments)
        self.known = {"0": script.name}
        self.lists = {"@": self.args}
        self.unknown: set[str] = set()
        self.blocks: list[tuple[str, int]] = []
        self.begun = False

    def read_directive(self, number: int, line: str) -> None:
        words = _words(line.removeprefix("#SBATCH")) or []
        self.script.directives += words
        if self.begun and words:
            self.script.late.append(number)

    def read_line(self, number: int, line: str) -> None:
        self.begun = True
        if len(line) > _LONGEST or _CONTROL.match(line):
            self.script.exact = False
            self.script.lost.append(str(number))
        else:
            for command in [line] if _QUOTED_SEPARATOR.search(line) else _SEPARATOR.split(line):
                if not self.read_command(command):
                    self.script.lost.append(str(number))
        self.enter_blocks(number, line[:_LONGEST])

    def enter_blocks(self, number: int, line: str) -> None:
        """Note the blocks that a line opens and closes."""
        for word in _BLOCKS.findall(line):
            if word not in ("fi", "done", "esac"):
                self.blocks.append((word, number))
            elif self.blocks:
                self.blocks.pop()

    def read_command(self, typed: str) -> bool:
        """Add a command, with its variables filled in, to the script; return False if it is lost."""
        line = self.fill(typed)
        words = self.words_of(line)
        assignment = _ASSIGNMENT.fullmatch(line)
        if words and self.is_command(words):
            return self.set_command(line, words)
        if assignment is not None and not _has_several(assignment, words or ()):
            must_run = assignment["export"] is not None and words is not None
            return self.assign(assignment, typed) or (must_run and self.add_setup(line))
        return words is not None and self.read_builtin(line, words)

    def read_builtin(self, line: str, words: list[str]) -> bool:
        """Do what ``shift`` and ``export A B=2`` do; pass over what only prints, and keep other commands as setup."""
        first = next(iter(words), ":")  # a comment does nothing
        if first == "export":
            return self.export(words[1:])
        if first == "shift" and not self.blocks:
            count = "".join(words[1:2])
            del self.args[: int(count) if count.isdigit() else 1]
            return True
        return first in _QUIET or _stays(words) or self.add_setup(line)

    def add_setup(self, line: str) -> bool:
        """Add a line that must run before the ranks; return False if it cannot."""
        if self.script.command or _is_secret(line) or re.match(r"cd\b", line):
            return False
        self.script.setup.append(line)
        return True

    def export(self, words: Words) -> bool:
        """Read the words after ``export``: ``A B=2``."""
        if self.script.command:
            return False
        done = True
        for word in words:
            name, equals, text = word.partition("=")
            if equals and not _SUBSTITUTION.search(text):
                self.known[name] = text
            done = self.export_known(name) and done
        return done

    def export_known(self, name: str) -> bool:
        """Give the ranks a variable of the script; return False if its value is not known."""
        if _OWN.fullmatch(name) or name not in {*self.known, *self.unknown}:
            return True
        text = self.known.get(name, "$")
        if "$" in text or _is_secret(f"{name}={text}"):
            return False
        self.script.env[name] = text
        return True

    def assign(self, match: re.Match[str], typed: str) -> bool:
        """Note an assignment; return whether its value is known, and the ranks get it if they need it.

        ``typed`` is the line before variables were filled in: bash splits no value of theirs in an assignment.
        """
        name = match["name"]
        is_known = not self.script.command and self.note(match, typed)
        if _OWN.fullmatch(name):
            return True
        if not is_known or not match["export"]:
            return is_known
        is_part = self.is_command(self.known.get(name, "").split())  # of the launcher's line
        return is_part or self.export_known(name)

    def note(self, match: re.Match[str], typed: str) -> bool:
        """Note the value of a variable; return False if it is not known."""
        name, value = match["name"], match["value"]
        before, items_before = self.known.pop(name, None), self.lists.pop(name, [])
        if not match["plus"]:
            before, items_before = "", []
        items = self.array(value)
        if items is not None:
            self.lists[name] = [*items_before, *items]
            return True
        is_one_word = re.fullmatch(r"[^\s\"']*", typed.partition("=")[2].strip()) is not None
        text = self.constant(value, is_one_word=is_one_word)
        if text is None or before is None:
            self.unknown.add(name)
            return False
        self.known[name] = before + text
        return True

    def array(self, value: str) -> list[str] | None:
        """Return the elements of ``(--lr 1 "$HOME/x")``; None if they are not known."""
        match = re.fullmatch(r"\((.*)\)", value.strip())
        return None if match is None or _SUBSTITUTION.search(value) else _words(match[1])

    def constant(self, value: str, *, is_one_word: bool) -> str | None:
        """Return a value as bash would assign it; None if only the node knows it and no launcher's line uses it."""
        words = [value] if is_one_word else self.words_of(value, keep=True)
        if words is None or len(words) > 1:
            return None
        text = "".join(words)
        return None if _SUBSTITUTION.search(text) and not self.is_command(text.split()) else text

    def set_command(self, line: str, words: list[str]) -> bool:
        """Take the launcher's line, unless there is one already."""
        if self.script.command:
            self.script.exact = False
            return False
        self.script.command = words
        self.script.output = line[_end_of_command(line) :].strip(" &")
        self.script.loop = next((number for word, number in self.blocks if word in _LOOPS), 0)
        return True

    def words_of(self, line: str, *, keep: bool = False) -> list[str] | None:
        """Return the words of a line without redirections (unless ``keep``); ``$(…)`` stays in its word."""
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match[0])
            return f"$CLUSTERRUN_HIDDEN_{len(hidden) - 1}_"

        while (shorter := _SUBSTITUTION.sub(hide, line)) != line:
            line = shorter
        words = _words(line if keep else line[: _end_of_command(line)])
        return None if words is None else [_shown(word, hidden).replace("\\$", "$") for word in words]

    def fill(self, line: str) -> str:
        """Replace the variables of a line whose values are known, unless it gets too long; not in single quotes."""
        pieces = re.split(r"('[^']*')", line.replace("${BASH_SOURCE[0]}", "$0"))
        filled = "".join(piece if piece.startswith("'") else _VARIABLE.sub(self.value, piece) for piece in pieces)
        if len(filled) > _LONGEST:  # B=$A$A, C=$B$B …
            return line
        return _CD_PWD.sub(lambda match: match["path"], _DIRNAME.sub(_folder, filled))

    def value(self, match: re.Match[str]) -> str:
        """Return what stands for ``$NAME`` and the like; the text itself if it is not known."""
        name = match["plain"] or match["name"] or "@"
        if match["list"] or name in ("@", "*"):
            return self.items(match)
        text = self.text_of(name, match["default"])
        return match[0] if text is None or re.search(r"[\"'`\\]", text) else text

    def items(self, match: re.Match[str]) -> str:
        """Return the elements of an array, or the arguments, from the first that is named on."""
        items = self.lists.get(match["list"] or "@")
        if items is None:
            return match[0]
        items = items[int(match["first"] or 1) - 1 :]
        return shlex.join(items) if match[0].startswith('"') else " ".join(items)

    def text_of(self, name: str, default: str | None) -> str | None:
        """Return the value of a variable; None if it is not known."""
        if name in self.known:
            return self.known[name]
        if name.isdigit():
            argument = "".join(self.args[int(name) - 1 : int(name)])
            return argument or (default or "").strip("\"'")
        exported = self.exported_by_user(name)
        if default is None:
            return exported if exported.isdecimal() else None
        return exported or default.strip("\"'")

    def exported_by_user(self, name: str) -> str:
        """Return the value of a variable in the environment, unless the script sets it, or the job."""
        return "" if name in self.unknown or _OWN.fullmatch(name) else self.environ.get(name, "")


def _end_of_command(line: str) -> int:
    """Return where the redirection or pipe of a line begins; none counts that is between quotes."""
    outside = re.sub(r"\"[^\"]*\"|'[^']*'", lambda match: "x" * len(match[0]), line)
    match = _REDIRECTION.search(outside)
    return match.start() if match else len(line)


def _has_several(match: re.Match[str], words: Words) -> bool:
    """Return whether an assignment is a list for ``export``: ``export A=1 B=2``."""
    return match["export"] is not None and len(words) > 2 and not match["value"].startswith("(")


def _folder(match: re.Match[str]) -> str:
    return os.path.dirname(match["path"]) or "."  # noqa: PTH120 - as dirname does


def _shown(word: str, hidden: Sequence[str]) -> str:
    while match := _HIDDEN.search(word):
        word = word.replace(match[0], hidden[int(match[1])])
    return word


def _stays(words: Words) -> bool:
    """Return whether a command is ``cd`` to the folder that the script runs in."""
    return len(words) == 2 and words[0] == "cd" and os.path.normpath(words[1]) == "."


def _is_secret(line: str) -> bool:
    try:
        refuse_assignments([line], "", "")
        refuse_shapes(line, "")
    except RequestError:
        return True
    return False


def _words(line: str) -> list[str] | None:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each command line and #SBATCH line, continuations joined.

    Comments, empty lines and the text of here-documents are left out.
    """
    joined, first, end_of_document = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if end_of_document:
            if line.strip() == end_of_document:
                end_of_document = ""
            continue
        document = _HERE_DOCUMENT.search(line)
        if document:
            end_of_document = document[1]
        if not joined:
            first = number
        if _is_comment(line, is_continued=joined != ""):
            continue
        joined, is_open = _joined(joined, line)
        if not is_open:
            if joined.strip():
                yield first, joined.strip()
            joined = ""


def _is_comment(line: str, *, is_continued: bool) -> bool:
    """Return whether a line is a comment. An #SBATCH line is not, unless it continues the line before it."""
    return line.lstrip().startswith("#") and (is_continued or not line.startswith("#SBATCH"))


def _joined(before: str, line: str) -> tuple[str, bool]:
    """Append a line to those read so far; return them, and whether the next line continues them."""
    if line.endswith("\\") and not line.endswith("\\\\"):
        return before + line[:-1] + " ", True
    if _OPEN_ARRAY.fullmatch(before + line):
        return before + line.partition(" #")[0] + " ", True
    return before + line, False
