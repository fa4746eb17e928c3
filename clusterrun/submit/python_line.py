"""Split the line of a Python program into the interpreter, its options, and the program. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_FLAGS = "bBdEhiIOPqRsSuvVx"
#: Options that change nothing for a rank: its output is never held back, and the rest is about files beside the code.
_NEEDLESS = ("-u", "-B", "-s")
#: The variables that do what an option of Python does; ``-W`` adds to its variable.
_VARIABLES = {
    "-O": ("PYTHONOPTIMIZE", "1"),
    "-OO": ("PYTHONOPTIMIZE", "2"),
    "-X dev": ("PYTHONDEVMODE", "1"),
    "-X faulthandler": ("PYTHONFAULTHANDLER", "1"),
    "-X utf8": ("PYTHONUTF8", "1"),
    "-X tracemalloc": ("PYTHONTRACEMALLOC", "1"),
    "-X importtime": ("PYTHONPROFILEIMPORTTIME", "1"),
}


def is_python(word: str) -> bool:
    """Return whether a word names a Python interpreter."""
    return re.fullmatch(r"python[0-9.]*", Path(word).name) is not None


def split_python(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the interpreter's options (``-W ignore`` is one) and the program: a script, ``-m MODULE`` or ``-c CODE``.

    A line that does not begin with Python is all program.
    """
    if not words or not is_python(words[0]):
        return [], list(words)
    options, at = [], 1
    while at < len(words) and (length := _length(words[at])):
        options.append(" ".join(words[at : at + length]))
        at += length
    return [_spaced(option) for option in options], list(words[at:])


def _length(word: str) -> int:
    """Return the number of words of the option that begins with this one; 0 if the program begins here."""
    if word == "--check-hash-based-pycs" or re.fullmatch(rf"-[{_FLAGS}]*[WX]", word):
        return 2
    return int(re.fullmatch(rf"-([{_FLAGS}]+|[{_FLAGS}]*[WX].+)", word) is not None)


def _spaced(option: str) -> str:
    return re.sub(r"^(-[WX])(?=\S)", r"\1 ", option)


def as_variables(options: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that do what the interpreter's options do, and the options that have none."""
    variables: dict[str, str] = {}
    others: list[str] = []
    for option in options:
        name, _, value = option.partition(" ")
        if option in _VARIABLES:
            variables |= [_VARIABLES[option]]
        elif name == "-W" and value:
            before = variables.get("PYTHONWARNINGS", "")
            variables["PYTHONWARNINGS"] = f"{before},{value}".lstrip(",")
        elif option not in _NEEDLESS:
            others.append(option)
    return variables, others
