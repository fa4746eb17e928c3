"""sacctmgr: the limits of every QOS, and a user's associations. Arguments of the commands, and parsers of their output.

slurmctld (:mod:`clusterrun.scheduler.slurm.limits`) also shows how much is used, but the limits of a QOS per user and
per account only for those who have run in it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from clusterrun.scheduler.slurm.values import parse_duration

Limits = dict[tuple[str, str], float]
"""Limits by slurmctld's name and the TRES, as ``("GrpTRES", "gres/gpu")``; the TRES is empty for jobs and time.

Units are slurmctld's: MB and minutes.
"""

#: sacctmgr's columns, and slurmctld's names for them (22.05 to 26.05).
_COLUMNS = {"GrpJobs": "GrpJobs", "GrpSubmit": "GrpSubmitJobs", "GrpTRES": "GrpTRES", "MaxJobsPU": "MaxJobsPU",
            "MaxSubmitPU": "MaxSubmitJobsPU", "MaxTRESPU": "MaxTRESPU", "MaxJobsPA": "MaxJobsPA",
            "MaxSubmitPA": "MaxSubmitJobsPA", "MaxTRESPA": "MaxTRESPA", "MaxTRES": "MaxTRESPJ",
            "MaxTRESPerNode": "MaxTRESPN", "MaxWall": "MaxWallPJ"}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([MGTP]?)", re.ASCII)


def qos_argv() -> list[str]:
    """Return the command for all QOS."""
    return ["sacctmgr", "-nP", "show", "qos", f"format=Name,{','.join(_COLUMNS)},Flags"]


def parse_qos(text: str) -> dict[str, Limits]:
    """Parse the limits that are set, by QOS."""
    found: dict[str, Limits] = {}
    for line in text.split("\n"):
        cells = line.split("|")
        if len(cells) <= len(_COLUMNS) or not cells[0]:
            continue
        limits: Limits = {}
        for name, cell in zip(_COLUMNS.values(), cells[1:], strict=False):
            limits |= _limits(name, cell)
        found[cells[0]] = limits
    return found


def _limits(name: str, cell: str) -> Limits:
    """Parse the limits in one cell, of a name of slurmctld's; a cell without one is empty."""
    if "TRES" in name:
        return {(name, tres): limit for tres, limit in _tres(cell).items()}
    is_time = name == "MaxWallPJ"
    limit = parse_duration(cell) if is_time else _size(cell)
    return {} if limit is None else {(name, ""): limit / 60 if is_time else limit}


def parse_qos_flags(text: str) -> dict[str, frozenset[str]]:
    """Parse the flags of each QOS, such as ``PartitionTimeLimit``: its jobs may exceed the partition's time limit."""
    rows = (line.split("|") for line in text.split("\n"))
    return {r[0]: frozenset(r[-1].split(",")) - {""} for r in rows if len(r) == len(_COLUMNS) + 2 and r[0]}


def _tres(text: str) -> dict[str, float]:
    pairs = ((tres, _size(value)) for tres, _, value in (item.rpartition("=") for item in text.split(",")))
    return {tres: value for tres, value in pairs if tres and value is not None}


def _size(text: str) -> float | None:
    """Parse a number; with a letter it is memory, returned in MB: ``62.50G``."""
    match = _SIZE.fullmatch(text)
    return None if match is None else float(match[1]) * (1024 ** "MGTP".index(match[2]) if match[2] else 1)


class Association(NamedTuple):
    """An account that the user may charge, with its partition (or empty) and QOS."""

    account: str
    partition: str
    qos: tuple[str, ...]
    default_qos: str


def associations_argv(user: str, cluster: str) -> list[str]:
    """Return the command for the accounts that a user may charge on this cluster (a database may serve several)."""
    where = [f"user={user}", *([f"cluster={cluster}"] if cluster else [])]
    return ["sacctmgr", "-nP", "show", "assoc", *where, "format=account,partition,qos,defaultqos"]


def parse_associations(text: str) -> tuple[Association, ...]:
    """Parse the user's associations, in Slurm's order."""
    rows = (line.split("|") for line in text.split("\n"))
    return tuple(
        Association(r[0], r[1], tuple(q for q in r[2].split(",") if q), r[3]) for r in rows if len(r) == 4 and r[0]
    )
