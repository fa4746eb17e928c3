"""Plan a run: build its script, its record and the submission for the scheduler. Nothing is written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LOCAL, one_cluster
from clusterrun.config.profiles import ENVIRONMENT
from clusterrun.jobspec.spec import JobSpec, Task, load_spec
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import find_base
from clusterrun.run_folder import files
from clusterrun.run_folder.identity import find_identity, new_identity
from clusterrun.run_folder.safe_files import RECORDS
from clusterrun.run_folder.submissions import SubmissionRecord
from clusterrun.scheduler import KILL_ON_INVALID_DEP, Scheduler, Submission
from clusterrun.submit.checks import check_command, check_secrets
from clusterrun.submit.containers import with_container
from clusterrun.submit.job_python import WORKER, JobPython
from clusterrun.submit.left_out import leave_out
from clusterrun.submit.request import WAITS_FOR_SUCCESS, Request, notify_settings, resolve_spec
from clusterrun.system import processes, shell


class Plan(NamedTuple):
    """A run that is ready to be submitted; ``notices`` are lines for the user, ``notify`` is for ``notify.json``.

    ``python`` is the job's Python as its checks may start it here.
    """

    spec: JobSpec
    record: RunRecord
    submission: Submission
    script: str
    notices: tuple[str, ...]
    python: JobPython
    notify: Mapping[str, Any] | None = None

    def spec_json(self) -> dict[str, Any]:
        """Return the content of the run's ``spec.json``."""
        data = asdict(self.spec)
        data["work"] = {"kind": type(self.spec.work).__name__.lower(), **asdict(self.spec.work)}
        data["sources"] = {name: {"value": one.value, "source": one.source} for name, one in self.spec.sources.items()}
        return {"version": 1, "workdir": str(self.submission.workdir), **data}


def load_planned(run: RunRecord) -> tuple[JobSpec, Path]:
    """Return the specification in a run's ``spec.json``, and the folder it was submitted from. Raises RequestError."""
    data = files.read_json(run.run_dir / "spec.json")
    if data is None:
        raise RequestError(f"the spec.json of run {run.run_id} cannot be read", hint="submit a new run")
    return load_spec(data), Path(str(data.get("workdir") or run.root))


class LocalContext(NamedTuple):
    """The current folder, environment and user of a plan."""

    cwd: Path
    environ: Mapping[str, str]
    user: str


def _removed_notices(names: Iterable[str], in_job: str) -> list[str]:
    """Return a notice about the variables that the job does not get, but for those that are read as options.

    A run inside a Slurm job gets Slurm's variables from that job.
    """
    silent = ("CLUSTERRUN_", "SLURM_") if in_job else ("CLUSTERRUN_",)
    options = dict(ENVIRONMENT)
    removed = [name for name in names if not name.startswith(silent) and name not in options]
    return [f"removed from the job's environment: {', '.join(removed)}"] if removed else []


def _place_notices(request: Request, local: bool) -> list[str]:
    is_fallback = local and request.scheduler == "auto" and not request.in_job
    return ["Slurm not found; running locally"] if is_fallback else []


def _place(scheduler: Scheduler | None) -> tuple[str, str]:
    """Return where the run is to be: the scheduler and the cluster, which is not known without a reachable Slurm."""
    if scheduler is None:
        return "slurm", ""
    return scheduler.name, one_cluster(scheduler.cluster)


def _new_folder(base: Path, run_id: str) -> Path:
    """Return the folder of a run's records; raises RequestError if it exists."""
    run_dir = base / RECORDS / "runs" / run_id
    if run_dir.exists():  # an identity is chosen once: this is the same request again
        raise RequestError(f"run {run_id} was already submitted", hint=f"clusterrun status {run_id}")
    return run_dir


def plan(
    request: Request, scheduler: Scheduler | None, has_gpus: bool | None, here: LocalContext, *, named: bool = True
) -> Plan:
    """Plan a run for a scheduler; None means a Slurm that is not reachable.

    With ``named`` False the run's ids are the placeholders RUN_ID and TOKEN.
    """
    from clusterrun.jobspec.render import Places, RunIdentity, describe, render

    name, cluster = _place(scheduler)
    local = name == LOCAL
    spec, notices = resolve_spec(request, has_gpus=has_gpus, local=local)
    notices[:0] = _place_notices(request, local)
    clean, dropped = shell.scrub(here.environ)
    notices += _removed_notices(dropped, spec.in_job)
    on_machine = local and not spec.in_job
    notify = notify_settings(request.values, spec.job_name)
    if notify is not None:
        notices += check_command(str(notify["target"]), spec, here.environ, here.cwd, local=on_machine)
    at = time.time()
    run_id, token = "RUN_ID", "TOKEN"
    if named:
        identity = find_identity(here.environ) or new_identity()
        run_id, token = identity.run_id, identity.token
        spec, left_out = _without_failed_nodes(spec, scheduler, here)
        notices += left_out
    base, weakness = find_base(request.root, files.state_folder(here.environ))
    if weakness:
        why = f"because other users may be able to change the project ({weakness})"
        notices.append(f"storing records and logs in {base}, {why}")
    run_dir = _new_folder(base, run_id)
    logs = base / "logs"
    folders = (here.cwd, request.root, run_dir.parents[1], logs, WORKER.parent)
    spec = with_container(spec, here.environ, folders, local=on_machine)
    record = RunRecord(
        run_id=run_id,
        run_dir=run_dir,
        root=base,
        name=spec.job_name,
        what=spec.work.name if isinstance(spec.work, Task) else describe(spec),
        scheduler=name,
        cluster=cluster,
        user=here.user,
        at=int(at),
        nodes=spec.nodes,
        workers_per_node=spec.workers_per_node,
        shared=spec.shared,
        sources={name: (value.value, value.source) for name, value in spec.sources.items()},
        submissions=(SubmissionRecord(token=token, at=int(at), submitter=processes.submitter()),),
    )
    submission = submission_of(record, spec, here.cwd, clean)
    places = Places(here.cwd, logs, WORKER, current_umask())
    script = render(spec, RunIdentity(run_id, run_dir, token), places, local=local)
    made = Plan(spec, record, submission, script, (*request.notices, *notices), request.python, notify)
    if named:
        check_secrets(spec.secrets, clean, script + json.dumps(made.spec_json(), ensure_ascii=False))
    return made


def _without_failed_nodes(
    spec: JobSpec, scheduler: Scheduler | None, here: LocalContext
) -> tuple[JobSpec, list[str]]:  # fmt: skip
    """Return the specification without nodes that failed, which no option of the user names, and a line about them."""
    if scheduler is None:
        return spec, []
    own = {name: value.value for name, value in spec.sources.items()}
    return leave_out(spec, own, scheduler.slurm, files.state_folder(here.environ))


def submission_of(run: RunRecord, spec: JobSpec, workdir: Path, env: Mapping[str, str]) -> Submission:
    """Return what the scheduler gets of a run; ``env`` is the scrubbed environment."""
    dependency, argv = spec.directive("dependency"), spec.sbatch_args
    if dependency and run.sources.get("dependency", ("", ""))[1] == WAITS_FOR_SUCCESS:
        argv = (*argv, KILL_ON_INVALID_DEP)
    return Submission(
        run_id=run.run_id,
        run_dir=run.run_dir,
        token=run.submission.token,
        script=run.sent_script,
        workdir=workdir,
        logs=run.logs,
        env=env,
        umask=0o027 if run.shared else 0o077,
        argv=argv,
        nodes=spec.nodes,
        tasks_per_node=spec.tasks_per_node,
        gpus_per_node=spec.gpus_per_node or 0,
        time_limit=spec.time_limit,
        dependency=dependency,
        in_job=spec.in_job,
        cpus_per_task=spec.cpus_per_task,
    )


def current_umask() -> int:
    """Return the submitter's umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
