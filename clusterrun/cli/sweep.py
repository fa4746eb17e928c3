"""``sweep``, ``submit --array`` and ``resubmit --failed``: submit many runs as one array; the table of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LOCAL, Outcome
from clusterrun.base.units import plural
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_sweep
from clusterrun.cli.common.options import Grouped, job_and_script, spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.submitting import (
    Awaited,
    How,
    after_options,
    find_after,
    interrupt_deferred,
    note_all,
    plan_after,
    show_plans,
)
from clusterrun.cluster import Cluster
from clusterrun.cluster.arrays import check_arrays, plan_sweep, submit_arrays
from clusterrun.records.run_record import RunRecord
from clusterrun.records.sweeps import Sweep
from clusterrun.state import filters
from clusterrun.state.reconcile import RunState, runs_of
from clusterrun.sweeps.table import SweepTable
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs

_AGAIN = (Outcome.FAILED, Outcome.CANCELLED, Outcome.LOST)


@click.command(cls=Grouped)
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]", shell_complete=complete.job_files)
@click.option(
    "--grid", "grids", metavar="NAME=VALUES", multiple=True, shell_complete=complete.settings,
    help="Run all combinations of the values (lr=1e-4,3e-4 or seed=0..4); repeatable.",
)  # fmt: skip
@click.option(
    "--zip", "zips", metavar="NAME=VALUES", multiple=True, shell_complete=complete.settings,
    help="Pair the values of all --zip options by position, first with first; repeatable.",
)  # fmt: skip
@click.option(
    "--file", "csv_file", metavar="FILE", shell_complete=complete.files,
    help="CSV file with parameter names on the first line and one set of values on each line after it.",
)  # fmt: skip
@click.option("--max-running", metavar="N", type=click.IntRange(1), help="Maximum number of tasks to run at once.")
@spec_options
@after_options
@click.option("--wait", is_flag=True, help="Wait until all tasks end; exit 0 if all succeed.")
@click.option("--dry-run", is_flag=True, help="Check the sweep and print its parameter sets; submit nothing.")
@click.option("--no-check", is_flag=True, help="Skip the checks before submission.")
@json_option
@click.pass_context
def sweep(
    ctx: click.Context, /, words: tuple[str, ...], grids: tuple[str, ...], zips: tuple[str, ...], csv_file: str | None,
    max_running: int | None, profile: str | None, after: tuple[str, ...], after_ok: tuple[str, ...], wait: bool,
    dry_run: bool, no_check: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Submit a job once for each set of parameters, as one job array.

    \b
      clusterrun sweep sft --grid lr=1e-4,3e-4 --grid seed=0..4            10 runs
      clusterrun sweep sft --file params.csv --max-running 8
      clusterrun sweep --nodes 2 --grid lr=1e-4,3e-4 -- train.py --lr {lr}
      clusterrun status sft --best val_loss
      clusterrun resubmit sft --failed

    A parameter is a setting of a built-in task, or replaces {NAME} in the arguments of a script. Each task is a run
    with its own folder and logs, and a job id (123_4) that all commands accept. A job file may have a table [sweep].
    """
    ui = Ui("sweep", as_json=as_json)
    how = How(dry_run=dry_run, check=not no_check, wait=wait)
    session: Session = ctx.obj
    cluster = session.planner(ui.note, submits=not dry_run)
    from clusterrun.sweeps.parameters import parameter_sets, parse_axis, read_rows, refuse_separate_values, show

    refuse_separate_values(words, grids, "--grid")
    refuse_separate_values(words, zips, "--zip")
    args = submit_args(*job_and_script(words, session.script), profile, options)
    base, request = plan_after(cluster, args, find_after(cluster, after, after_ok)), cluster.request(args)
    grid, together = [parse_axis(text, "--grid") for text in grids], [parse_axis(text, "--zip") for text in zips]
    rows = read_rows(cluster.cwd / csv_file, f"--file {csv_file}") if csv_file else ()
    sets, at_once = parameter_sets(request, grid, together, rows, max_running)
    made, arrays = plan_sweep(cluster, base, sets, at_once)
    if not dry_run:
        ctx.exit(submit_and_announce(ui, cluster, made, arrays, how))
    check_sweep(ui, cluster, arrays, how)
    ui.say(*(f"{index:>5}  {show(parameters)}" for index, parameters in enumerate(sets)))
    where = "" if base.record.scheduler == LOCAL else f" in {plural(len(arrays), 'array')}"
    ui.note(f"would submit {plural(len(sets), 'task')}{where}; nothing was written")
    ui.data([dict(parameters) for parameters in sets])


def submit_array(ui: Ui, cluster: Cluster, args: SubmitArgs, after: Sequence[Awaited], text: str, how: How) -> int:
    """Submit the tasks of ``submit --array``, each a run; return the exit code."""
    if how.follow:
        raise RequestError("--array and --follow cannot be combined", hint="follow one task: clusterrun logs ID_0 -f")
    base = plan_after(cluster, args, after)
    from clusterrun.sweeps.parameters import parse_array
    from clusterrun.sweeps.plan import max_array_size, new_sweep

    if base.record.scheduler == LOCAL:
        raise RequestError("--array needs Slurm", hint="use clusterrun sweep, which also runs on this machine")
    indexes, at_once = parse_array(text, max_array_size(cluster.scheduler(base.record.scheduler).slurm))
    made, arrays = new_sweep(base, [{} for _ in indexes], indexes, len(indexes), at_once)
    if not how.dry_run:
        return submit_and_announce(ui, cluster, made, arrays, how)
    check_sweep(ui, cluster, arrays, how)
    ui.note(f"would submit an array of {plural(len(indexes), 'task')}; nothing was written")
    (data,) = show_plans(ui, arrays[0][:1], as_script=how.as_script)
    hours = data["gpu_hours"]
    ui.data(data | {"tasks": len(indexes), "gpu_hours": hours if hours is None else hours * len(indexes)})
    return 0


def resubmit_failed(ui: Ui, session: Session, word: str, changes: SubmitArgs, how: How) -> int:
    """Submit the failed, cancelled and lost tasks of a sweep again as new runs; return the exit code."""
    cluster = session.cluster(ui.note)
    before, run_ids = find_sweep(cluster, word)
    failed, unknown = _find_failed(ui, cluster, before, run_ids)
    if not failed:
        ui.note(f"no task of {before.name} has failed")
        ui.data(None)
        return 75 if unknown else 0
    from clusterrun.submit.resubmit import resubmit_args
    from clusterrun.sweeps.plan import max_array_size, plan_arrays, task_again

    first = failed[0].as_submission(failed[0].submissions[0])  # what `resume` changed of it is not every task's
    args, folder = resubmit_args(first, changes, None, cluster.cwd, cluster.environ, ui.note)
    there = session.planner(ui.note, submits=not how.dry_run, cwd=folder)
    base = there.plan(args)
    size = max_array_size(there.scheduler(base.record.scheduler).slurm)
    tasks = [
        task_again(base.spec, run, changes, index)
        for run, index in zip(failed, _indexes(failed, size), strict=True)
    ]  # fmt: skip
    arrays = plan_arrays(base, tasks, size, before.id)
    if how.dry_run:
        check_sweep(ui, there, arrays, how)
        ui.note(f"would submit {plural(len(tasks), 'task')} again; nothing was written")
        parameters = before.parameters()
        ui.data([parameters[run.run_id] for run in failed])
        return 0
    made = _with_new_runs(before, run_ids, failed, arrays)
    return submit_and_announce(ui, there, made, arrays, how, before=before)


def _find_failed(ui: Ui, cluster: Cluster, sweep: Sweep, run_ids: Sequence[str]) -> tuple[list[RunRecord], int]:
    """Return the newest runs of a sweep's tasks that are to be submitted again, and the number of unknown outcomes.

    Print how many others are left out, and why.
    """
    store = cluster.store(sweep.root)
    runs = list(filter(None, map(store.by_run_id, filter(None, run_ids))))
    if gone := run_ids.count(""):
        ui.note(f"{plural(gone, 'task')} not submitted again: no run record found (never submitted, or deleted)")
    states = cluster.states(runs)
    unknown = sum(state.status.outcome is Outcome.UNKNOWN for state in states)
    if unknown:
        ui.note(f"{plural(unknown, 'task')} not submitted again: outcome unknown")
    failed = [state.record for state in states if state.status.outcome in _AGAIN and state.record is not None]
    return failed, unknown


def _indexes(runs: Sequence[RunRecord], size: int) -> list[int]:
    """Return the array indexes of the runs' tasks: those they had first, else new ones below ``size``."""
    tasks = [run.submissions[0].task for run in runs]
    if len(set(tasks)) < len(tasks) or None in tasks:
        return [number % size for number in range(len(runs))]
    return cast("list[int]", tasks)


def _with_new_runs(
    sweep: Sweep, run_ids: Sequence[str], failed: Sequence[RunRecord], arrays: Sequence[Sequence[Plan]]
) -> Sweep:
    """Return the sweep with the planned run of each failed one added to its task; ``run_ids`` are the newest runs."""
    plans = [plan for array in arrays for plan in array]
    new_ids = {run.run_id: plan.record.run_id for run, plan in zip(failed, plans, strict=True)}
    tasks = []
    for (parameters, before), newest in zip(sweep.tasks, run_ids, strict=True):
        added = (new_ids[newest],) if newest in new_ids else ()
        tasks.append((parameters, (*before, *added)))
    return replace(sweep, tasks=tuple(tasks))


def submit_and_announce(
    ui: Ui, cluster: Cluster, made: Sweep, arrays: Sequence[Sequence[Plan]], how: How, *, before: Sweep | None = None
) -> int:
    """Check and submit the arrays of a sweep, print them, and wait for all if wanted; return the exit code."""
    check_sweep(ui, cluster, arrays, how)
    with interrupt_deferred(ui, f"submit --recover {arrays[0][0].record.run_id}"):
        runs = submit_arrays(cluster, made, arrays, before)
        _announce(ui, made, runs)
        if not how.wait:
            ui.data(_json(made, runs))
    if not how.wait:
        return 0
    from clusterrun.cli.follow import report_end

    states = cluster.wait(runs)
    ui.data(SweepTable(runs, states).json())
    return report_end(ui, filters.collapse(states))


def check_sweep(ui: Ui, cluster: Cluster, arrays: Sequence[Sequence[Plan]], how: How) -> None:
    """Check the first run as any job, and the settings of the others; print notices. Raises RequestError."""
    note_all(ui, arrays[0][0].notices)
    if how.check:
        note_all(ui, check_arrays(cluster, arrays))


def show_sweep(ui: Ui, states: Sequence[RunState], metric: str | None, *, largest: bool) -> None:
    """Print the table of a sweep's tasks and the best of them. Raises RequestError for jobs of no or several sweeps."""
    sweeps = {state.record.sweep if state.record is not None else "" for state in states}
    if len(sweeps) != 1 or "" in sweeps:
        raise RequestError("--best works only on tasks of one sweep", hint="clusterrun status SWEEP --best val_loss")
    runs = runs_of(states)
    table = SweepTable(runs, states, metric or "", largest=largest)
    ui.data(table.json())
    ui.table(table.columns(), table.cells())
    ui.note(f"{runs[0].name}: {plural(len(states), 'task')}: {_format_counts(states)}")
    if table.best_line():
        ui.say(table.best_line())


def _format_counts(states: Sequence[RunState]) -> str:
    """Return the number of tasks in each outcome, the pending apart from the running ones."""
    counts = Counter("pending" if s.status.state == "PENDING" else s.status.outcome.value for s in states)
    return ", ".join(f"{counts[word]} {word}" for word in ("pending", *Outcome) if counts[word])


def _announce(ui: Ui, made: Sweep, runs: Sequence[RunRecord]) -> None:
    jobs = list(dict.fromkeys(run.job_id.base for run in runs if run.job_id is not None))
    first, size = runs[0], plural(len(runs), "task")
    if first.scheduler == LOCAL:
        where, logs = f"on this machine: {size}", "train_ID.out"
    else:
        arrays = "array" if len(jobs) == 1 else "arrays"
        where, logs = f"on {first.cluster}: {size} in {arrays} {', '.join(jobs)}", f"train_{jobs[0]}_INDEX.out"
    name = jobs[0] if len(jobs) == 1 else made.name
    shape = f"{plural(first.world_size, 'rank')} on {plural(first.nodes, 'node')}"
    ui.say(
        f"Submitted sweep {made.name} {where}, each {shape}",
        f"  logs    {first.logs}/{logs}",
        f"  next    clusterrun status {name}     clusterrun logs {first.job_id} -f     clusterrun cancel {name}",
    )


def _json(made: Sweep, runs: Sequence[RunRecord]) -> Mapping[str, Any]:
    parameters = made.parameters()
    tasks = [{"job_id": str(run.job_id), "run_id": run.run_id, "run_dir": str(run.run_dir),
              "parameters": parameters[run.run_id]} for run in runs]  # fmt: skip
    return {"sweep": made.id, "name": made.name, "tasks": tasks}
