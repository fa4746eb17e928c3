"""Compare a run with another one: options, code, environment and metrics; and with what was requested.

`expected.py` does the latter, for `check JOBID`; `check_report.py` is the report of nodes and links.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Change(NamedTuple):
    """A value that differs: its name, and both values with where they come from. None: the run has no such value."""

    name: str
    first: Any
    second: Any
    sources: tuple[str, str] = ("", "")


def changes_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Return the changes for ``--json``: name, both values, and both sources (None: not recorded)."""
    return [
        {
            "name": change.name,
            "values": [change.first, change.second],
            "sources": [source or None for source in change.sources],
        }
        for change in changes
    ]


def find_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterable[Change]:
    """Yield the values that differ between two mappings, in the order of their keys."""
    for name in {**first, **second}:
        if first.get(name) != second.get(name):
            yield Change(name, first.get(name), second.get(name))
