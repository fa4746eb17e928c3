"""What the main threads of a running job's ranks do now, by ``py-spy dump`` on their nodes.

py-spy reads a process from outside: the script need not cooperate, and a rank that hangs in C code has a stack too.
Ranks with the same stack are one group, so the rank that is elsewhere stands out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import NamedTuple

from clusterrun.base.decode import parse_json
from clusterrun.base.errors import CommandError
from clusterrun.base.job import JobId
from clusterrun.base.units import plural
from clusterrun.records.progress import RankProgress
from clusterrun.scheduler.slurm.hostlist import fold
from clusterrun.scheduler.slurm.scontrol import inside_argv
from clusterrun.system import shell

MOST_NODES = 32  # with one srun each; the ranks of other nodes are left out
_MOST_FRAMES = 20
_RANK_S = 20  # seconds for one rank: a process that waits in the kernel may not let py-spy attach
_STARTERS = ("clusterrun/worker/rank/user_code.py", "clusterrun/worker/entry.py", "clusterrun/worker/__main__.py")
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
    nodes: dict[str, list[RankProgress]] = {}
    for one in ranks:
        if one.pid is not None:
            nodes.setdefault(one.node, []).append(one)

    def of_node(node: str) -> list[RankStack]:
        return _read_node(job, node, nodes[node], python, environ)

    with ThreadPoolExecutor(MOST_NODES) as pool:
        found = [stack for of_one in pool.map(of_node, [*nodes][:MOST_NODES]) for stack in of_one]
    return sorted(found)


def _read_node(
    job: JobId, node: str, ranks: Sequence[RankProgress], python: str, environ: Mapping[str, str]
) -> list[RankStack]:
    argv = ["sh", "-c", _DUMP, "sh", str(PurePosixPath(python).parent), *(str(one.pid) for one in ranks)]
    if not job.is_local:
        argv = inside_argv(job, node, argv, terminal=False)
    timeout = shell.SLURM_TIMEOUT + _RANK_S * len(ranks)
    try:
        done = shell.run(argv, env=shell.query_environment(environ), timeout=timeout)
    except CommandError as error:
        answers, problem = {}, str(error)
    else:
        answers = _by_pid(done.stdout)
        last = _last_line(done.stderr) or "no output from the node"
        problem = _MISSING.format(python=python) if done.status == 127 else last
    return [
        _parse(RankStack(one.rank, node, one.pid or 0), answers[one.pid])
        if one.pid in answers
        else RankStack(one.rank, node, one.pid or 0, problem=problem)
        for one in ranks
    ]


def _by_pid(text: str) -> dict[int, str]:
    parts = re.split(rf"(?m)^{_MARK}(\d+)$", text)
    return {int(pid): answer for pid, answer in zip(parts[1::2], parts[2::2], strict=True)}


def _parse(stack: RankStack, answer: str) -> RankStack:
    """Return the stack with the frames of the main thread, or with what py-spy printed instead."""
    try:
        threads = parse_json(answer)
        (main,) = [one for one in threads if one["os_thread_id"] == one["pid"]]
        frames = [(one["short_filename"] or one["filename"], one["line"], one["name"]) for one in main["frames"]]
        while len(frames) > 1 and frames[-1][0].endswith(_STARTERS):  # what starts the script says nothing about it
            frames.pop()
        lines = tuple(f"{name} ({file}:{line})" for file, line, name in frames)
    except (ValueError, TypeError, KeyError, AttributeError):
        return stack._replace(problem=_reason(answer))
    problem = "the main thread is not running Python code"
    return stack._replace(frames=lines) if lines else stack._replace(problem=problem)


def _reason(answer: str) -> str:
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    if lines and lines[-1] == "status 124":
        return f"py-spy did not finish within {_RANK_S} s"
    if "Permission denied" in answer or "Operation not permitted" in answer:
        return "py-spy cannot read the process: the node forbids ptrace (kernel.yama.ptrace_scope, or a container)"
    return lines[0] if lines else "py-spy printed nothing"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def describe(stacks: Sequence[RankStack], left_out: int) -> list[list[str]]:
    """Return a paragraph for each group of ranks with the same stack or the same problem, the smallest group first."""
    groups: dict[tuple[tuple[str, ...], str], list[RankStack]] = {}
    for one in stacks:
        groups.setdefault((one.frames, one.problem), []).append(one)
    found = []
    for (frames, problem), ranks in sorted(groups.items(), key=lambda group: len(group[1])):
        numbers = fold(str(one.rank) for one in ranks).strip("[]")
        nodes = fold(dict.fromkeys(one.node for one in ranks))
        who = f"rank{'s' if len(ranks) > 1 else ''} {numbers} on {nodes}"
        if problem:
            found.append([f"{who}: {problem}"])
            continue
        more = len(frames) - _MOST_FRAMES
        outer = [f"  ... and {more} outer frames"] if more > 0 else []
        found.append([f"{who}:", *(f"  {frame}" for frame in frames[:_MOST_FRAMES]), *outer])
    if left_out:
        unread = plural(left_out, "rank")
        found.append([f"stacks not read: {unread} (py-spy runs only on the first {MOST_NODES} nodes)"])
    return found
