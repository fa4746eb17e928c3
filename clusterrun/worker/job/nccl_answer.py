"""What NCCL itself says of a launch that hangs, and whether the ranks' own records agree: evidence, no judgement."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from pathlib import Path

from ...base.decode import Damaged
from ...base.nccl_ras import Process, has_service, summarize, unpack
from ...base.units import first_few
from ...run_folder import atomic, ends
from ...run_folder.files import file_mode
from . import hung_step
from .job import Job
from .stall import RankMark


def collect(
    job: Job, marks: Iterable[RankMark], own: Collection[int], lost: Collection[str]
) -> dict[str, object] | None:
    """Return what hang.json says of NCCL's answer, which is kept beside it; None if the ranks do not have the service.

    `own` are the ranks that their records name; the `lost` nodes are not asked. The first answer that can be used is
    taken, as each is about all ranks.
    """
    if not has_service(ends.load_start(job.attempt_dir)):
        return None
    processes = [Process(mark.rank, mark.node, mark.pid) for mark in marks]
    problems: dict[str, list[str]] = {}
    with closing(hung_step.ask_nccl(job, [node for node in job.nodes if node not in lost])) as outputs:
        for node, output in outputs:
            try:
                answer = _keep(job.attempt_dir, output)
                return summarize(answer, processes, own)
            except Damaged as error:
                problems.setdefault(str(error), []).append(node)
    parts = [f"{problem} on {first_few(nodes)}" for problem, nodes in problems.items()]
    return {"problem": "; ".join(parts) or f"no node responded within {hung_step.NCCL_S:.0f} s"}


def _keep(folder: Path, output: bytes) -> str:
    """Return the answer in what nccl_ras.py printed, and write it, without waiting for the disk; raises Damaged."""
    answer, problem = unpack(output)
    if answer:
        with suppress(OSError), atomic.replacing(folder / ends.NCCL, file_mode(folder), lasting=False) as file:
            file.write(answer.encode("utf-8", "replace"))
    if problem:
        raise Damaged(problem)
    return answer
