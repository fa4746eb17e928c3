"""Evidence: what is known of a job's end. The lines of its logs, the findings in them and in its records, the facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from clusterrun.why.causes.model import EndFacts, Line, LogFinding, Logs
from clusterrun.why.causes.nodes import with_nodes
from clusterrun.why.causes.recorded import with_records
from clusterrun.why.causes.scan import scan

Test = Callable[[LogFinding], bool]


@dataclass(frozen=True)
class Evidence:
    """The logs, most trusted first, the findings of each in order, and the facts of the end."""

    logs: Logs
    facts: EndFacts
    by_log: Sequence[Sequence[LogFinding]]

    @classmethod
    def gather(cls, logs: Logs, facts: EndFacts) -> Evidence:
        """Find what the tables know in the logs, and place what the job itself recorded."""
        found = [with_nodes(scan(lines), lines, facts.nodes) for lines in logs]
        return cls(logs, facts, with_records(found, logs, facts))

    @cached_property
    def findings(self) -> list[LogFinding]:
        """All findings, log by log."""
        return list(chain(*self.by_log))

    def first(self, test: Test) -> LogFinding | None:
        """Return the first finding that passes a test."""
        return first(self.findings, test)

    def of_kind(self, *kinds: str) -> LogFinding | None:
        """Return the first finding of one of these kinds."""
        return self.first(lambda f: f.kind in kinds)

    def beside(self, finding: LogFinding) -> Sequence[LogFinding]:
        """Return the findings of the log that a finding is in."""
        for findings in self.by_log:
            if finding in findings:
                return findings
        return ()

    def lines_of(self, finding: LogFinding) -> Sequence[Line]:
        """Return the lines of the log that a finding is in; none if it is of a record."""
        for lines in self.logs:
            if finding.is_in(lines):
                return lines
        return ()


def first(findings: Sequence[LogFinding], test: Test) -> LogFinding | None:
    """Return the first finding that passes a test."""
    for finding in findings:
        if test(finding):
            return finding
    return None
