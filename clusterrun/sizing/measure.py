"""Measure how a job scales: one short run for each number of GPUs, one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from clusterrun.base.decode import as_int
from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.base.job import Outcome
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import Value
from clusterrun.records import progress, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.sizing.batches import GpuPlan
from clusterrun.sizing.scaling import QUARTERS, UNKNOWN_HOST, Host, Measured, parse_measured
from clusterrun.sizing.speed import count_nodes
from clusterrun.state.reconcile import RunState
from clusterrun.submit.request import SubmitArgs

# nothing is evaluated at length, generated, saved or uploaded
_QUIET = {
    "eval_every": "0", "eval_samples": "1", "early_stopping": "0", "save_every": "0", "resume": "no",
    "sample_prompts": "[]", "wandb": "", "tensorboard": "false", "push_to_hub": "", "save_path": "", "export": "",
    "checkpoint_dir": "", "auto_micro_batch": "false", "global_batch_size": "0", "drop_last": "true",
}  # fmt: skip


def measure(
    args: SubmitArgs,
    plans: Sequence[GpuPlan],
    run_to_end: Callable[[SubmitArgs], RunState],
    *,
    gpus_per_node: int,
    on_gpus: bool,
    steps: int,
) -> list[Measured]:
    """Run a job on each number of GPUs and return what was measured; ``run_to_end`` submits one and waits for its end.

    ``steps`` is the number of steps with, and then without averaging gradients. Raises ClusterrunError if a run fails,
    and RequestError for a number of GPUs that does not fill its nodes.
    """
    for plan in plans:
        if plan.gpus > gpus_per_node and plan.gpus % gpus_per_node:
            raise RequestError(
                f"the number of GPUs ({plan.gpus}) is not a multiple of the GPUs per node ({gpus_per_node})",
                hint=f"use --gpus {plan.gpus // gpus_per_node * gpus_per_node}, or another --gpus-per-node",
            )
        if not plan.steps_drop_last:
            hint = "use fewer GPUs, or a smaller --micro-batch"
            raise RequestError(f"the data does not fill one global batch of {plan.global_batch:,}", hint=hint)
    found = []
    for plan in plans:
        nodes = count_nodes(plan.gpus, gpus_per_node)
        state = run_to_end(_measuring(args, plan, nodes, on_gpus, steps))
        job, run, measured = state.status, state.record, None
        if job.outcome is Outcome.DONE and run is not None:
            rows = progress.last_rows(run.run_dir / "metrics.jsonl")
            measured = parse_measured(rows, steps, plan.gpus, nodes, _fullest_host(run))
        if measured is None:
            what = "ended without enough metrics" if job.outcome is Outcome.DONE else "failed"
            message = f"the measurement on {plural(plan.gpus, 'rank')} (job {job.id}) {what}"
            raise ClusterrunError(message, hint=f"clusterrun why {job.id}")
        found.append(measured)
    return found


def measure_settings(plan: GpuPlan, steps: int) -> dict[str, str]:
    """Return the settings of a measuring run; ``steps`` is a multiple of 4."""
    return _QUIET | {
        "micro_batch_size": str(plan.micro_batch),
        "grad_accum_steps": str(plan.grad_accum),
        "steps": str(2 * steps),
        "log_every": str(steps // QUARTERS),
        "measure": str(steps),
    }


def _measuring(args: SubmitArgs, plan: GpuPlan, nodes: int, on_gpus: bool, steps: int) -> SubmitArgs:
    each = plan.gpus // nodes
    typed = args.flags["set"].value if "set" in args.flags else {}
    options: dict[str, Any] = {
        "nodes": nodes, "gpus-per-node": each if on_gpus else 0, "tasks-per-node": each,
        "job-name": f"plan-{plan.gpus}", "set": typed | measure_settings(plan, steps),
    }  # fmt: skip
    flags = {name: Value(value, "plan --measure") for name, value in options.items()}
    return replace(args, flags={**args.flags, **flags})


def _fullest_host(run: RunRecord) -> Host:
    """Return the machine with the most ranks for each core; nodes of a simulated cluster are one machine."""
    started = progress.started_ranks(run_record.attempts(run)[-1])
    ranks = Counter((str(rank.get("machine")), as_int(rank.get("cores")) or 0) for rank in started)
    hosts = [(count, cores) for (_, cores), count in ranks.items()]
    return max(hosts, key=lambda host: host[0] / max(1, host[1]), default=UNKNOWN_HOST)
