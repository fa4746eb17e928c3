"""Holding and releasing a job that waits, as a pair of pure functions: argv out, text in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterrun.job import JobId

HELD = ("JobHeldUser", "JobHeldAdmin")
"""squeue's reasons of a job that is held; an administrator's hold only an administrator releases."""


def hold_argv(job: JobId, *, release: bool, cluster: str = "") -> Sequence[str]:
    """``scontrol hold|release ID``; an array by its base, or one task of it."""
    where = [f"--clusters={cluster}"] if cluster else []
    return ["scontrol", *where, "release" if release else "hold", str(job)]


def parse_hold(stderr: str) -> str:
    """scontrol's own words for why not, in one line; an empty text where it said nothing.

    It says them twice: with the job (``… for job 5``), and for its call of the controller (``slurm_suspend error: …``).
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r" for job \S+$", line)]
    return (named or lines or [""])[0]
