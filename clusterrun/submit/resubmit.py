"""Submit a run anew, with changes: its recorded values and its work become the arguments of another submit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterrun.config import profiles
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.jobspec.fields import FIELD, Value
from clusterrun.jobspec.spec import Command, Module, Script, Work, load_spec
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.submit.request import SubmitArgs

#: What belongs to the old job alone: it waited for other jobs.
_NOT_AGAIN = ("dependency",)


def resubmit_args(run: RunRecord, changes: SubmitArgs, words: Sequence[str] | None = None) -> tuple[SubmitArgs, Path]:
    """Return the arguments that submit a run anew, and the folder that it was submitted from.

    The flags of ``changes`` come before the recorded values; ``words`` replace the arguments of a script, a module or a
    command. Raises NoSuchJob for another user's run, RequestError for a run that cannot be repeated.
    """
    job = run.job_id or run.run_id
    if not run.mine:
        raise NoSuchJob(f"job {job} belongs to {run.user}, not to you", hint="only its owner can submit it again")
    data = run_record.read_json(run.run_dir / "spec.json")
    if data is None:
        raise RequestError(f"the spec.json of run {run.run_id} cannot be read", hint="submit a new run")
    work, folder = load_spec(data).work, Path(str(data.get("workdir") or run.root))
    if not folder.is_dir():
        raise RequestError(f"the folder that job {job} was submitted from is gone: {folder}", hint="submit a new run")
    recorded = {name: Value(*pair) for name, pair in run.sources.items() if name in FIELD and name not in _NOT_AGAIN}
    origin = f"job {job}"
    recorded.setdefault("scheduler", Value(run.scheduler, origin))
    if notify := run_record.read_json(run.run_dir / "notify.json"):
        recorded |= {name: Value(notify[key], origin) for name, key in (("notify", "target"), ("notify-on", "on"))
                     if key in notify}  # fmt: skip
    if "fp16" in changes.flags and "set" in recorded:
        settings = recorded["set"]
        others = {key: value for key, value in settings.value.items() if key != "precision"}
        recorded["set"] = Value(others, settings.source)
    values = profiles.merge([changes.flags, recorded])
    return SubmitArgs(work=_with_words(work, words), flags=values, exact=True), folder


def _with_words(work: Work, words: Sequence[str] | None) -> Work:
    if words is None:
        return work
    if not isinstance(work, Script | Module | Command):
        raise RequestError(f"{work.name} takes settings, no arguments", hint="clusterrun resubmit JOBID --set lr=1e-4")
    return replace(work, args=tuple(words))
