"""Host lists in Slurm's notation: ``gpu[01-04,07]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MOST_CHARACTERS, MOST_BRACKETS = 2**24, 8
_NUMBERED = re.compile(r"(.*[^0-9]|)([0-9]{1,15})([^0-9]*)", re.ASCII | re.DOTALL)


def fold(names: Iterable[str]) -> str:
    """Return the names as a host list, with ranges of numbers; names without a number stay as they are."""
    plain: dict[str, None] = {}
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain[name] = None
        else:
            groups.setdefault((match[1], match[3]), {})[match[2]] = None
    parts = [*plain]
    for (before, after), digits in groups.items():
        for width, numbers in _by_width(digits):
            parts.append(_bracketed(before, numbers, after, width))
    return ",".join(parts)


def _by_width(digits: Iterable[str]) -> list[tuple[int, list[int]]]:
    """Return numbers, sorted, by the width that they are padded to.

    09 and 9 are different names, so padded numbers are grouped by length. Without padding, width 0, 9 and 10 are one
    range.
    """
    is_padded = any(text.startswith("0") and len(text) > 1 for text in digits)
    numbers: dict[int, list[int]] = {}
    for text in sorted(digits, key=int):
        numbers.setdefault(len(text) if is_padded else 0, []).append(int(text))
    return sorted(numbers.items())


def _bracketed(before: str, numbers: list[int], after: str, width: int) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    if len(numbers) == 1:
        return f"{before}{numbers[0]:0{width}}{after}"
    return f"{before}[{','.join('-'.join(f'{n:0{width}}' for n in run) for run in runs)}]{after}"


def expand(text: str, limit: int = 100_000) -> list[str]:
    """Return the names of a host list, in its order, at most ``limit``; a part that does not parse is a name.

    Of an answer that is no list of hosts, the names end after MOST_CHARACTERS.
    """
    names: list[str] = []
    characters = 0
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        for name in _names(part):
            names.append(name)
            characters += len(name)
            if len(names) >= limit or characters > MOST_CHARACTERS:
                return names
    return names


def _names(part: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([0-9,\-]+)\](.*)", part, re.ASCII | re.DOTALL)
    runs = _runs(match[2]) if match is not None and part.count("[") <= MOST_BRACKETS else None
    if match is None or runs is None:
        yield part
        return
    for numbers, width in runs:
        for number in numbers:
            yield from _names(f"{match[1]}{number:0{width}}{match[3]}")


def _runs(text: str) -> list[tuple[range, int]] | None:
    """Return the runs of numbers in brackets, each with its width; None if one is none, or has no number."""
    runs = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        last = last or first
        if not first.isdigit() or not last.isdigit() or len(run) > 30 or int(last) < int(first):
            return None
        runs.append((range(int(first), int(last) + 1), len(first)))
    return runs
