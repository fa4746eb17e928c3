"""The diagnosis of a job's end: cause, rank and place, evidence, advice and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterrun.base.job import JobStatus
from clusterrun.why.causes import Cause

_LONGEST = 400  # characters of a line of evidence: some errors fill a page


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first cause of a job's end; ``notes`` name what was not available. Log text in it is not sanitized."""

    cause: Cause
    notes: tuple[str, ...] = ()
    status: int | None = None  # the exit status of the rank that failed first; srun's is the highest of all ranks'

    def headline(self) -> str:
        """Return the cause, its rank and place on one line."""
        where = ", ".join(word for word in (self._who(), self._place()) if word)
        return f"{self.cause.sentence}{f' ({where})' if where else ''}"

    def short(self) -> str:
        """Return the cause on one line that begins with the rank, as the last line of ``logs -f``."""
        place = f" ({self._place()})" if self._place() else ""
        who = f"{self._who()} failed first: " if self._who() else ""
        return f"{who}{self.cause.sentence}{place}"

    def facts(self) -> list[tuple[str, Sequence[str]]]:
        """Return the parts that ``why`` shows: name and lines of each."""
        cause = self.cause
        seen = [f"{one.place}: {one.text[:_LONGEST]}" for one in cause.evidence]
        do = [line for line in (cause.advice, cause.command) if line]
        named = [("cause", [self.headline()]), ("seen", seen), ("do", do), ("note", list(self.notes))]
        return [(name, lines) for name, lines in named if lines]

    def json(self) -> dict[str, Any]:
        """Return the values for ``--json``."""
        cause = self.cause
        return {
            "kind": cause.kind,
            "exit_status": self.status,
            "cause": cause.sentence,
            "rank": cause.rank,
            "node": cause.node or None,
            "place": cause.place or None,
            "evidence": [{"file": one.file, "line": one.number, "text": one.text} for one in cause.evidence],
            "advice": cause.advice or None,
            "command": cause.command or None,
            "source": cause.source or None,
            "notes": list(self.notes),
        }

    def _place(self) -> str:
        return "" if self.cause.place in self.cause.sentence else self.cause.place

    def _who(self) -> str:
        rank, node, sentence = self.cause.rank, self.cause.node, self.cause.sentence
        if rank is None or f"rank {rank} " in sentence or f"task {rank} " in sentence:
            return ""
        return f"rank {rank} on {node}" if node else f"rank {rank}"


_SLURM = r"(?:sacct|scontrol|sinfo|squeue)\b"
_ASIDE = re.compile(rf" \({_SLURM}[^)]*\)")


def local_cause(cause: Cause, job: JobStatus) -> Cause:
    """Return the cause of a local job: without Slurm's commands, and with the local scheduler's reason."""
    if cause.kind == "node-failure" and job.state == "NODE_FAIL":
        return replace(cause, sentence=job.reason, advice="", command="clusterrun submit …")
    command = "" if re.match(_SLURM, cause.command) else cause.command
    return replace(cause, advice=_ASIDE.sub("", cause.advice), command=command)
