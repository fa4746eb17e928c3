"""How a line looks to people: its rank, a mark of its stream, its text, and who else said it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterrun.logs.fold import Folded
from clusterrun.logs.lines import LogLine
from clusterrun.terminal.safe_text import safe_text

_COLOURS = ("36", "32", "33", "35", "34")  # readable on light and dark; red is for err
_ERR, _FAINT = "31", "2"
_RUNS_SHOWN = 8  # runs of ranks that are named after a folded line


@dataclass(frozen=True)
class Look:
    """How lines look: for people on a terminal, perhaps in colour and folded; or byte for byte."""

    terminal: bool = False
    colour: bool = False
    fold: bool = False
    raw: bool = False


def look_of(tty: bool, environ: Mapping[str, str], *, fold: bool = True, raw: bool = False) -> Look:
    """The look for an output: folded on a terminal, in colour where that has any and NO_COLOR is not set."""
    colour = tty and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
    return Look(terminal=tty, colour=colour, fold=tty and fold, raw=raw)


def terminal_line(line: LogLine, width: int, *, colour: bool = False, ranks: Iterable[int] = (), world: int = 0) -> str:
    """A line for people, no newline: ``RANK| text``, ``RANK! text`` of err; with several ``ranks`` who said it.

    ``width`` is that of the largest rank; ``world`` how many ranks there are, 0 where that is not known.
    """
    rank = line.rank
    field, mark = f"{'' if rank is None else rank:>{width}}", "!" if line.stream == "err" else "|"
    said_by = sorted(ranks)
    after = f" [{line.cut} bytes left out]" if line.cut else ""
    if len(said_by) > 1:
        who = "" if len(said_by) == world else f": {_runs(said_by)}"
        after += f"  (×{len(said_by)} ranks{who})"
    if colour:
        field = _paint(field, _COLOURS[rank % len(_COLOURS)]) if rank is not None else field
        mark = _paint(mark, _ERR) if line.stream == "err" else mark
        after = _paint(after, _FAINT) if after else after
    return f"{field}{mark} {safe_text(line.text)}{after}"


def folded_line(folded: Folded, width: int, *, colour: bool = False, world: int = 0) -> str:
    """``terminal_line`` of a folded one."""
    return terminal_line(folded.line, width, colour=colour, ranks=folded.ranks, world=world)


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _runs(ranks: list[int]) -> str:
    """Ranks for people: ``0-3, 8``; the first of very many."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    named = [f"{a}-{b}" if a != b else f"{a}" for a, b in runs[:_RUNS_SHOWN]]
    return ", ".join([*named, "…"] if len(runs) > _RUNS_SHOWN else named)
