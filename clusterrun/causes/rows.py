"""One row of the tables of causes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterrun.causes.model import Strength


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a kind of cause looks like in a log.

    ``needles`` are lower-case words, one of which stands in every line that ``pattern`` matches: they are looked for
    first, at memory speed. The texts are filled with the pattern's groups (``{0}`` the whole match); a part in
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
    common: bool = False  # jobs that go on print it too: told only where the job failed, or its log ends with it

    @property
    def general(self) -> bool:
        """Whether it only repeats what a line says, so that any row that knows the line goes before it."""
        return self.kind in ("slurm-error", "worker", "task-ended") or self.sentence == "{0}"

    def __post_init__(self) -> None:
        assert self.needles and all(needle == needle.lower() for needle in self.needles)


def row(kind: str, needles: str, pattern: str, sentence: str, advice: str, source: str, command: str = "",
        strength: Strength = Strength.CAUSE, common: bool = False) -> Row:  # fmt: skip
    """A row as it stands in a table: needles separated by ``|``."""
    return Row(
        kind=kind, needles=tuple(needles.split("|")), pattern=re.compile(pattern), sentence=sentence, advice=advice,
        source=source, command=command, strength=strength, common=common,
    )  # fmt: skip
