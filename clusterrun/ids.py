"""Ids as they are typed: what names a part of a run names nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterrun.errors import NoSuchJob
from clusterrun.job import JobId, is_run_id
from clusterrun.states import RunState


def is_part(text: str) -> bool:
    """Whether a task (``5_2``) or a component (``5+1``) was typed."""
    job = None if is_run_id(text) else JobId.parse(text)
    return job is not None and (job.task is not None or job.part is not None)


def refuse_parts(texts: Iterable[str], states: Sequence[RunState]) -> None:
    """Raise NoSuchJob for a task (``5_2``) or a component (``5+1``) of a run, which is one job and has none.

    A run's record is found by the number alone, so that all of the run would be taken for the part that was typed.
    """
    whole = {state.status.id.raw: state.status for state in states if state.record is not None}
    for job in (JobId.parse(text) for text in texts if not is_run_id(text)):
        status = whole.get(job.raw)
        if status is None:
            continue
        if job.task is not None and status.id.task is None and not status.tasks:
            raise NoSuchJob(f"no such job: {job}, as {job.raw} is no array", hint=f"the whole job is {job.raw}")
        if job.part is not None and status.id.part is None:
            raise NoSuchJob(f"no such job: {job}, as {job.raw} is one job", hint=f"the whole job is {job.raw}")
