"""What is known of a job's end, and the cause that is made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from clusterrun.records.rank_records import RankEnd, RankFailure

READ = 4_096  # characters of a line that a pattern looks at: foreign lines may be long, and made to be slow
_WARNING = re.compile(r":\d+: [A-Z]\w*Warning: ")


class Line(NamedTuple):
    """One line of a log: the name of its file, its number there (from 1; None where it was not counted), its text.

    ``rank`` is the rank whose label it carries, None where it has none.
    """

    file: str
    number: int | None
    rank: int | None
    text: str


class Strength(IntEnum):
    """How much a finding explains: a smaller one goes before a larger one."""

    CAUSE = 0  # something went wrong here
    HANG = 1  # somebody waited too long: the cause, unless something had gone wrong before
    HINT = 2  # may be the cause where nothing else is
    CONSEQUENCE = 3  # another rank went first
    ECHO = 4  # who reports the end of somebody else


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What is known besides the logs; the defaults mean "not known".

    ``state`` is Slurm's word, ``exit_status`` as a shell says it (128+n for a signal), ``due`` what Slurm ended the job
    for (TIME LIMIT, PREEMPTION …), ``behind`` the ranks that had stood still, each with how that is known, ``separate``
    whether the ranks never joined a process group.
    """

    state: str = ""
    exit_status: int | None = None
    reason: str = ""
    due: str = ""
    world_size: int | None = None
    nodes: Mapping[int, str] = field(default_factory=dict)  # rank -> node
    failure: RankFailure | None = None
    ends: tuple[RankEnd, ...] = ()
    cancelled_by: str = ""
    lost_nodes: tuple[str, ...] = ()
    behind: Mapping[int, str] = field(default_factory=dict)
    separate: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that shows it, and where it stands; ``number`` is None where lines were not counted."""

    file: str
    number: int | None
    text: str

    @property
    def place(self) -> str:
        return self.file if self.number is None else f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first cause: what it is, who, the proof, and what to do.

    ``kind`` is a stable word (``unknown`` where nothing names a cause, ``none`` where nothing went wrong); ``sentence``
    is for people; ``place`` is file:line in the user's code; ``command`` is to be typed, ``JOB`` standing for the job's
    id. Texts may hold foreign words: ``safe_text`` before they are printed.
    """

    kind: str
    sentence: str
    rank: int | None = None
    node: str = ""
    place: str = ""
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""
    command: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """What a kind of cause looks like in a log.

    ``needles`` are lower-case words, one of which stands in every line that ``pattern`` matches: they are looked for
    first, at memory speed. The texts are fill_template with the pattern's groups (``{0}`` the whole match); a part in
    brackets is left out where a word of it is missing. ``rank`` or ``ranks`` and ``node`` say who. ``source`` says
    where the text was seen.
    """

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    sentence: str
    advice: str
    source: str
    command: str = ""
    strength: Strength = Strength.CAUSE
    common: bool = False  # healthy jobs print it too: reported only if the job failed, or its log ends with it

    @property
    def general(self) -> bool:
        """Whether it only repeats what a line says, so that any row that knows the line goes before it."""
        return self.kind in ("slurm-error", "worker", "task-ended") or self.sentence == "{0}"

    def __post_init__(self) -> None:
        assert self.needles and all(needle == needle.lower() for needle in self.needles)


def row(kind: str, needles: str, pattern: str, sentence: str, advice: str, source: str, command: str = "",
        strength: Strength = Strength.CAUSE, common: bool = False) -> CauseRow:  # fmt: skip
    """A row as it stands in a table: needles separated by ``|``."""
    return CauseRow(
        kind=kind, needles=tuple(needles.split("|")), pattern=re.compile(pattern), sentence=sentence, advice=advice,
        source=source, command=command, strength=strength, common=common,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogFinding:
    """What one line shows: the row it matched, its index among the file's lines, who it is about, the row's words.

    ``survived`` where the same rank went on with its work afterwards.
    """

    row: CauseRow
    index: int
    line: Line
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    node: str = ""
    sentence: str = ""
    advice: str = ""
    command: str = ""
    place: str = ""
    strength: Strength = Strength.CAUSE
    values: tuple[tuple[str, str], ...] = ()
    survived: bool = False

    @property
    def kind(self) -> str:
        return self.row.kind

    @property
    def warned(self) -> bool:
        """Whether its line is a warning of Python's ``warnings``: the program went on."""
        return _WARNING.search(self.line.text[:READ]) is not None

    def value(self, name: str) -> str:
        return dict(self.values).get(name, "")
