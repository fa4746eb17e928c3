"""Format a line for a terminal: its rank, a mark for its stream, its text, and the other ranks that wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterrun.logs.lines import LogLine
from clusterrun.logs.select import format_ranges
from clusterrun.terminal.safe_text import safe_text

_COLOURS = ("36", "32", "33", "35", "34")  # readable on light and dark; red is for err
_ERR, _FAINT = "31", "2"
_RANGES_SHOWN = 8  # ranges of ranks printed after a folded line


@dataclass(frozen=True)
class DisplayFormat:
    """How to print lines. ``terminal``: for people, else for programs. ``fold``: a line of many ranks once."""

    terminal: bool = False
    colour: bool = False
    fold: bool = False
    raw: bool = False


def detect_format(tty: bool, environ: Mapping[str, str], *, fold: bool = True, raw: bool = False) -> DisplayFormat:
    """Return the format for an output: folded on a terminal, in colour if TERM has colours and NO_COLOR is not set."""
    colour = tty and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
    return DisplayFormat(terminal=tty, colour=colour, fold=tty and fold, raw=raw)


def format_line(line: LogLine, width: int, *, colour: bool = False, ranks: Iterable[int] = (), world: int = 0) -> str:
    """Return a line for a terminal, without newline: ``RANK| text``, or ``RANK! text`` of err.

    ``width`` is the number of digits of the largest rank. With several ``ranks``, they are printed after the text.
    ``world`` is the number of ranks, 0 if unknown.
    """
    rank = line.rank
    field, mark = f"{'' if rank is None else rank:>{width}}", "!" if line.stream == "err" else "|"
    writers = sorted(ranks)
    after = f" [{line.cut} bytes left out]" if line.cut else ""
    if len(writers) > 1:
        which = "" if len(writers) == world else f": {_format_ranges(writers)}"
        after += f"  (×{len(writers)} ranks{which})"
    if colour:
        field = _paint(field, _COLOURS[rank % len(_COLOURS)]) if rank is not None else field
        mark = _paint(mark, _ERR) if line.stream == "err" else mark
        after = _paint(after, _FAINT) if after else after
    return f"{field}{mark} {safe_text(line.text)}{after}"


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _format_ranges(ranks: list[int]) -> str:
    """Return ranks as ``0-3, 8``; only the first ranges of many."""
    ranges = format_ranges(ranks).split(", ")
    return ", ".join([*ranges[:_RANGES_SHOWN], "…"] if len(ranges) > _RANGES_SHOWN else ranges)
