"""What the main threads of a running job's ranks do now, by ``py-spy dump`` on their nodes.

py-spy reads a process from outside: the script need not cooperate, and a rank that hangs in C code has a stack too.
Ranks with the same stack are one group, so the rank that is elsewhere stands out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from clusterrun.base.decode import parse_json
from clusterrun.base.errors import CommandError
from clusterrun.base.job import JobId
from clusterrun.base.units import clause, plural
from clusterrun.records.progress import RankProgress
from clusterrun.scheduler.slurm.hostlist import fold
from clusterrun.scheduler.slurm.scontrol import inside_argv
from clusterrun.system import shell
from clusterrun.why.pending.running_job import format_ranks

MOST_NODES = 32  # with one srun each; the ranks of other nodes are left out
_MOST_FRAMES = 20
_RANK_S = 20  # seconds for one rank: a process that waits in the kernel may not let py-spy attach
_STARTER = re.compile(r"clusterrun/worker/(?:rank/user_code|entry|__main__)\.py:\d+\)$")
_MISSING = (
    "py-spy is not installed in the job's environment: run `{python} -m pip install py-spy`;"
    " this does not affect the running job"
)
_MARK = "clusterrun-pid "
# its words: the folder of the job's Python, then the pids
_DUMP = f"""PATH=$1:$PATH; shift; command -v py-spy >/dev/null || exit 127
for pid; do
  echo; echo "{_MARK}$pid"
  timeout {_RANK_S} py-spy dump --json --pid "$pid" 2>&1 || echo "status $?"
done"""


class RankStack(NamedTuple):
    """The main thread of one rank, innermost frame first; if it could not be read, ``problem`` says why."""

    rank: int
    node: str
    pid: int
    frames: tuple[str, ...] = ()
    problem: str = ""


def read_stacks(job: JobId, ranks: Sequence[RankProgress], python: str, environ: Mapping[str, str]) -> list[RankStack]:
    """Return the stacks of these ranks, by rank. ``python`` is the job's; py-spy may lie beside it."""
    by_node: dict[str, list[RankStack]] = {}
    for one in ranks:
        if one.pid is not None:
            by_node.setdefault(one.node, []).append(RankStack(one.rank, one.node, one.pid))
    read = partial(_read_node, job, python=python, environ=environ)
    with ThreadPoolExecutor(MOST_NODES) as pool:
        return sorted(chain.from_iterable(pool.map(read, [*by_node.values()][:MOST_NODES])))


def _read_node(job: JobId, ranks: Sequence[RankStack], python: str, environ: Mapping[str, str]) -> list[RankStack]:
    """Return the ranks of one node with their stacks."""
    argv = ["sh", "-c", _DUMP, "sh", str(PurePosixPath(python).parent), *(str(one.pid) for one in ranks)]
    if not job.is_local:
        argv = inside_argv(job, ranks[0].node, argv, terminal=False)
    timeout = shell.SLURM_TIMEOUT + _RANK_S * len(ranks)
    try:
        done = shell.run(argv, env=shell.query_environment(environ), timeout=timeout)
    except CommandError as error:
        return [one._replace(problem=str(error)) for one in ranks]
    problem = ["no output from the node", *done.stderr.strip().splitlines()][-1]
    if done.status == 127:
        problem = _MISSING.format(python=python)
    answers = _by_pid(done.stdout)
    return [_parse(one, answers[one.pid]) if one.pid in answers else one._replace(problem=problem) for one in ranks]


def _by_pid(text: str) -> dict[int, str]:
    parts = re.split(rf"(?m)^{_MARK}(\d+)$", text)
    return {int(pid): answer for pid, answer in zip(parts[1::2], parts[2::2], strict=True)}


def _parse(stack: RankStack, answer: str) -> RankStack:
    """Return the stack with the frames of the main thread, or with what py-spy printed instead."""
    try:
        (main,) = [one for one in parse_json(answer) if one["os_thread_id"] == one["pid"]]
        frames = [_frame(one) for one in main["frames"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return stack._replace(problem=_reason(answer))
    if not frames:
        return stack._replace(problem="the main thread is not running Python code")
    while len(frames) > 1 and _STARTER.search(frames[-1]):  # what starts the script says nothing about it
        frames.pop()
    return stack._replace(frames=tuple(frames))


def _frame(frame: Mapping[str, Any]) -> str:
    return f"{frame['name']} ({frame['short_filename'] or frame['filename']}:{frame['line']})"


def _reason(answer: str) -> str:
    """Return why py-spy printed no stacks."""
    lines = list(filter(None, map(str.strip, answer.splitlines())))
    if lines[-1:] == ["status 124"]:
        return f"py-spy did not finish within {_RANK_S} s"
    if "Permission denied" in answer or "Operation not permitted" in answer:
        return "py-spy cannot read the process: the node forbids ptrace (kernel.yama.ptrace_scope, or a container)"
    return lines[0] if lines else "py-spy printed nothing"


def describe(stacks: Sequence[RankStack], left_out: int) -> list[list[str]]:
    """Return a paragraph for each group of ranks with the same stack or the same problem, the smallest group first."""
    groups: dict[tuple[tuple[str, ...], str], list[RankStack]] = {}
    for one in stacks:
        groups.setdefault((one.frames, one.problem), []).append(one)
    paragraphs = []
    for (frames, problem), ranks in sorted(groups.items(), key=lambda group: len(group[1])):
        who = f"{format_ranks(one.rank for one in ranks)} on {fold(one.node for one in ranks)}"
        lines = [f"{who}:{clause(problem, ' {}')}", *(f"  {frame}" for frame in frames[:_MOST_FRAMES])]
        if len(frames) > _MOST_FRAMES:
            lines.append(f"  ... and {len(frames) - _MOST_FRAMES} outer frames")
        paragraphs.append(lines)
    if left_out:
        unread = plural(left_out, "rank")
        paragraphs.append([f"stacks not read: {unread} (py-spy runs only on the first {MOST_NODES} nodes)"])
    return paragraphs
