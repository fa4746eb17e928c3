"""clusterrun: launch, follow and debug multi-node PyTorch training on Slurm.

The command line and a user's scripts use the same Python API::

    from clusterrun import Cluster

    cluster = Cluster()
    run = cluster.submit_script("train.py", "--lr", "1e-4", nodes=2, gpus_per_node=4)
    (state,) = cluster.wait([run])
    print(state.status.outcome)

Its names, each imported when it is first used:

    Cluster            plan, submit, sweep and recover runs; map a function; query, wait for, hold and cancel jobs
    SubmitArgs         what `clusterrun submit` takes: a job or a script, and options
    Plan               a run that is planned but not submitted: its JobSpec, its script and its record
    JobSpec            the resolved specification of a job
    RunRecord          a submitted run: its id, its job id, its folders
    RunState           the state of a job: its JobStatus, and its RunRecord if clusterrun submitted it
    JobStatus          a job as the scheduler reports it
    JobId              a job id: 123, 123_4 (array task), L7 (local)
    Outcome            what became of a job: running, done, failed, stopped, cancelled, lost or unknown
    ClusterrunError    base class of all errors; `hint` says what to try next
    RequestError       the request is invalid; nothing was written
    SchedulerError     the scheduler refused, or did not respond
    NoSuchJob          the job is not known, or belongs to another user
    Ambiguous          it is not known whether the request was carried out
    heartbeat          for a training script: report its step to the job's watchdog
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.base.errors import Ambiguous, ClusterrunError, NoSuchJob, RequestError, SchedulerError
    from clusterrun.base.job import JobId, JobStatus, Outcome
    from clusterrun.cluster import Cluster
    from clusterrun.jobspec.spec import JobSpec
    from clusterrun.records.run_record import RunRecord
    from clusterrun.state.reconcile import RunState
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs

__version__ = "0.1.0"
__all__ = [
    "Ambiguous",
    "Cluster",
    "ClusterrunError",
    "JobId",
    "JobSpec",
    "JobStatus",
    "NoSuchJob",
    "Outcome",
    "Plan",
    "RequestError",
    "RunRecord",
    "RunState",
    "SchedulerError",
    "SubmitArgs",
    "heartbeat",
]
_MODULES = {
    "Cluster": "cluster",
    "JobId": "base.job",
    "JobSpec": "jobspec.spec",
    "JobStatus": "base.job",
    "Outcome": "base.job",
    "Plan": "submit.plan",
    "RunRecord": "records.run_record",
    "RunState": "state.reconcile",
    "SubmitArgs": "submit.request",
}
_WORKER = "_clusterrun.worker.rank.progress"  # the worker's module in a process that it runs a script in


def heartbeat(step: int, *, total: int | None = None, loss: float | None = None) -> None:
    """Report the step that a script has reached, of how many, and its loss.

    `list`, `status` and `top` show them with the time left, and the watchdog sees that the script advances. It costs an
    assignment each, and does nothing outside of a clusterrun job. It is optional: what the script prints is read too,
    and the collectives of its process groups show that it advances. ``loss`` may be a tensor with one element.
    """
    worker = sys.modules.get(_WORKER)
    if worker is not None:
        worker.here.report(int(step), None if total is None else int(total), None if loss is None else float(loss))


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562): ``import clusterrun`` alone imports no submodule."""
    if name not in __all__:
        raise AttributeError(f"module 'clusterrun' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"clusterrun.{_MODULES.get(name, 'base.errors')}"), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
