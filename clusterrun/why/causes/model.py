"""The types: lines of a log, facts of a job's end, rows of the tables, findings, causes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from clusterrun.base.units import clause
from clusterrun.run_folder.ends import Failure, Hang, RankEnd

READ = 4_096  # characters of a line that a pattern sees: a long line could be made to be slow
_LONGEST = 400  # characters of a line of evidence that are shown: some errors fill a page
ENOUGH = 12  # lines of work that show that the program continued
#: The beginning of a line of slurmstepd: its name, or in 26.05 a time, as in lines of other programs.
BY_STEPD = re.compile(r"slurmstepd|\[\d{4}-[\dT:.-]+\] error: (?:\*\*\* |Detected \d+ oom|StepId=)")
_NEVER = re.compile("(?!)")
_WARNING = re.compile(  # NCCL reports failures as warnings, submitit signals
    r":\d+: [A-Z]\w*Warning: |^.{0,100}(?<!NCCL )(?<!submitit )(?<!=)\b(?:WARN(?:ING)?|INFO|DEBUG|[Rr]etrying)\b"
    r"|\[W[\d :.]*(?:socket|TCPStore|ProcessGroupNCCL)\.cpp:\d+\]"
    r"(?!.*(?:server socket|\bbind\b|EADDRINUSE))"
)


class Line(NamedTuple):
    """A line of a log; ``number`` counts from 1 and is None if unknown, ``rank`` is that of the line's label."""

    file: str
    number: int | None
    rank: int | None
    text: str

    @property
    def place(self) -> str:
        return self.file if self.number is None else f"{self.file}:{self.number}"

    @property
    def is_slurms(self) -> bool:
        """Whether srun or slurmstepd printed it."""
        return self.text.startswith("srun:") or BY_STEPD.match(self.text) is not None


Logs = Sequence[Sequence[Line]]  # the lines of each file, most trusted first


class Strength(IntEnum):
    """How well a finding explains the end; smaller is better."""

    CAUSE = 0  # something failed here
    HANG = 1  # a rank waited too long: the cause unless something failed before
    HINT = 2  # the cause only if there is no better one
    CONSEQUENCE = 3  # another rank failed first
    ECHO = 4  # a report of another process's end


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What is known besides the logs; the defaults mean unknown.

    ``state`` is Slurm's state, ``exit_status`` the shell's (128+n for a signal), ``due`` why Slurm ended the job
    (TIME LIMIT, PREEMPTION …). ``failure`` is that of the rank that failed first, ``launch`` of the launch itself,
    ``stop`` says where the run saved and stopped, ``separate`` that no rank joined a process group,
    ``own_worlds`` that several ranks each started a world. ``behind`` maps each stalled rank to how that is known.
    ``limits`` are those of the job's processes (``run_folder/launches.py``).
    ``unmarked`` ranks left no end record though the step succeeded. ``other_owner`` is the job that has the run, if it
    is another one. ``first_node`` runs the job's script.
    """

    state: str = ""
    exit_status: int | None = None
    reason: str = ""
    due: str = ""
    world_size: int = 0  # of a run
    first_node: str = ""
    nodes: Mapping[int, str] = field(default_factory=dict)  # rank -> node
    failure: Failure | None = None
    launch: Failure | None = None
    stop: Failure | None = None
    hang: Hang | None = None  # the watchdog ended the job's last launch
    ends: tuple[RankEnd, ...] = ()
    cancelled_by: str = ""
    lost_nodes: tuple[str, ...] = ()
    behind: Mapping[int, str] = field(default_factory=dict)
    separate: Failure | None = None
    own_worlds: str = ""
    unmarked: int = 0
    other_owner: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def failed_status(self) -> int | None:
        """The status of the rank that failed first; srun's is the highest, usually of ranks that it ended."""
        recorded = self.failure.status if self.failure is not None else None
        return recorded or self.exit_status

    def node_of(self, rank: int | None) -> str:
        """Return the node of a rank, empty if unknown."""
        return "" if rank is None else self.nodes.get(rank, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first cause of a job's end, its evidence, and what to do.

    ``kind`` is stable (``unknown`` without a cause, ``none`` if nothing failed), ``place`` is file:line in the user's
    code, and ``JOB`` in ``command`` stands for the job's id. ``notes`` name what was not available; ``status`` is the
    exit status of the rank that failed first: srun's is the highest of all ranks'. Texts hold parts of logs: sanitize
    them before printing.
    """

    kind: str
    sentence: str
    rank: int | None = None
    node: str = ""
    place: str = ""
    evidence: tuple[Line, ...] = ()
    advice: str = ""
    command: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    status: int | None = None

    def headline(self) -> str:
        """Return the cause, its rank and place on one line."""
        where = ", ".join(filter(None, (self._who(), self._place())))
        return f"{self.sentence}{clause(where, ' ({})')}"

    def short(self) -> str:
        """Return the cause on one line that begins with the rank, as the last line of ``logs -f``."""
        return f"{clause(self._who(), '{} failed first: ')}{self.sentence}{clause(self._place(), ' ({})')}"

    def facts(self) -> list[tuple[str, Sequence[str]]]:
        """Return the parts that ``why`` shows: name and lines of each."""
        seen = [f"{line.place}: {line.text[:_LONGEST]}" for line in self.evidence]
        do = list(filter(None, (self.advice, self.command)))
        return [("cause", [self.headline()]), ("seen", seen), ("do", do), ("note", self.notes)]

    def json(self) -> dict[str, Any]:
        """Return the values for ``--json``."""
        return {
            "kind": self.kind,
            "exit_status": self.status,
            "cause": self.sentence,
            "rank": self.rank,
            "node": self.node or None,
            "place": self.place or None,
            "evidence": [{"file": line.file, "line": line.number, "text": line.text} for line in self.evidence],
            "advice": self.advice or None,
            "command": self.command or None,
            "source": self.source or None,
            "notes": list(self.notes),
        }

    def _place(self) -> str:
        return "" if self.place in self.sentence else self.place

    def _who(self) -> str:
        if self.rank is None or f"rank {self.rank} " in self.sentence or f"task {self.rank} " in self.sentence:
            return ""
        return f"rank {self.rank}{clause(self.node, ' on {}')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """A row of the tables: the pattern of a cause in a log, and the texts for it.

    Every line that ``pattern`` matches contains one of the lower-case ``needles``, which are searched for first because
    that is fast; a row without needles is in no table (see ``texts``). The groups of the pattern fill the texts (see
    fill_template); ``rank``, ``ranks`` and ``node`` also name the rank. ``after`` finds more words for the texts in one
    of the next lines of the same rank. ``source`` is where the text was seen.
    """

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    sentence: str
    advice: str
    source: str
    command: str = ""
    strength: Strength = Strength.CAUSE
    after: re.Pattern[str] | None = None
    common: bool = False  # healthy jobs print it too: reported only if the job failed or its log ends with it

    @property
    def general(self) -> bool:
        """Whether the row only repeats the line, so that any other matching row is preferred."""
        return self.kind in ("slurm-error", "task-ended") or self.sentence == "{0}"


def texts(kind: str, sentence: str, advice: str, source: str, command: str = "",
          strength: Strength = Strength.CAUSE) -> CauseRow:  # fmt: skip
    """Return the texts of a cause that no pattern finds in a log: a record has it, or several lines together."""
    return CauseRow(
        kind=kind, needles=(), pattern=_NEVER, sentence=sentence, advice=advice, source=source, command=command,
        strength=strength,
    )  # fmt: skip


def row(kind: str, needles: str, pattern: str, sentence: str, advice: str, source: str, command: str = "",
        strength: Strength = Strength.CAUSE, common: bool = False, after: str = "") -> CauseRow:  # fmt: skip
    """Return a row of a table; ``needles`` are separated by ``|``.

    An exception that no row explains is the cause even if it comes after a line that a row matches; if it only follows
    from that line, give its text a row with ``Strength.HINT``.
    """
    return CauseRow(
        kind=kind, needles=tuple(needles.split("|")), pattern=re.compile(pattern), sentence=sentence, advice=advice,
        source=source, command=command, strength=strength, common=common, after=re.compile(after) if after else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogFinding:
    """A row that matched a line, with its texts filled in; ``index`` is the line's among those of its file.

    ``work_after`` counts the lines of work that the same rank (any rank, if unknown) prints afterwards, at most ENOUGH.
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
    values: Mapping[str, str] = field(default_factory=dict)
    work_after: int = 0

    @property
    def kind(self) -> str:
        return self.row.kind

    def is_in(self, lines: Sequence[Line]) -> bool:
        """Return whether it was found in these lines, those of one log."""
        return self.index < len(lines) and lines[self.index] is self.line

    @property
    def is_ended_task(self) -> bool:
        """Whether it reports that a task, or a rank, ended with a status."""
        return self.kind == "task-ended" and bool(self.values.get("status"))

    @property
    def survived(self) -> bool:
        """Whether its rank probably continued its work."""
        return self.work_after >= 3

    @property
    def is_fatal(self) -> bool:
        """Whether something failed here, and its rank did not continue."""
        return self.strength is Strength.CAUSE and not self.survived

    @property
    def outlived(self) -> bool:
        """Whether its own rank survived it; where ranks are unknown, others may print a few more lines of work."""
        return self.survived and (self.rank is not None or self.work_after >= ENOUGH)

    @property
    def warned(self) -> bool:
        """Whether the line is a warning or an info, or says that something is retried: the program continued."""
        return _WARNING.search(self.line.text[:READ]) is not None
