"""Submit the arrays of a sweep, each exactly once; finish a sweep whose submission was interrupted.

All records are on disk before the first sbatch. The sweep's file notes each array before it is sent and its job number
after, so an interrupted sweep is finished without a second look at what was never sent (ADR 29).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from clusterrun.base.errors import Ambiguous, NoSuchJob, NotDelivered, Refused, RequestError
from clusterrun.base.job import LOCAL, JobId, one_cluster
from clusterrun.base.units import plural
from clusterrun.records import run_record, sweeps
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.records.sweeps import Sweep
from clusterrun.run_folder import submissions
from clusterrun.scheduler import Scheduler, Submission
from clusterrun.submit import protocol
from clusterrun.submit.sweep_plan import PlannedArray

Notify = Callable[[str], None]


class SweepArray(NamedTuple):
    """The staged runs of one sbatch, and what the scheduler gets."""

    records: Sequence[RunRecord]
    submission: Submission


def submit_sweep(
    store: Store, scheduler: Scheduler, sweep: Sweep, arrays: Sequence[PlannedArray], notify: Notify,
    before: Sweep | None = None, *, code: Mapping[str, str], prepare: Callable[[RunRecord], None] | None = None,
) -> list[RunRecord]:  # fmt: skip
    """Write the records of all runs, submit the arrays in order and return the records with their job ids.

    ``code`` has the files of :func:`snapshot.save_code` for each run; ``prepare`` adds others. ``before`` is the
    sweep's file of an earlier submission, to which the runs are added. If nothing was submitted, the runs are deleted;
    after a later failure they stay for ``submit --recover``. Raises what :func:`protocol.submit_staged` raises, and
    RequestError if a record cannot be written.
    """
    first = arrays[0].plans[0].record

    def undo() -> None:
        for plan in (plan for array in arrays for plan in array.plans):
            store.discard(plan.record)
        with contextlib.suppress(OSError):
            for array in arrays:
                array.plans[0].record.sent_script.unlink(missing_ok=True)
            if before is not None:
                sweeps.save(before, first.shared)
            else:
                sweep.file.unlink(missing_ok=True)

    with contextlib.ExitStack() as locks:
        if before is not None:
            locks.enter_context(store.submitting(run_record.load(first.run_dir.parent / sweep.id) or first))
            if sweeps.load(sweep.root, sweep.id) != before:
                raise Ambiguous(f"another command has just changed sweep {sweep.name}", hint="run the command again")
        try:
            staged = _stage(store, sweep, arrays, code, prepare)
        except BaseException as error:
            undo()
            if not isinstance(error, OSError):
                raise
            raise RequestError(
                f"cannot write the sweep's records: {error.filename or sweep.file}: {error.strerror}",
                hint="nothing was submitted; if the disk is full, free some space, then try again",
            ) from error
        if before is None:
            locks.enter_context(store.submitting(first))
        return _send(store, scheduler, sweep, staged, notify, undo)


def _stage(
    store: Store, sweep: Sweep, arrays: Sequence[PlannedArray], code: Mapping[str, str],
    prepare: Callable[[RunRecord], None] | None,
) -> list[SweepArray]:  # fmt: skip
    """Write all records, the scripts of the arrays and, last, the sweep's file."""
    found = []
    for array in arrays:
        for plan in array.plans:
            store.stage(plan.record, plan.spec_json(), plan.script, plan.notify, code)
            if prepare is not None:
                prepare(plan.record)
        first = array.plans[0]
        if array.script:
            sweeps.save_script(first.record, array.script)
        submission = first.submission._replace(script=first.record.sent_script)
        found.append(SweepArray([plan.record for plan in array.plans], submission))
    sweeps.save(sweep, found[0].records[0].shared)
    return found


def recover_sweep(
    run: RunRecord, store: Store, scheduler: Scheduler, rebuild: Callable[[RunRecord], Submission], notify: Notify
) -> None:
    """Finish the submission of the sweep that a run belongs to: of each of its arrays find the job, or submit it.

    On this machine each run is a job.

    ``rebuild`` returns the submission of a staged run. Raises NoSuchJob if the run is not in the sweep's file, and
    what :func:`protocol.submit_staged` raises.
    """
    local = scheduler.name == LOCAL
    with store.submitting(run_record.load(run.run_dir.parent / run.sweep) or run):
        sweep = sweeps.sweep_of(run)
        if sweep is None or run.run_dir not in sweep.folders():  # that file is written before the first sbatch
            raise NoSuchJob(
                f"run {run.run_id} was not submitted: the earlier command ended before all records of its sweep were"
                " written",
                hint=f"submit the sweep again; to remove this run: clusterrun cancel {run.run_id}",
            )
        unsent, earlier = list[SweepArray](), list[str]()
        for token, records in _arrays(sweep, local=local).items():
            waiting = [record for record in records if record.submission.state != submissions.ACCEPTED]
            number = _number(sweep, token, records)
            # on this machine the runs are sent in order, so all after the first that waits were never sent
            may_be_a_job = not unsent if local else token in sweep.jobs
            if not number and may_be_a_job:
                job = protocol.find_job(scheduler, records, protocol.Clock(), notify)
                number = job.base if job is not None else ""
            if number:
                earlier += [number] if _delays_others(records[0]) else []
                sweep = sweeps.record_job(sweep, token, number, run.shared) if waiting and not local else sweep
                protocol.Staged(store, waiting).commit(JobId(number), one_cluster(scheduler.cluster))
            elif waiting:
                unsent.append(SweepArray([protocol.begin(store, one) for one in waiting], rebuild(waiting[0])))
        _send(store, scheduler, sweep, unsent, notify, None, earlier)


def _arrays(sweep: Sweep, *, local: bool) -> dict[str, list[RunRecord]]:
    """Return the user's runs of a sweep by the token of their array; on this machine each has its own."""
    arrays: dict[str, list[RunRecord]] = {}
    for record in map(run_record.load, sweep.folders()):
        if record is not None and record.mine and (local or record.submission.task is not None):
            arrays.setdefault(record.submission.token, []).append(record)
    return arrays


def _number(sweep: Sweep, token: str, records: Sequence[RunRecord]) -> str:
    """Return the number of an array's job by the sweep's file, else by its runs; empty if none knows one."""
    ids = [record.job_id.base for record in records if record.job_id]
    return sweep.jobs.get(token) or "".join(ids[:1])


def _delays_others(run: RunRecord) -> bool:
    """Return whether a run counts for the limit of a sweep whose runs are jobs on this machine."""
    return run.scheduler == LOCAL and run.submission.final is None


def _send(
    store: Store, scheduler: Scheduler, sweep: Sweep, arrays: Sequence[SweepArray], notify: Notify,
    undo: Callable[[], None] | None, earlier: Sequence[str] = (),
) -> list[RunRecord]:  # fmt: skip
    """Submit arrays in order; ``undo`` deletes all records if the first is refused, without it they stay.

    ``earlier`` are the jobs on this machine that count for the limit of the sweep, too.
    """
    sent: list[RunRecord] = []
    local, jobs = scheduler.name == LOCAL, [*earlier]

    def note(token: str, job: str, shared: bool) -> None:
        nonlocal sweep
        if job:
            jobs.append(job)
        if not local:
            sweep = sweeps.record_job(sweep, token, job, shared)

    try:
        for array in arrays:
            note_job = partial(note, array.submission.token, shared=array.records[0].shared)
            note_job("")  # from now on it may be a job
            submission = _one_after_another(array.submission, sweep.at_once, jobs, local=local)
            staged = protocol.Staged(store, array.records, note_job, keep=True)
            sent += protocol.submit_staged(staged, scheduler, submission, notify=notify)
    except (Refused, NotDelivered) as error:
        if undo is not None and not sent:
            undo()
            raise
        if not local:
            with contextlib.suppress(OSError):  # the next command then looks the array up
                sweeps.record_job(sweep, array.submission.token, None, array.records[0].shared)
        left = sum(len(array.records) for array in arrays) - len(sent)
        tasks = f"{plural(left, 'task')} of the sweep {'was' if left == 1 else 'were'}"
        raise type(error)(
            f"{tasks} not submitted: {error.message}", detail=error.detail,
            hint=f"to submit {'it' if left == 1 else 'them'} later: clusterrun submit --recover {sweep.id}",
        ) from error  # fmt: skip
    finally:
        if len(sent) < sum(len(array.records) for array in arrays):
            for array in arrays:
                protocol.Staged(store, array.records).leave()
    return sent


def _one_after_another(submission: Submission, at_once: int | None, jobs: Sequence[str], *, local: bool) -> Submission:
    """Return the submission of an array that starts after those before it, since ``at_once`` is a limit of each array.

    On this machine each run is a job, which starts after the one ``at_once`` before it.
    """
    before = jobs[-at_once] if at_once and local and len(jobs) >= at_once else jobs[-1] if jobs and not local else ""
    if not at_once or not before:
        return submission
    dependency = ",".join(filter(None, (submission.dependency, f"afterany:{before}")))
    if local:
        return submission._replace(dependency=dependency)
    return submission._replace(argv=(*submission.argv, f"--dependency={dependency}"))
