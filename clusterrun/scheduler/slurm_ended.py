"""What Slurm tells of a job that is over, as pairs of pure functions: who cancelled it, which nodes were lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from clusterrun.job import JobId

_LOST = re.compile(r"\b(?:DOWN|FAIL|NO_RESPOND|NOT_RESPONDING|REBOOT\w*|POWERED_DOWN)|\*")


def ended_argv(job: JobId) -> list[str]:
    """``sacct`` for one job: its state with who cancelled it."""
    return ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=JobID,State"]


def parse_canceller(text: str) -> int | None:
    """The user id in ``CANCELLED by 1000`` of the job's newest row; None where it does not say."""
    found = re.findall(r"^[^|\n]*\|CANCELLED by (\d{1,10})\s*$", text, re.MULTILINE)
    return int(found[-1]) if found else None


def lost_nodes(nodes: Iterable[Mapping[str, str]]) -> list[str]:
    """The names of the nodes that are down or do not answer, of ``scontrol show node``."""
    return [node["NodeName"] for node in nodes if node.get("NodeName") and _LOST.search(node.get("State", ""))]
