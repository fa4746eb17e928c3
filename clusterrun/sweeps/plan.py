"""Plan a sweep: from the plan of one job, a run for each parameter set, in arrays that Slurm accepts."""

from __future__ import annotations

import json
import os
from base64 import b32encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD
from clusterrun.base.job import LOCAL, format_tasks
from clusterrun.jobspec.fields import Value, check_value
from clusterrun.jobspec.render import Places, RunIdentity, code, describe, directive, render, sh
from clusterrun.jobspec.spec import Command, JobSpec, Module, Script, Task, Work
from clusterrun.records.run_record import RunRecord
from clusterrun.records.sweeps import Sweep
from clusterrun.run_folder.identity import new_token
from clusterrun.scheduler import SlurmCommands
from clusterrun.scheduler.slurm.scontrol import parse_config, show_argv
from clusterrun.scheduler.slurm.values import parse_int
from clusterrun.submit.checks import check_secrets
from clusterrun.submit.job_python import WORKER
from clusterrun.submit.plan import Plan, current_umask, load_planned
from clusterrun.submit.request import SubmitArgs
from clusterrun.sweeps.parameters import INDEX, VARIABLE, Set, fill, names_in

#: Slurm's default of MaxArraySize, if the controller does not respond.
_ARRAY_SIZE = 1001
#: The script of an array: the #SBATCH lines of a run, and one line that starts a run's script.
_ARRAY = """\
#!/bin/bash
# clusterrun: an array of runs. Each task starts the script of its own run, which does the rest.

# Resources per task, copied from a run's script.
{directives}
#SBATCH --array={tasks}

# The run id of each task, by task index.
# shellcheck disable=SC1003,SC1112,SC2016 # the path is in single quotes: data, never expanded
CR_RUNS={runs}
CR_RUN_IDS=(
{run_ids}
)
exec /bin/bash -l "$CR_RUNS/${{CR_RUN_IDS[$SLURM_ARRAY_TASK_ID]}}/script.sh"
"""


ArrayTask = tuple[int, JobSpec]
"""A run of a sweep before it has an id: its index in an array, and its specification."""


def max_array_size(slurm: SlurmCommands | None) -> int:
    """Return the cluster's MaxArraySize, which each index is below. Raises RequestError if it has no arrays."""
    if slurm is None:
        return _ARRAY_SIZE
    size = parse_int(parse_config(slurm.answer(show_argv("config")).text).get("MaxArraySize", ""))
    if size is None:
        return _ARRAY_SIZE
    if size < 2:
        why = f"job arrays are disabled on this cluster (MaxArraySize={size})"
        raise RequestError(why, hint="submit each job separately")
    return size


def tasks_of_sets(base: Plan, sets: Sequence[Set], indexes: Sequence[int]) -> list[ArrayTask]:
    """Return a task for each parameter set, by the work and --env of the base plan.

    Parameters are settings of a built-in task, and fill ``{name}`` in arguments and in --env. Raises RequestError for
    a parameter that neither names, nor its variable, use, and for a name in braces that is none.
    """
    if not isinstance(base.spec.work, Task):
        _refuse_unused(base.spec, sets[0])
    return [_task(base.spec, index, values) for index, values in zip(indexes, sets, strict=True)]


def _refuse_unused(spec: JobSpec, names: Iterable[str]) -> None:
    arguments = spec.work.args if isinstance(spec.work, Script | Module | Command) else ()
    filled = names_in(" ".join((*arguments, *dict(spec.env).values())))
    typed = " ".join((*arguments, *spec.setup))
    for name in names:
        if name not in filled and VARIABLE + name.upper() not in typed:
            hint = f"write {{{name}}} in the script's arguments: -- train.py --{name} {{{name}}}"
            raise RequestError(f"the parameter {name} is not used", hint=hint)


def _task(spec: JobSpec, index: int, parameters: Set) -> ArrayTask:
    known = {**parameters, INDEX: str(index)}
    env = {name: fill(text, known) for name, text in spec.env}
    env |= {VARIABLE + name.upper(): value for name, value in parameters.items()}
    work = spec.work
    if isinstance(work, Script | Module | Command):
        work = replace(work, args=tuple(fill(word, known) for word in work.args))
    return index, _changed(spec, work, env, parameters)


def task_again(spec: JobSpec, run: RunRecord, changes: SubmitArgs, index: int) -> ArrayTask:
    """Return a task that does what a run of a sweep did, with the user's changes of --set and --env.

    ``spec`` has all other options.
    """
    before, _ = load_planned(run)
    new = {name: changes.flags[name].value if name in changes.flags else {} for name in ("set", "env")}
    return index, _changed(spec, before.work, {**dict(before.env), **new["env"]}, new["set"])


def _changed(spec: JobSpec, work: Work, env: Mapping[str, str], settings: Mapping[str, Any]) -> JobSpec:
    """Return a specification with this work and these variables; ``settings`` are for a built-in task.

    Raises RequestError for a value that a run may not have.
    """
    changes: dict[str, Any] = {"env": dict(env)} if env else {}
    if isinstance(work, Task):
        changes["set"] = {**dict(work.settings), **settings}
        work = replace(work, settings=tuple(changes["set"].items()))
    values = {}
    for name, value in changes.items():
        values[name] = Value(value, "sweep")
        check_value(FIELD[name], values[name])
    return replace(spec, work=work, env=tuple(sorted(env.items())), sources={**spec.sources, **values})


def new_sweep(
    base: Plan, sets: Sequence[Set], indexes: Sequence[int], size: int, at_once: int | None
) -> tuple[Sweep, list[list[Plan]]]:  # fmt: skip
    """Return a new sweep of these parameter sets, and the runs of its arrays of at most ``size`` tasks."""
    if at_once is not None and (type(at_once) is not int or at_once < 1):
        message = f"max_running: expected a whole number of at least 1, not {at_once!r}"
        raise RequestError(message, hint="for example 8")
    if at_once is None and base.record.scheduler == LOCAL:
        at_once = 1
    arrays = plan_arrays(base, tasks_of_sets(base, sets, indexes), size)
    plans = list(chain.from_iterable(arrays))
    tasks = tuple((values, (plan.record.run_id,)) for values, plan in zip(sets, plans, strict=True))
    first = plans[0].record
    return Sweep(id=first.run_id, root=first.root, name=first.name, tasks=tasks, at_once=at_once), arrays


def plan_arrays(base: Plan, tasks: Sequence[ArrayTask], size: int, sweep: str = "") -> list[list[Plan]]:
    """Return the runs of all tasks, in arrays of at most ``size`` indexes; on this machine each run is a job.

    The runs of an array have one token. ``sweep`` is the sweep's id; empty for a new one, whose id is that of its first
    run. Raises RequestError for a value that a run may not have.
    """
    run_ids = _new_run_ids(base.record.run_id, len(tasks))
    if base.record.scheduler == LOCAL:
        size = 1
    arrays = []
    for start in range(0, len(tasks), size):
        token, part = new_token(), slice(start, start + size)
        pairs = zip(tasks[part], run_ids[part], strict=True)
        arrays.append([_plan(base, task, run_id, token, sweep or run_ids[0]) for task, run_id in pairs])
    return arrays


def array_script(script: str, runs: Path, run_ids: Mapping[int, str], at_once: int | None = None) -> str:
    """Return the script for runs with the same resources, by their index; ``script`` is that of one of them.

    ``runs`` is the folder of the runs' folders, ``at_once`` the maximum number of tasks that run at the same time.
    """
    read_by_sbatch = takewhile(lambda line: line.strip()[:1] in ("", "#"), script.splitlines())
    tasks = format_tasks(run_ids) + (f"%{at_once}" if at_once else "")
    return _ARRAY.format(
        directives="\n".join(line for line in read_by_sbatch if line.startswith("#SBATCH")),
        tasks=directive(tasks),
        runs=sh(runs),
        run_ids="\n".join(f"    [{index}]={code(run_id)}" for index, run_id in sorted(run_ids.items())),
    )


def _new_run_ids(like: str, count: int) -> list[str]:
    """Return run ids of the same second, all different."""
    run_ids = dict[str, None]()
    while len(run_ids) < count:
        run_ids[like[:-6] + b32encode(os.urandom(5)).decode().lower()[:6]] = None
    return list(run_ids)


def _plan(base: Plan, task: ArrayTask, run_id: str, token: str, sweep: str) -> Plan:
    index, spec = task
    local = base.record.scheduler == LOCAL
    run_dir = base.record.run_dir.parent / run_id
    old = base.submission
    places = Places(old.workdir, old.logs, WORKER, current_umask())
    script = render(spec, RunIdentity(run_id, run_dir, token, not local), places, local=local)
    submitted = replace(base.record.submission, token=token, task=None if local else index)
    record = replace(
        base.record, run_id=run_id, run_dir=run_dir, sweep=sweep, submissions=(submitted,),
        what=spec.work.name if isinstance(spec.work, Task) else describe(spec),
        sources={name: (value.value, value.source) for name, value in spec.sources.items()},
    )  # fmt: skip
    submission = old._replace(run_id=run_id, run_dir=run_dir, token=token, script=record.script)
    plan = base._replace(spec=spec, record=record, submission=submission, script=script)
    check_secrets(spec.secrets, old.env, script + json.dumps(plan.spec_json(), ensure_ascii=False))
    return plan
