"""Turn the record of a run into the arguments of a new submit, with the user's changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.base.fields import FIELD
from clusterrun.config import profiles
from clusterrun.config.files import is_file
from clusterrun.jobspec.fields import Value, check_value
from clusterrun.jobspec.spec import Command, Module, Script, Work
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files
from clusterrun.submit.environments import without_environment
from clusterrun.submit.launchers import Around
from clusterrun.submit.plan import load_planned
from clusterrun.submit.request import NOTIFY, SubmitArgs, command_of, typed_files
from clusterrun.submit.typed_launch import with_local_rank


def resubmit_args(
    run: RunRecord, changes: SubmitArgs, words: Sequence[str] | None, here: Path, environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> tuple[SubmitArgs, Path]:  # fmt: skip
    """Return the arguments of the new submit, and the folder from which the run was submitted.

    The flags of ``changes``, typed in the folder ``here``, come before the recorded values; ``words`` replace the
    arguments of a script, a module or a command. Raises NoSuchJob for another user's run, RequestError for a run that
    cannot be repeated.
    """
    job = run.job_id or run.run_id
    if not run.mine:
        raise NoSuchJob(f"job {job} belongs to {run.user}, not to you", hint="only its owner can submit it again")
    spec, folder = load_planned(run)
    if not os.path.isdir(folder):
        raise RequestError(f"the folder that job {job} was submitted from is gone: {folder}", hint="submit a new run")
    recorded = _recorded(run, f"job {job}")
    if any(value.source == "--ladder" for value in recorded.values()):
        raise RequestError(f"job {job} is not the last rung of its ladder", hint="resubmit the last rung of the ladder")
    typed = dict(changes.flags)
    typed |= {name: replace(typed[name], value=path) for name, path in typed_files(typed, here).items()}
    values = _changed(recorded, typed)
    work = _with_words(spec.work, words)
    if isinstance(work, Script | Module):
        program = command_of(replace(work, args=()))
        words = with_local_rank((*program, *work.args), Around(values, {}, folder, environ, notify))
        work = replace(work, args=words[len(program) :])
    return SubmitArgs(work=work, flags=values, exact=True, typed=frozenset(typed)), folder


def _changed(recorded: dict[str, Value], typed: dict[str, Value]) -> dict[str, Value]:
    """Return the recorded values with those that were typed, without what these make wrong."""
    if "fp16" in typed and "set" in recorded:
        settings = dict(recorded["set"].value)
        settings.pop("precision", None)
        recorded["set"] = replace(recorded["set"], value=settings)
    if "secret" in typed:
        secrets = recorded.get("secret", Value([], "")).value
        typed["secret"] = replace(typed["secret"], value=[*secrets, *typed["secret"].value])
    if {"python", "venv", "conda", "container-image"} & typed.keys():
        without_environment(recorded)
    if {"venv", "conda", "modules"} & typed.keys():
        recorded = {name: value for name, value in recorded.items() if not name.startswith("container-")}
    return profiles.merge([typed, recorded])


def _recorded(run: RunRecord, origin: str) -> dict[str, Value]:
    """Return the values of a run that belong to another submit, too; raises RequestError for a damaged one."""
    values = _load_values(run, origin)
    values.pop("dependency", None)  # the first job has waited for it
    if _source(values, "gpus-per-node").startswith("default"):
        del values["gpus-per-node"]  # of the machine or cluster of that time
    chosen = _source(values, "partition")
    if ": auto, " in chosen:
        values["partition"] = Value("auto", chosen.partition(":")[0])
    return values


def _load_values(run: RunRecord, origin: str) -> dict[str, Value]:
    values = {name: Value(*pair) for name, pair in run.options.items() if name in FIELD}
    if "in-job" not in values:  # else the place is that job, or the queue with --in-job none
        values.setdefault("scheduler", Value(run.scheduler, origin))
    notify = files.read_json(run.run_dir / "notify.json") or {}
    for name, key in zip(NOTIFY, ("target", "on"), strict=True):
        if key in notify:
            values[name] = Value(notify[key], origin)
    for name, value in values.items():
        check_value(FIELD[name], value)
    return values


def _source(values: Mapping[str, Value], name: str) -> str:
    return values.get(name, Value(None, "")).source


def _with_words(work: Work, words: Sequence[str] | None) -> Work:
    """Return the work with other arguments; raises RequestError for work that takes none, or whose file is gone."""
    if isinstance(work, Script | Command):
        if not is_file(Path(work.path)):
            raise RequestError(f"the script is gone: {work.path}", hint="submit a new run")
        if isinstance(work, Command) and not os.access(work.path, os.X_OK):
            raise RequestError(f"no longer executable: {work.path}", hint=f"chmod +x {work.path}")
    if words is None:
        return work
    if not isinstance(work, Script | Module | Command):
        raise RequestError(f"{work.name} takes settings, not arguments", hint="clusterrun resubmit JOBID --set lr=1e-4")
    return replace(work, args=tuple(words))
