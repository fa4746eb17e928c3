"""What NCCL itself says of a launch that hangs, and whether the ranks' own records agree: evidence, no judgement."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from typing import Any

from ...base.nccl_ras import Process, first_answer, has_service
from ...run_folder import atomic, ends
from ...run_folder.files import file_mode
from . import hung_step
from .job import Job
from .stall import RankMark


def collect(job: Job, marks: Iterable[RankMark], own: Collection[int], lost: Collection[str]) -> dict[str, Any] | None:
    """Return what hang.json says of NCCL's answer, which is kept beside it; None if the ranks do not have the service.

    `own` are the ranks that their records name; the `lost` nodes are not asked.
    """
    if not has_service(ends.load_start(job.attempt_dir)):
        return None

    def keep(answer: str) -> None:
        path = job.attempt_dir / ends.NCCL
        with suppress(OSError), atomic.replacing(path, file_mode(path.parent), lasting=False) as file:
            file.write(answer.encode("utf-8", "replace"))

    processes = [Process(mark.rank, mark.node, mark.pid) for mark in marks]
    with closing(hung_step.ask_nccl(job, [node for node in job.nodes if node not in lost])) as outputs:
        return first_answer(outputs, processes, own, keep)
