"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.base.errors import RequestError

Finding = str | RequestError
"""A line about what is doubtful in a job, or the error with which it can never run."""


class CannotCheck(Exception):
    """A check could not run; the message says why, in one line."""


def refuse(findings: Iterable[Finding]) -> None:
    """Raise the first error with which the job can never run."""
    for finding in findings:
        if isinstance(finding, RequestError):
            raise finding
