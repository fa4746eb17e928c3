"""What NCCL says now of a running job's ranks: asked on its nodes, as the watchdog does when a launch hangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import clusterrun
from clusterrun.base.decode import Damaged
from clusterrun.base.errors import CommandError
from clusterrun.base.job import JobId
from clusterrun.base.nccl_ras import Process, has_service, summarize, unpack
from clusterrun.records.progress import RankProgress
from clusterrun.scheduler.slurm.scontrol import inside_argv
from clusterrun.system import shell
from clusterrun.why.ended.collect import stalled_ranks
from clusterrun.why.stacks import MOST_NODES

_CLIENT = Path(clusterrun.__file__).parent / "worker" / "node" / "nccl_ras.py"
_LIMIT_S = 10.0  # seconds: the client's own limit, and time to start a step


def ask(
    job: JobId, ranks: Sequence[RankProgress], start: Mapping[str, Any] | None, python: str, environ: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return what NCCL says (``nccl_ras.summarize``), or the ``problem``; None if start.json shows no such service.

    Every node is asked at once, up to MOST_NODES; the first answer that can be used is taken.
    """
    if not has_service(start):
        return None
    processes = [Process(one.rank, one.node, one.pid) for one in ranks if one.pid is not None]
    first = {process.node: process.pid for process in reversed(processes)}
    asked = [*first.items()][: 1 if job.is_local else MOST_NODES]
    problems = []
    with ThreadPoolExecutor(MOST_NODES) as pool:
        for answer in as_completed(pool.submit(_ask_node, job, *place, python, environ) for place in asked):
            try:
                return summarize(answer.result(), processes, stalled_ranks(ranks))
            except (CommandError, Damaged) as error:
                problems.append(str(error))
    return {"problem": "; ".join(dict.fromkeys(problems)) or "no rank has recorded its process ID"}


def _ask_node(job: JobId, node: str, pid: int, python: str, environ: Mapping[str, str]) -> str:
    """Return NCCL's answer on a node; raises Damaged with the problem, or CommandError."""
    argv = [python, "-c", _CLIENT.read_text(), str(pid)]
    if not job.is_local:
        argv = inside_argv(job, node, argv, terminal=False)
    done = shell.run(argv, env=shell.query_environment(environ), timeout=_LIMIT_S)
    if done.status:
        raise Damaged(["it could not be asked", *done.stderr.strip().splitlines()][-1])
    answer, problem = unpack(done.stdout)
    if problem:
        raise Damaged(problem)
    return answer


def describe(said: Mapping[str, Any] | None) -> list[list[str]]:
    """Return the paragraph for the terminal; none if NCCL was not asked."""
    if said is None:
        return []
    return [said.get("lines") or [f"NCCL did not say which ranks are behind: {said['problem']}"]]
