"""What a check found."""

from __future__ import annotations

from typing import NamedTuple

from clusterrun.base.errors import RequestError


class Finding(NamedTuple):
    """One line about a job; ``never`` means that it cannot run like this, otherwise it is doubtful."""

    line: str
    hint: str = ""
    never: bool = False


class CannotCheck(Exception):
    """A check could not run; the message says why, in one line."""


def refuse(findings: list[Finding]) -> None:
    """Raise RequestError for the first finding with which the job can never run."""
    for finding in findings:
        if finding.never:
            raise RequestError(finding.line, hint=finding.hint)
