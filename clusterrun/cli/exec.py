"""``exec``: run a command, or open a shell, on a node of a running job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import click

from clusterrun.base.errors import NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import Outcome
from clusterrun.base.units import first_few
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_target
from clusterrun.cli.common.session import Session
from clusterrun.cluster import Cluster
from clusterrun.records import run_record
from clusterrun.run_folder import ends
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.scontrol import inside_argv
from clusterrun.state.reconcile import RunState, Target
from clusterrun.system import shell
from clusterrun.terminal.ui import Ui


@click.command(name="exec", context_settings={"ignore_unknown_options": True})
@click.argument("job_id", metavar="JOBID [-- COMMAND]...", shell_complete=complete.active_jobs)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.option("--node", metavar="NAME", help="Node to use; default: the job's first node.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Use the node that rank N runs on.")
@click.pass_context
def exec_command(ctx: click.Context, job_id: str, words: tuple[str, ...], node: str | None, rank: int | None) -> None:
    """Run a command, or open a shell, on a node of a running job.

    \b
      clusterrun exec 123 -- nvidia-smi
      clusterrun exec 123 --rank 5 -- py-spy dump --pid 4711
      clusterrun exec last --node gpu02          a shell

    The command or shell shares the job's CPUs, memory and GPUs. The exit code is that of the command. The job keeps
    running.
    """
    ui = Ui("exec")
    session: Session = ctx.obj
    command = session.script
    _refuse_words(ctx, job_id, words)
    if session.script is not None and not session.script:
        raise RequestError("no command after --", hint=f"clusterrun exec {job_id} -- nvidia-smi")
    if node is not None and rank is not None:
        raise RequestError("--node and --rank cannot be combined", hint="use one of them")
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if command is None and not terminal:
        raise RequestError("a shell needs a terminal", hint=f"give a command: clusterrun exec {job_id} -- nvidia-smi")
    cluster = session.cluster(ui.note)
    state = find_running(cluster, find_target(cluster, job_id, active=True))
    if state.status.inner_id.is_local:
        raise RequestError(f"job {state.status.id} is running on this machine", hint="run the command in this shell")
    where = _choose_node(state, node, rank)
    ctx.exit(
        shell.run_here(
            inside_argv(state.status.inner_id, where, command or ["bash", "-l"], terminal=terminal), os.environ
        )
    )


def _refuse_words(ctx: click.Context, job_id: str, words: tuple[str, ...]) -> None:
    """Raise for words before ``--``, which are the command of a user who left it out, or a mistyped option."""
    for word in (job_id, *words[:1]):
        if word.startswith("-"):
            raise click.NoSuchOption(word, ctx=ctx)
    if words:
        raise RequestError("the command must follow --", hint=f"clusterrun exec {job_id} -- {shlex.join(words)}")


def find_running(cluster: Cluster, target: Target) -> RunState:
    """Return the state of the job; raises RequestError unless it is one running job of this user."""
    states = cluster.status([target])
    state, job = states[0], states[0].status
    if (state.record is not None and not state.record.mine) or job.user not in ("", cluster.user):
        raise NoSuchJob(f"job {job.id} belongs to another user", hint="`clusterrun list` shows your jobs")
    if len(states) > 1 or job.tasks:
        raise _several(target.text, states)
    if job.outcome is Outcome.UNKNOWN and state.note:
        raise SchedulerError(f"the state of job {job.id} is unknown", detail=state.note, hint="try again in a moment")
    if job.state != "RUNNING":
        raise RequestError(f"job {job.id} is {job.state}, not RUNNING", hint=f"clusterrun why {job.id}")
    return state


def _several(job_id: str, states: Sequence[RunState]) -> RequestError:
    jobs = {state.status.id.base for state in states}
    what = f"run {job_id} has several active jobs"
    if len(jobs) == 1:
        what = f"job {jobs.pop()} has several array tasks or components"
    return RequestError(what, hint=f"give one of them: {first_few([str(state.status.id) for state in states])}")


def _choose_node(state: RunState, node: str | None, rank: int | None) -> str:
    nodes = expand(state.status.nodes)
    if rank is not None:
        node = _node_of_rank(state, rank)
    if not nodes:
        raise SchedulerError(f"Slurm lists no nodes for job {state.status.id}", hint="try again in a moment")
    if node is None:
        return nodes[0]
    if node not in nodes:
        raise RequestError(f"job {state.status.id} is not running on {node}", hint=f"its nodes: {first_few(nodes)}")
    return node


def _node_of_rank(state: RunState, rank: int) -> str:
    run, job = state.record, state.status.id
    folders = run_record.attempts(run, job.task) if run is not None else []
    starts = filter(None, map(ends.load_start, folders[-1:]))
    ranks = {entry["rank"]: str(entry["node"]) for start in starts for entry in start["ranks"]}
    if not ranks:
        raise RequestError(f"there is no record of where the ranks of job {job} run", hint="use --node")
    if rank not in ranks:
        raise RequestError(f"job {job} has no rank {rank}", hint=f"its ranks: 0-{max(ranks)}")
    return ranks[rank]
