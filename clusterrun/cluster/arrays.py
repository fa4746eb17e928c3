"""Many runs at once: the part of Cluster that submits sweeps, and calls of a function, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.base.job import Outcome
from clusterrun.base.units import plural
from clusterrun.records.run_record import RunRecord

if TYPE_CHECKING:  # commands that query jobs need none of them, and start sooner
    from clusterrun.cluster import Cluster
    from clusterrun.records.sweeps import Sweep
    from clusterrun.state.reconcile import RunState
    from clusterrun.submit.plan import Plan
    from clusterrun.sweeps.parameters import Set
    from clusterrun.sweeps.table import SweepTable


class SubmittedSweep(NamedTuple):
    """A sweep: its name, which commands take, and the run of each parameter set, in order."""

    name: str
    runs: Sequence[RunRecord]


def sweep(
    cluster: Cluster, *words: str, grid: Mapping[str, Iterable[object]] | None = None,
    rows: Sequence[Mapping[str, object]] | None = None, max_running: int | None = None, **options: Any,
) -> SubmittedSweep:  # fmt: skip
    """Submit a script, or a job file (``job="sft"``), once for each set of parameters, as ``clusterrun sweep``.

    ``grid`` has the values of each parameter, ``rows`` sets of them; together they combine. Without both the job
    file's table ``[sweep]`` counts. ``options`` are those of :meth:`SubmitArgs.of`. Raises what ``submit`` raises.
    """
    from clusterrun.submit.request import SubmitArgs
    from clusterrun.sweeps.parameters import parameter_sets, read_grid, read_sets

    args = SubmitArgs.of(*words, **options)
    axes, typed = read_grid(grid or {}, "grid"), read_sets(rows)
    sets, at_once = parameter_sets(cluster.request(args), axes, (), typed, max_running)
    made, arrays = plan_sweep(cluster, cluster.plan(args), sets, at_once)
    _check(cluster, arrays)
    return SubmittedSweep(made.name, submit_arrays(cluster, made, arrays))


def table(cluster: Cluster, runs: Sequence[RunRecord], metric: str = "", *, largest: bool = False) -> SweepTable:
    """Return the table of a sweep's runs: parameters, states, and the smallest (or largest) value of a metric."""
    from clusterrun.sweeps.table import SweepTable

    return SweepTable(runs, cluster.states(runs), metric, largest=largest)


def map_function(
    cluster: Cluster, function: Callable[[Any], Any], values: Iterable[Any], *, max_running: int | None = None,
    return_exceptions: bool = False, **options: Any,
) -> list[Any]:  # fmt: skip
    """Call a function with each value, each call in a run of its own, wait, and return the results in order.

    The runs are one array, or several above MaxArraySize. submitit pickles the function for each call, as in
    ``submit_function``. Several ranks all call it; the result is that of rank 0. When all have ended, the first
    exception is raised, or with ``return_exceptions`` each is in its place in the list. ``options`` are those of
    :meth:`SubmitArgs.of`.
    """
    from clusterrun.jobspec.spec import Function
    from clusterrun.submit.request import SubmitArgs
    from clusterrun.sweeps.parameters import MOST

    calls = list(values)
    if not calls:
        return []
    if len(calls) > MOST:
        raise RequestError(f"{len(calls)} calls; the limit is {MOST}", hint="pass several values to each call")
    name = getattr(function, "__name__", "function")
    base = cluster.plan(replace(SubmitArgs.of(**options), work=Function(name)))
    made, arrays = plan_sweep(cluster, base, [{}] * len(calls), max_running)
    by_run = {run_id: call for (_, (run_id,)), call in zip(made.tasks, calls, strict=True)}

    def save_call(run: RunRecord) -> None:
        from clusterrun.scheduler.slurm.executor import save_call

        save_call(run.run_dir, function, by_run[run.run_id])

    _check(cluster, arrays)
    runs = submit_arrays(cluster, made, arrays, prepare=save_call)
    cluster.notify(f"submitted {plural(len(runs), 'call')}; to cancel: clusterrun cancel {made.name}")
    results = list(map(_result, cluster.wait(runs)))
    errors = [error for _, error in results if error is not None]
    if errors and not return_exceptions:
        raise errors[0]
    return [result if error is None else error for result, error in results]


def _check(cluster: Cluster, arrays: Sequence[Sequence[Plan]]) -> None:
    for line in check_arrays(cluster, arrays):
        cluster.notify(line)


def _result(state: RunState) -> tuple[Any, Exception | None]:
    """Return what a call returned, or what it raised."""
    from clusterrun.scheduler.slurm.executor import load_result

    assert state.record is not None
    try:
        return load_result(state.record.run_dir, f"job {state.status.id}", done=state.status.outcome is Outcome.DONE)
    except FileNotFoundError:
        job = state.status
        return None, ClusterrunError(f"job {job.id} left no result ({job.state})", hint=f"clusterrun why {job.id}")
    except Exception as error:  # unpickling runs the classes' own code; the other results are not lost for it
        hint = f"clusterrun why {state.status.id}"
        return None, ClusterrunError(f"cannot load the result of job {state.status.id}: {error}", hint=hint)


def plan_sweep(
    cluster: Cluster, base: Plan, sets: Sequence[Set], at_once: int | None
) -> tuple[Sweep, list[list[Plan]]]:  # fmt: skip
    """Return a new sweep, and its arrays of at most MaxArraySize tasks."""
    from clusterrun.sweeps.plan import max_array_size, new_sweep

    size = max_array_size(cluster.scheduler(base.record.scheduler).slurm)
    return new_sweep(base, sets, [index % size for index in range(len(sets))], size, at_once)


def check_arrays(cluster: Cluster, arrays: Sequence[Sequence[Plan]]) -> list[str]:
    """Check the first run as any job and the settings of the others; return lines. Raises RequestError."""
    from clusterrun.preflight.checks import LIMIT
    from clusterrun.preflight.patience import Patience
    from clusterrun.preflight.settings import check_others

    plans = [plan for array in arrays for plan in array]
    lines = cluster.check(plans[0], preload=True, tasks=len(plans))
    others, first = [plan.spec for plan in plans[1:]], plans[0]
    if first.python.why_not:
        return lines
    patience = Patience(cluster.state, first.spec.python, LIMIT)
    return lines + check_others(others, first.python, cluster.environ, first.submission.workdir, patience)


def submit_arrays(
    cluster: Cluster, made: Sweep, arrays: Sequence[Sequence[Plan]], before: Sweep | None = None,
    prepare: Callable[[RunRecord], None] | None = None,
) -> list[RunRecord]:  # fmt: skip
    """Submit the arrays of a sweep with the code they run, and return the runs.

    ``prepare`` adds files to each run's folder, ``before`` is as for :func:`submit_sweep`, which raises.
    """
    from clusterrun.records.agreed import agree
    from clusterrun.submit.snapshot import check_option, save_code
    from clusterrun.submit.staged_environment import pack
    from clusterrun.sweeps.send import submit_sweep

    first = arrays[0][0]
    store = cluster.store(made.root)
    check_option(first.spec, first.submission.workdir)
    store.prepare(first.spec.shared)
    code = save_code(first.spec, first.submission.workdir, first.record.root, cluster.environ, cluster.notify) | pack(
        first, cluster.environ, cluster.notify
    )
    scheduler = cluster.scheduler(first.record.scheduler)
    for words in first.python.agreements:
        agree(cluster.state, *words)
    return submit_sweep(store, scheduler, made, arrays, cluster.notify, before, code=code, prepare=prepare)
