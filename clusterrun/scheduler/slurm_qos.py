"""The limits of every QOS as accounting has them, a pair of pure functions: argv out, text in.

slurmctld (:mod:`clusterrun.scheduler.slurm_limits`) tells what is used as well, but the limits of a QOS on each user
and account only for those who have run in it.
"""

from __future__ import annotations

import re

from clusterrun.scheduler.slurm_text import duration

Limits = dict[tuple[str, str], float]
"""Limits by slurmctld's name and the TRES they are on, empty where that is jobs or time: ``("GrpTRES", "gres/gpu")``.

In slurmctld's units: MB and minutes.
"""

#: sacctmgr's columns, and slurmctld's names for them (22.05 to 26.05).
_COLUMNS = {"GrpJobs": "GrpJobs", "GrpSubmit": "GrpSubmitJobs", "GrpTRES": "GrpTRES", "MaxJobsPU": "MaxJobsPU",
            "MaxSubmitPU": "MaxSubmitJobsPU", "MaxTRESPU": "MaxTRESPU", "MaxJobsPA": "MaxJobsPA",
            "MaxSubmitPA": "MaxSubmitJobsPA", "MaxTRESPA": "MaxTRESPA", "MaxTRES": "MaxTRESPJ",
            "MaxTRESPerNode": "MaxTRESPN", "MaxWall": "MaxWallPJ"}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([MGTP]?)", re.ASCII)


def qos_argv() -> list[str]:
    """Ask for all of them."""
    return ["sacctmgr", "-nP", "show", "qos", f"format=Name,{','.join(_COLUMNS)}"]


def parse_qos(text: str) -> dict[str, Limits]:
    """The limits that are set, by QOS."""
    found: dict[str, Limits] = {}
    for line in text.split("\n"):
        cells = line.split("|")
        if len(cells) != len(_COLUMNS) + 1 or not cells[0]:
            continue
        limits: Limits = {}
        for name, cell in zip(_COLUMNS.values(), cells[1:], strict=True):
            if "TRES" in name:
                limits |= {(name, tres): limit for tres, limit in _tres(cell).items()}
            elif name == "MaxWallPJ":
                limits |= {(name, ""): seconds / 60} if (seconds := duration(cell)) is not None else {}
            elif (number := _size(cell)) is not None:
                limits[name, ""] = number
        found[cells[0]] = limits
    return found


def _tres(text: str) -> dict[str, float]:
    pairs = ((tres, _size(value)) for tres, _, value in (item.rpartition("=") for item in text.split(",")))
    return {tres: value for tres, value in pairs if tres and value is not None}


def _size(text: str) -> float | None:
    """A number; with a letter it is memory, in MB: ``62.50G``."""
    match = _SIZE.fullmatch(text)
    return None if match is None else float(match[1]) * (1024 ** "MGTP".index(match[2]) if match[2] else 1)
