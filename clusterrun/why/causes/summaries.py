"""Find torchrun's summary of the failures, which spans several lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from signal import SIGABRT, SIGTERM

from clusterrun.why.causes.model import Line
from clusterrun.why.causes.tracebacks import split_rank

SUMMARY = "Root Cause (first observed failure):"
_LONGEST = 4_000  # lines before it, which list the other failures


@dataclass(frozen=True, slots=True)
class Summary:
    """torchrun's summary of the first failure; a negative exit code is a signal.

    ``codes`` are those of all ranks of its node: each node's torchrun lists only its own.
    """

    index: int
    rank: int | None
    host: str
    code: int | None
    codes: Mapping[int, int]

    @property
    def alike(self) -> tuple[int, ...]:
        """The ranks that ended like the first one; empty if its rank is unknown."""
        return tuple(sorted(rank for rank, code in self.codes.items() if code == self.code))

    @property
    def spared(self) -> tuple[int, ...]:
        """The ranks, less than half, that torchrun ended with SIGTERM after all others of its node had aborted."""
        ended = tuple(sorted(rank for rank, code in self.codes.items() if code == -SIGTERM))
        aborted = sum(code == -SIGABRT for code in self.codes.values())
        return ended if len(ended) < aborted == len(self.codes) - len(ended) else ()


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
        rank, code = _leading(values.get("rank")), _leading(values.get("exitcode"))
        codes = _other_codes(lines[max(0, index - _LONGEST) : index], line.rank)
        if rank is not None and code is not None:
            codes[rank] = code
        yield Summary(index, rank, values.get("host", ""), code, codes)


def _other_codes(lines: Sequence[Line], label: int | None) -> dict[int, int]:
    """Return the exit codes in the list of failures at the end of the lines."""
    codes: dict[int, int] = {}
    code: int | None = None
    for line in reversed(lines):
        text = split_rank(line)[1] if line.rank == label else ""
        key, _, value = text.partition(":")
        if key.strip() == "Failures":
            return codes
        number = _leading(value.strip())
        code = number if key.strip() == "exitcode" else code
        if key.strip() == "rank" and number is not None and code is not None:
            codes[number] = code
    return {}


def _leading(text: str | None) -> int | None:
    match = re.match(r"-?\d+", text or "")
    return int(match[0]) if match else None
