"""Slurm's reasons for pending jobs: what each means, whether the job starts, and what to do.

The tables name their sources. A reason that is in no table is shown as it is.
"""

from __future__ import annotations

import re
from dataclasses import replace

from clusterrun.scheduler.slurm.reasons import limits, words
from clusterrun.scheduler.slurm.reasons.words import Limit, Reason, Starts

__all__ = ["TABLE", "Limit", "Reason", "Starts", "find_reason"]

#: Slurm's reason -> its row.
TABLE: dict[str, Reason] = {row.word: row for row in (*words.ROWS, *limits.ROWS)}

_FOLDED = {word.casefold(): row for word, row in TABLE.items()}
# a reason and a detail: ``ReqNodeNotAvail, UnavailableNodes:node3``, ``RaisedSignal:9(Killed)``
_WORD = re.compile(r"([A-Za-z]+)\s*[,:;(]?\s*(.*)", re.DOTALL)
_MINUTES = re.compile(
    r"at or exceeds (QOS|association).*?\b(group max TRES|group wall|max TRES)(?:\((\w+))?", re.IGNORECASE
)
_MINUTES_WORD = {
    ("qos", "group max tres"): "QOSGrpUnknownMinutes",
    ("qos", "max tres"): "QOSMaxUnknownMinutesPerJob",
    ("qos", "group wall"): "QOSGrpWallLimit",
    ("association", "group max tres"): "AssocGrpUnknownMinutes",
    ("association", "max tres"): "AssocMaxUnknownMinutesPerJob",
    ("association", "group wall"): "AssocGrpWallLimit",
}


def find_reason(text: str) -> Reason | None:
    """Return the row of a reason as Slurm writes it, with its detail; None for an unknown one.

    Parentheses, case, and spaces that scontrol writes as ``_`` do not matter.
    """
    plain = text.strip()
    plain = plain[1:].removesuffix(")") if plain.startswith("(") else plain
    spaced = " ".join(plain.replace("_", " ").split())
    found = _sentence(spaced)
    if found is not None:
        return replace(found, detail=spaced)
    match = _WORD.fullmatch(spaced)
    if match is not None and (row := _FOLDED.get(match[1].casefold())) is not None:
        return replace(row, detail=match[2].strip())
    return _FOLDED.get(spaced.replace(" ", "").casefold())


def _sentence(text: str) -> Reason | None:
    """Return the row of a sentence that slurmctld writes instead of a reason."""
    for pattern, row in words.SENTENCES:
        if pattern.search(text):
            return row
    spent = _MINUTES.search(text)
    if spent is None:
        return None
    row = TABLE[_MINUTES_WORD[spent[1].lower(), spent[2].lower()]]
    if row.limit is None or not spent[3]:
        return row
    tres = spent[3].lower()
    noun = dict(limits.RESOURCES.values()).get(tres, tres)
    meaning = row.meaning.replace(limits.RESOURCES["Unknown"][1], noun)
    return replace(row, meaning=meaning, limit=replace(row.limit, tres=tres))
