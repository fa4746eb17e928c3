"""The record of a sweep: a file with its parameter sets and their runs, and the script of each array beside it.

A sweep's id is the run id of its first run. Its file is replaced atomically, by commands that hold the lock of that
run. All else about a run is in the run's own folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, build, parse_object
from clusterrun.base.job import is_run_id
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import write
from clusterrun.run_folder import identity, safe_files
from clusterrun.run_folder.safe_files import RECORDS

#: The maximum size of a sweep's file, in bytes: a set takes about a hundred.
_LIMIT = 64 * 1024 * 1024
_NUMBER = re.compile(r"[0-9]{0,18}", re.ASCII)


SweepTask = tuple[Mapping[str, str], tuple[str, ...]]
"""A parameter set, by name, and the run ids of its runs, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep of the project ``root``.

    ``jobs`` has the job number of each array that Slurm accepted, by token, written before the runs' own records; it is
    empty while sbatch runs. An array without an entry was never sent, or was refused.
    ``at_once`` is the maximum number of tasks that run at the same time, None without one.
    """

    id: str
    root: Path
    name: str
    tasks: tuple[SweepTask, ...]
    at_once: int | None = None
    jobs: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.root / RECORDS / "sweeps" / f"{self.id}.json"

    def folders(self) -> list[Path]:
        """Return the folders of all runs."""
        runs = self.root / RECORDS / "runs"
        return [runs / run_id for _, run_ids in self.tasks for run_id in run_ids]

    def newest_runs(self) -> list[str]:
        """Return the run id of each parameter set's newest run that exists, empty for a set without one.

        `cancel` deletes runs that were never submitted.
        """
        return [self._newest(run_ids) for _, run_ids in self.tasks]

    def _newest(self, run_ids: Sequence[str]) -> str:
        runs = self.root / RECORDS / "runs"
        for run_id in reversed(run_ids):
            if (runs / run_id / "record.json").exists():
                return run_id
        return ""

    def parameters(self) -> dict[str, Mapping[str, str]]:
        """Return the parameters of each run by its id."""
        return {run_id: parameters for parameters, run_ids in self.tasks for run_id in run_ids}


def save(sweep: Sweep, shared: bool) -> None:
    """Write a sweep's file, after its runs and the scripts of its arrays; raises OSError."""
    safe_files.make_folder(sweep.file.parent, 0o750 if shared else 0o700)
    data = {"version": 1, "name": sweep.name, "at_once": sweep.at_once, "jobs": sweep.jobs, "tasks": sweep.tasks}
    write(sweep.file, json.dumps(data), shared)


def save_script(run: RunRecord, script: str) -> None:
    """Write the script of a run's array; raises OSError."""
    safe_files.make_folder(run.sent_script.parent, 0o750 if run.shared else 0o700)
    write(run.sent_script, script, run.shared)


def record_job(sweep: Sweep, token: str, number: str | None, shared: bool) -> Sweep:
    """Record the job number of an array that Slurm accepted, None if it did not; return the updated sweep.

    Raises OSError.
    """
    jobs = dict(sweep.jobs)
    jobs.pop(token, None)
    if number is not None:
        jobs[token] = number
    new = replace(sweep, jobs=jobs)
    save(new, shared)
    return new


def load(root: Path, sweep_id: str, owner: int | None = None) -> Sweep | None:
    """Return a sweep, None if its file is missing or damaged; with ``owner`` the file must belong to that uid."""
    if not is_run_id(sweep_id):
        return None
    path = root / RECORDS / "sweeps" / f"{sweep_id}.json"
    try:
        match parse_object(safe_files.read_bytes(path, _LIMIT, owner=owner)):
            case {"tasks": [_, *_] as tasks, "jobs": {**jobs}} as read if _are_numbers(jobs.values()):
                return build(Sweep, read, id=sweep_id, root=root, jobs=jobs, tasks=tuple(map(_task, tasks)))
        return None
    except (OSError, Damaged):
        return None


def _are_numbers(jobs: Iterable[object]) -> bool:
    """Return whether these are numbers of jobs, or empty texts (of arrays that are being sent)."""
    return all(isinstance(job, str) and _NUMBER.fullmatch(job) for job in jobs)


def _task(read: Any) -> SweepTask:
    match read:
        case [{**parameters}, [_, *_] as runs] if all(isinstance(run, str) and is_run_id(run) for run in runs):
            return {str(name): str(value) for name, value in parameters.items()}, tuple(runs)
    raise Damaged("a parameter set is invalid")


def sweep_of(run: RunRecord) -> Sweep | None:
    """Return the sweep that a run belongs to; None for another run, or if the file is missing or damaged."""
    return load(run.root, run.sweep, run.owner if run.owner >= 0 else None) if run.sweep else None


def job_of(run: RunRecord) -> str | None:
    """Return the number of the job that a run's array became, by the sweep's file.

    It is empty if it is not known, and None if the array was never sent.
    """
    sweep = sweep_of(run)
    return sweep.jobs.get(run.submission.token) if sweep is not None else ""


def runs_of_script(script: str) -> list[Path]:
    """Return the folders of all runs of the sweep that an array's script belongs to."""
    sweep = load(Path(script).parents[2], identity.sweep_of_script(script) or "")
    return sweep.folders() if sweep is not None else []
