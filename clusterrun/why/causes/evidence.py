"""Evidence: what is known of a job's end. The lines of its logs, the findings in them and in its records, the facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from clusterrun.run_folder.ends import Failure
from clusterrun.why.causes.match import make_finding
from clusterrun.why.causes.model import READ, CauseRow, EndFacts, Line, LogFinding, Logs, Strength
from clusterrun.why.causes.scan import scan
from clusterrun.why.causes.table_python import EXIT
from clusterrun.why.causes.table_recorded import RANK_LOST, RECORDED
from clusterrun.why.causes.tracebacks import split_rank

Test = Callable[[LogFinding], bool]

HINT = "clusterrun: hint: "  # begins the second line of clusterrun's own errors, in records and in logs
_SHOWN = 60  # characters of a recorded text by which its line in a log is found
#: the beginning of a line of NCCL, and of UCX
_SPEAKER = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d[ T][\d:.]+\] )?(?P<nccl>[A-Za-z0-9][\w.-]*):\d+:\d+ \[\d+\] .{0,80}NCCL "
    r"|(?:\[\d+\.\d+\] )?\[(?P<ucx>[A-Za-z][\w.-]*):\d+:\d+(?::\d+)?\] "
)
#: the nodes whose lines DeepSpeed's launcher and pdsh print as ``NODE: text``
_PDSH = re.compile(r"(?:Running on the following workers: |pdsh@\S+: (?=\S+: ssh exited))(?P<nodes>[\w.,-]+)")
_FAILURE = re.compile(r"(?m)^\s*host +: ([\w.-]+).*\n\s*rank +: (\d{1,7}) \(local_rank")


@dataclass(frozen=True)
class Evidence:
    """The logs, most trusted first, the findings of each in order, and the facts of the end."""

    logs: Logs
    facts: EndFacts
    by_log: Sequence[Sequence[LogFinding]]
    first_failure: LogFinding | None = None  # the finding that explains the end best

    @classmethod
    def gather(cls, logs: Logs, facts: EndFacts) -> Evidence:
        """Find what the tables know in the logs, and place what the job itself recorded."""
        by_log = [_with_nodes(scan(lines), lines, facts.nodes) for lines in logs]
        return cls(logs, facts, _with_records(by_log, logs, facts))

    @cached_property
    def findings(self) -> list[LogFinding]:
        """All findings, log by log."""
        return list(chain(*self.by_log))

    @cached_property
    def has_failed(self) -> bool:
        """Whether the job is known to have failed: else a warning is no cause."""
        is_serious = any(f.strength <= Strength.HANG for f in self.findings)
        return is_serious or bool(self.facts.state)

    def missing_command(self, status: int | None) -> LogFinding | None:
        """Return the last command that a shell did not find or could not run, if this is the exit status of that."""
        missing = [f for f in self.findings if f.kind == "command-missing"]
        return missing[-1] if missing and status in (126, 127) else None

    def first(self, test: Test) -> LogFinding | None:
        """Return the first finding that passes a test."""
        return first(self.findings, test)

    def of_kind(self, *kinds: str) -> LogFinding | None:
        """Return the first finding of one of these kinds."""
        return self.first(lambda f: f.kind in kinds)

    @cached_property
    def explained(self) -> set[Line]:
        """The lines that a finding is in."""
        return {f.line for f in self.findings}

    def log_of(self, finding: LogFinding) -> tuple[Sequence[Line], Sequence[LogFinding]]:
        """Return the lines and the findings of the log that a finding is in; none if it is of a record."""
        for lines, findings in zip(self.logs, self.by_log, strict=False):  # what no log shows comes last
            if finding.is_in(lines):
                return lines, findings
        return (), ()

    def before(self, finding: LogFinding) -> list[LogFinding]:
        """Return the findings before one in its log."""
        _, findings = self.log_of(finding)
        return [f for f in findings if f.index < finding.index]

    def lines_of(self, finding: LogFinding) -> Sequence[Line]:
        """Return the lines of the log that a finding is in; none if it is of a record."""
        lines, _ = self.log_of(finding)
        return lines

    def lines_before(self, finding: LogFinding, near: int) -> Sequence[Line]:
        """Return the last ``near`` lines before a finding in its log."""
        return self.lines_of(finding)[max(0, finding.index - near) : finding.index]


def first(findings: Iterable[LogFinding], test: Test) -> LogFinding | None:
    """Return the first finding that passes a test."""
    return next(filter(test, findings), None)


# -- what the job recorded, in the line of a log that shows it ---------------------------------------------------------


def _with_records(by_log: Sequence[Sequence[LogFinding]], logs: Logs, facts: EndFacts) -> list[list[LogFinding]]:
    """Return the findings of each log and of the records: where a log shows them, else in a list of their own."""
    placed = [list(findings) for findings in by_log]
    for finding in _all_recorded(logs, facts):
        for number, lines in enumerate(logs):
            if finding.is_in(lines):
                others = [f for f in placed[number] if f.index != finding.index]
                placed[number] = sorted([*others, finding], key=lambda f: f.index)
                break
        else:
            placed.append([finding])
    return placed


def _all_recorded(logs: Logs, facts: EndFacts) -> Iterator[LogFinding]:
    """Yield what the rank that failed first and the supervisor recorded, and the ranks that left no record."""
    by_kind = {record.kind: record for record in (facts.launch, facts.failure) if record is not None}
    for kind, record in reversed(by_kind.items()):
        if kind in RECORDED and RECORDED[kind] is not EXIT:
            yield recorded_finding(record, RECORDED[kind], logs)
    if facts.unmarked:
        ended = {"ended": str(facts.world_size - facts.unmarked), "all": str(facts.world_size)}
        yield recorded_finding(Failure(values=ended), RANK_LOST, logs)


def recorded_finding(failure: Failure, row: CauseRow, logs: Logs) -> LogFinding:
    """Return the finding of a record, in the line of a log that shows it, else in the record's own file."""
    error, _, hint = failure.error.partition(f"\n{HINT}")
    failure = failure._replace(error=error)
    words = {name: value.strip() for name, value in failure.values.items()}
    words |= {"error": failure.error, "quoted": shlex.quote(failure.values.get("path", ""))}
    number = failure.values.get("rank", "")
    rank = int(number) if number.isdigit() else failure.rank
    index, line = find_line(logs, failure.values.get("line") or failure.error)
    finding = make_finding(row, index, line or line_of(failure), words, rank)
    return replace(finding, place=failure.place, advice=hint or finding.advice)


def line_of(failure: Failure) -> Line:
    """Return a record's error as the line of the record's own file."""
    return Line(failure.file, None, failure.rank, failure.error)


def find_line(logs: Logs, text: str) -> tuple[int, Line | None]:
    """Return the first line of a log that shows a recorded text, with its index in that log; 0 and None without one."""
    shown = searched_part(text)
    for lines in logs if shown else ():
        for index, line in enumerate(lines):
            if shown in line.text:
                return index, line
    return 0, None


def searched_part(text: str) -> str:
    """Return the part of a recorded text by which its line in a log is found."""
    return text.partition("\n")[0][:_SHOWN]


# -- the node of a finding: from its own line, from srun's lines, or from torchrun's summary ---------------------------


def _with_nodes(findings: Sequence[LogFinding], lines: Sequence[Line], nodes: Mapping[int, str]) -> list[LogFinding]:
    """Return the findings of one file with their nodes; ``nodes`` (rank -> node) is preferred to what the log says."""
    if not findings:
        return []
    prefixes = _pdsh_nodes(lines)
    of_ranks = _unambiguous(_in_summaries(lines))
    of_tasks = _unambiguous((task, f.node) for f in findings for task in f.ranks)
    if of_ranks:  # torchrun started the ranks, so a task is not a rank
        of_tasks = {}
    of_ranks |= nodes
    return [
        replace(f, node=f.node or _speaker(f.line, prefixes) or _node_of_rank(f, of_ranks, of_tasks)) for f in findings
    ]


def _node_of_rank(finding: LogFinding, of_ranks: Mapping[int, str], of_tasks: Mapping[int, str]) -> str:
    if finding.rank is None:
        return ""
    task_node = of_tasks.get(finding.rank, "") if finding.rank == finding.line.rank else ""
    return of_ranks.get(finding.rank) or task_node


def _speaker(line: Line, prefixes: frozenset[str]) -> str:
    """Return the node that a line begins with, empty if it names none."""
    text = split_rank(line)[1][:READ]
    spoken = _SPEAKER.match(text)
    if spoken is not None:
        return spoken["nccl"] or spoken["ucx"]
    prefix, colon, _ = text.partition(": ")
    return prefix if colon and prefix in prefixes else ""


def _pdsh_nodes(lines: Sequence[Line]) -> frozenset[str]:
    nodes: set[str] = set()
    for line in lines:
        named = _PDSH.search(line.text[:READ])
        if named is not None:
            nodes.update(named["nodes"].split(","))
    return frozenset(nodes)


def _in_summaries(lines: Sequence[Line]) -> list[tuple[int, str]]:
    """Return the rank and host of each failure that torchrun lists."""
    text = "\n".join(split_rank(line)[1][:READ] for line in lines if " : " in line.text[:40])
    return [(int(rank), host) for host, rank in _FAILURE.findall(text)]


def _unambiguous(pairs: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return each number's node; empty for a number that has two, as after a restart."""
    nodes: dict[int, str] = {}
    for number, node in pairs:
        if node:
            nodes[number] = node if nodes.get(number, node) == node else ""
    return nodes
