"""``free``: show free GPUs, the user's limits, and where a job would start soonest."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LOCAL, one_cluster
from clusterrun.cli.common import complete
from clusterrun.cli.common.options import Grouped, job_and_script, spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cluster import Cluster
from clusterrun.free.estimate import AUTO, StartEstimates, find_partitions
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.free.summary import PartitionSum, node_rows, partition_sums
from clusterrun.free.text import format_estimates, format_failures, format_summary
from clusterrun.run_folder import node_failures
from clusterrun.scheduler.local import devices
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.jobspec.fields import Value
    from clusterrun.submit.request import SubmitArgs


@click.command(cls=Grouped)
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]", shell_complete=complete.job_files)
@spec_options
@json_option
@click.pass_context
def free(ctx: click.Context, /, words: tuple[str, ...], profile: str | None, as_json: bool, **options: Any) -> None:
    """Show free resources by partition and node, and your limits. Given the arguments of `submit`, show where the job
    would start soonest: in which partition and on how many nodes.

    \b
      clusterrun free
      clusterrun free --partition gpu
      clusterrun free --nodes 2 --gpus-per-node 4 --time 2:00:00
      clusterrun free sft --gpus-per-node 8

    Start times come from sbatch --test-only, which submits nothing. Exit 3 if no partition accepts the job.
    """
    ui = Ui("free", as_json=as_json)
    session: Session = ctx.obj
    cluster = session.planner(ui.note, submits=False)
    job, script = job_and_script(words, session.script)
    request = submit_args(job, script, profile, options)
    if job and (shape := re.fullmatch(r"([1-9][0-9]{0,4})[x×]([1-9][0-9]{0,3})", job)):
        hint = f"clusterrun free --nodes {shape[1]} --gpus-per-node {shape[2]}"
        raise RequestError(f"{job} is not a job file; request nodes and GPUs with options", hint=hint)
    scheduler = request.flags.get("scheduler")
    if cluster.scheduler(str(scheduler.value) if scheduler else AUTO).name == LOCAL:
        _print_local(ui, cluster, chosen=scheduler is not None)
    elif job or script or profile or request.flags.keys() - {"partition", "scheduler"}:
        found = _find_soonest(cluster, request)
        ui.data(_soonest_json(found))
        ui.say(*format_estimates(found, time.time()))
        _print_notes(ui, found)
        if not found.starts:
            ctx.exit(3)
    else:
        _print_summary(ui, cluster, request.flags.get("partition"))


def _print_summary(ui: Ui, cluster: Cluster, partition: Value | None) -> None:
    """Print the free resources, of one partition if it is given."""
    seen = cluster.free()
    if partition is not None:
        kept = find_partitions(seen, str(partition.value))
        names = {one.name for one in kept}
        nodes = tuple(node for node in seen.nodes if not names.isdisjoint(node.partitions))
        seen = replace(seen, partitions=tuple(kept), nodes=nodes)
    failures = node_failures.load(cluster.state, one_cluster(cluster.scheduler("slurm").cluster), time.time())
    ui.data({**_summary_json(seen), "node_failures": [one.json() for found in failures.values() for one in found]})
    ui.say(*format_summary(seen, time.time()), *format_failures(failures, time.time()))
    for note in seen.notes:
        ui.note(note)


def _find_soonest(cluster: Cluster, request: SubmitArgs) -> StartEstimates:
    try:
        return cluster.soonest(request)
    except RequestError as error:
        # a partition typed instead of a job: a likely mistake
        if error.message.startswith("no job ") and request.job in {p.name for p in cluster.free().partitions}:
            error.hint = f"{request.job} is a partition: clusterrun free --partition {request.job}"
        raise


def _print_local(ui: Ui, cluster: Cluster, *, chosen: bool) -> None:
    count = len(devices.visible(cluster.environ))
    ui.data({"scheduler": LOCAL, "gpus": count})
    where = "local jobs run" if chosen else "Slurm not found; jobs run"
    ui.say(f"{where} on this machine, which has {count or 'no'} GPU{'s'[: count != 1]}")


def _print_notes(ui: Ui, found: StartEstimates) -> None:
    if found.silence:
        ui.note(f"Slurm stopped responding ({found.silence}); the list is incomplete")
    elif found.unasked:
        ui.note(
            "only the most promising partitions and job sizes were tried; use --partition to try a specific partition"
        )
    if found.dependency:
        ui.note(f"the estimates ignore --dependency {found.dependency}, so the job may start later")


def _soonest_json(found: StartEstimates) -> dict[str, Any]:
    per_node = f"{found.shape.unit.lower()}s_per_node"
    by_slurm = [(*where, answer.words, "slurm") for *where, answer in found.refused if not answer.is_silence]
    by_clusterrun = [(*refused, "clusterrun") for refused in found.no]
    return {
        "asked": {"nodes": found.shape.nodes, per_node: found.shape.each},
        "options": [
            {
                "partition": tried.partition,
                "nodes": tried.shape.nodes,
                per_node: tried.shape.each,
                "start": tried.start.at,
                "node_list": tried.start.nodes,
                "time_limit_given": tried.given_time,
                "preempts": list(tried.start.preempts),
                "preempted": asdict(tried.preemption) if tried.preemption else None,
                "command": tried.command,
            }
            for tried in found.starts
        ],
        "refused": [
            {"partition": partition, "shape": str(shape), "reason": why, "by": by}
            for shape, partition, why, by in by_slurm + by_clusterrun
        ],
        "beyond_limits": list(found.exceeded_limits),
        "unanswered": list(filter(None, [found.silence])),
        "unasked": found.unasked,
    }


def _summary_json(seen: ClusterSnapshot) -> dict[str, Any]:
    return {
        "partitions": [_partition_json(row) for row in partition_sums(seen)],
        "nodes": [{**asdict(row), "types": dict(row.types), "node_list": row.folded} for row in node_rows(seen.nodes)],
        "limits": None if seen.limits is None else [{**asdict(one), "left": one.left} for one in seen.limits],
        "notes": list(seen.notes),
    }


def _partition_json(row: PartitionSum) -> dict[str, Any]:
    return {
        "partition": row.partition.name,
        "default": row.partition.default,
        "time_limit": row.partition.time_limit,
        "unit": row.unit,
        "free": row.free,
        "total": row.total,
        "types": {kind: {"free": free, "total": total} for kind, free, total in row.types},
        "nodes": dict(row.standings),
        "use_unknown": row.untold,
        "closed": row.closed,
        "preempted": asdict(row.preemption) if row.preemption else None,
    }
