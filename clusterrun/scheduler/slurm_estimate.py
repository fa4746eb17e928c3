"""``sbatch --test-only``: when a job would start, asked without making it; argv out, text in.

The job must be told on standard input, so that nothing is written. slurmctld takes a job id for each question and
keeps no job. Its answer supposes that running jobs use their whole time limit and adds the waiting ones of higher
priority roughly (src/slurmctld/job_scheduler.c, _delayed_job_start_time).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clusterrun.errors import Refused
from clusterrun.scheduler.slurm_text import SAYINGS

# 22.05, 24.11: "Job 5 to start at T using 8 processors on nodes node[1-2] in partition gpu"; of a federation and
# since 25.05 "… at T on cluster C a using …" (src/api/allocate.c); before 17.11 there was no partition.
_ACCEPTED = re.compile(
    r"Job \d+ to start at (?P<at>\S+)(?: on cluster \S+)?(?: a)? using (?P<cpus>\d+) processors on (?:nodes )?"
    r"(?P<nodes>\S+)(?: in partition (?P<partition>\S+))?"
)
_PREEMPTS = re.compile(r"Preempts: ([0-9,]+)")
_FAILED = "allocation failure: "


@dataclass(frozen=True, slots=True)
class Start:
    """When and where a job would start; ``at`` in epoch seconds, None where Slurm could not tell.

    ``preempts`` are the jobs that would have to leave for it.
    """

    at: int | None
    nodes: str
    partition: str
    preempts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class No:
    """Slurm takes no such job, in its own ``words``."""

    words: str


@dataclass(frozen=True, slots=True)
class Silence:
    """Slurm did not answer; ``words`` say how."""

    words: str


Estimate = Start | No | Silence


def test_only_argv(arguments: Sequence[str]) -> list[str]:
    """Ask about the script on standard input; ``arguments`` are the user's own sbatch arguments."""
    return ["sbatch", "--test-only", *arguments]


def parse_test_only(stderr: str, note: str) -> Estimate:
    """What it said, on standard error in any case; ``note`` is why it failed in a line, empty if it did not."""
    found = list(_ACCEPTED.finditer(stderr))
    if found and not note:
        one, preempts = found[-1], _PREEMPTS.search(stderr)
        at = int(one["at"]) if one["at"].isascii() and one["at"].isdigit() and len(one["at"]) < 12 else None
        return Start(
            at or None, one["nodes"], one["partition"] or "", tuple(preempts[1].split(",")) if preempts else ()
        )
    wire = any(said.text in stderr for said in SAYINGS if not issubclass(said.kind, Refused))
    if wire or not note or not stderr.strip():  # an answer without an error that cannot be read is none either
        return Silence(_words(stderr) or note or "sbatch --test-only said nothing")
    return No(_words(stderr))


def _words(stderr: str) -> str:
    """Slurm's reason: what follows ``allocation failure``, else the last line, without sbatch's own name."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    final = next((line for line in reversed(lines) if _FAILED in line), lines[-1] if lines else "")
    return re.sub(rf"^(sbatch: )?(error: |fatal: )?({_FAILED})?", "", final)
