"""Find torchrun's summary of the first failure, which spans several lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterrun.why.causes.model import Line
from clusterrun.why.causes.tracebacks import split_rank

SUMMARY = "Root Cause (first observed failure):"


@dataclass(frozen=True, slots=True)
class Summary:
    """torchrun's summary of the first failure; a negative exit code is a signal."""

    index: int
    rank: int | None
    host: str
    code: int | None


def find_summaries(lines: Sequence[Line]) -> Iterator[Summary]:
    """Yield torchrun's summaries in the lines of one file."""
    for index, line in enumerate(lines):
        if SUMMARY not in line.text:
            continue
        values: dict[str, str] = {}
        for later in lines[index + 1 : index + 40]:
            if later.rank != line.rank:
                continue
            key, colon, value = split_rank(later)[1].partition(":")
            if colon and key.strip() in ("host", "rank", "exitcode"):
                values.setdefault(key.strip(), value.strip())
            if len(values) == 3:
                break
        yield Summary(index, _leading(values.get("rank")), values.get("host", ""), _leading(values.get("exitcode")))


def _leading(text: str | None) -> int | None:
    match = re.match(r"-?\d+", text or "")
    return int(match[0]) if match else None
