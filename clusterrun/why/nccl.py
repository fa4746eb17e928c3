"""What NCCL says now of a running job's ranks: asked on its nodes, as the watchdog does when a launch hangs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import clusterrun
from clusterrun.base.errors import CommandError
from clusterrun.base.job import JobId
from clusterrun.base.nccl_ras import Process, first_answer, has_service
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
    """Return what NCCL says (``nccl_ras.first_answer``); None if start.json shows no such service.

    At most MOST_NODES nodes are asked, all at the same time.
    """
    if not has_service(start):
        return None
    processes = [Process(one.rank, one.node, one.pid) for one in ranks if one.pid is not None]
    first = {process.node: process for process in reversed(processes)}
    asked = [*first.values()][: 1 if job.is_local else MOST_NODES]
    client = [python, "-c", _CLIENT.read_text()]
    with ThreadPoolExecutor(MOST_NODES) as pool:
        outputs = pool.map(lambda process: (process.node, _ask_node(job, process, client, environ)), asked)
        return first_answer(outputs, processes, stalled_ranks(ranks))


def _ask_node(job: JobId, process: Process, client: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what the client prints on the node of a process, or why it could not be started."""
    argv = [*client, str(process.pid)]
    if not job.is_local:
        argv = inside_argv(job, process.node, argv, terminal=False)
    try:
        done = shell.run(argv, env=shell.query_environment(environ), timeout=_LIMIT_S)
    except CommandError as error:
        return json.dumps({"problem": str(error)})
    failed = ["the client did not start", *done.stderr.strip().splitlines()][-1]
    return json.dumps({"problem": failed}) if done.status else done.stdout


def describe(said: Mapping[str, Any] | None) -> list[list[str]]:
    """Return the paragraph for the terminal; none if NCCL was not asked."""
    if said is None:
        return []
    return [said.get("lines") or [f"NCCL did not say which ranks are behind: {said['problem']}"]]
