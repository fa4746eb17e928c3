"""The dependency of a job on other jobs, for `--after`, `--after-ok`, `--chain` and the rungs of a ladder. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.scheduler import KILL_ON_INVALID_DEP
from clusterrun.submit.request import Request

AFTER_OK = "afterok"


def depend(request: Request, conditions: Sequence[str], *, instead: bool = False) -> Request:
    """Return the request with conditions such as ``afterok:12`` added to its ``--dependency``, or ``instead`` of it.

    A job that waits for the success of another is cancelled if that one fails. Raises RequestError if the conditions
    cannot be combined.
    """
    if not conditions:
        return request
    values = dict(request.values)
    old = "" if instead or "dependency" not in values else str(values["dependency"].value)
    if "?" in old:
        raise RequestError(
            f"--dependency {old} starts the job as soon as one condition is met, so it cannot be combined with"
            " --after, --after-ok or --chain",
            hint="put all conditions into --dependency",
        )
    # the source is not an option: `why` would repeat it in a command for later, when Slurm has forgotten the other job
    values["dependency"] = Value(",".join([*([old] if old else []), *conditions]), "after")
    if any(condition.startswith(AFTER_OK) for condition in conditions):
        own = values.get("sbatch-arg", Value((), "after"))
        values["sbatch-arg"] = Value(list(dict.fromkeys([*own.value, KILL_ON_INVALID_DEP])), own.source)
    return replace(request, values=values)
