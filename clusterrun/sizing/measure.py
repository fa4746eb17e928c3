"""Measure how a job scales: one short run for each number of GPUs, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from clusterrun.cluster import Cluster
from clusterrun.errors import ClusterrunError, RequestError
from clusterrun.job import Outcome
from clusterrun.jobspec.fields import Value
from clusterrun.records import progress
from clusterrun.sizing.batches import GpuPlan
from clusterrun.sizing.scaling import QUARTERS, Measured, parse_measured
from clusterrun.sizing.speed import count_nodes
from clusterrun.submit.request import SubmitArgs
from clusterrun.terminal.units import plural

_SOURCE = "plan --measure"
# nothing is evaluated at length, generated, saved or uploaded
_QUIET = {
    "eval_every": "0", "eval_samples": "1", "save_every": "0", "resume": "no", "sample_prompts": "[]", "wandb": "",
    "tensorboard": "false", "push_to_hub": "", "save_path": "", "checkpoint_dir": "", "auto_micro_batch": "false",
    "global_batch_size": "0", "drop_last": "true",
}  # fmt: skip


def measure(
    cluster: Cluster,
    args: SubmitArgs,
    plans: Sequence[GpuPlan],
    *,
    gpus_per_node: int,
    steps: int,
    notify: Callable[[str], None],
) -> list[Measured]:
    """Run a job on each number of GPUs and return what was measured.

    ``steps`` is the number of steps with, and then without averaging gradients. Raises ClusterrunError if a run fails,
    and RequestError for a number of GPUs that does not fill its nodes.
    """
    for plan in plans:
        if plan.gpus > gpus_per_node and plan.gpus % gpus_per_node:
            raise RequestError(
                f"{plan.gpus} GPUs are not a whole number of nodes with {gpus_per_node}",
                hint=f"--gpus {plan.gpus // gpus_per_node * gpus_per_node}, or another --gpus-per-node",
            )
        if not plan.steps_drop_last:
            hint = "use fewer GPUs, or a smaller --micro-batch"
            raise RequestError(f"the data does not fill one global batch of {plan.global_batch:,}", hint=hint)
    on_gpus = cluster.plan(args).spec.gpus_per_node != 0
    return [_measure_one(cluster, args, plan, gpus_per_node, on_gpus, steps, notify) for plan in plans]


def measure_settings(plan: GpuPlan, steps: int) -> dict[str, str]:
    """Return the settings of a measuring run; ``steps`` is a multiple of 4."""
    return _QUIET | {
        "micro_batch_size": str(plan.micro_batch),
        "grad_accum_steps": str(plan.grad_accum),
        "steps": str(2 * steps),
        "log_every": str(steps // QUARTERS),
        "measure": str(steps),
    }


def _measure_one(
    cluster: Cluster,
    args: SubmitArgs,
    plan: GpuPlan,
    gpus_per_node: int,
    on_gpus: bool,
    steps: int,
    notify: Callable[[str], None],
) -> Measured:
    nodes = count_nodes(plan.gpus, gpus_per_node)
    each = plan.gpus // nodes
    typed = args.flags["set"].value if "set" in args.flags else {}
    options: dict[str, Any] = {
        "nodes": nodes,
        "gpus-per-node": each if on_gpus else 0,
        "tasks-per-node": each,
        "job-name": f"plan-{plan.gpus}",
        "set": typed | measure_settings(plan, steps),
    }
    flags = {**args.flags, **{name: Value(value, _SOURCE) for name, value in options.items()}}
    run = cluster.submit(cluster.plan(replace(args, flags=flags)))
    notify(f"job {run.job_id} measures {plural(plan.gpus, 'rank')} on {plural(nodes, 'node')}")
    try:
        (state,) = cluster.wait([run])
    except BaseException:  # Ctrl-C: nobody will read what the job measures
        cluster.cancel([one for one in cluster.states([run]) if not one.status.is_over])
        notify(f"cancelled job {run.job_id}")
        raise
    why = f"clusterrun why {run.job_id}"
    if state.status.outcome is not Outcome.DONE:
        raise ClusterrunError(f"job {run.job_id}, which measures {plural(plan.gpus, 'rank')}, failed", hint=why)
    found = parse_measured(progress.last_rows(run.run_dir / "metrics.jsonl"), steps, plan.gpus, nodes)
    if found is None:
        raise ClusterrunError(f"job {run.job_id} ended without enough metrics", hint=why)
    return found
