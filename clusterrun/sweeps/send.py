"""Submit the arrays of a sweep, each exactly once; finish a sweep whose submission was interrupted.

All records are on disk before the first sbatch. The sweep's file notes each array before it is sent and its job number
after, so an interrupted sweep is finished without a second look at what was never sent (ADR 29).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
from clusterrun.submit.plan import Plan
from clusterrun.submit.resume import rebuild_submission, refuse_to_recover
from clusterrun.sweeps.plan import array_script

Notify = Callable[[str], None]
Array = tuple[Sequence[RunRecord], Submission]
"""The staged runs of one sbatch, and what the scheduler gets."""


def submit_sweep(
    store: Store, scheduler: Scheduler, sweep: Sweep, arrays: Sequence[Sequence[Plan]], notify: Notify,
    before: Sweep | None = None, *, code: Mapping[str, str], prepare: Callable[[RunRecord], None] | None = None,
) -> list[RunRecord]:  # fmt: skip
    """Write the records of all runs, submit the arrays in order and return the records with their job ids.

    ``code`` has the files of :func:`snapshot.save_code` for each run; ``prepare`` adds others. ``before`` is the
    sweep's file of an earlier submission, to which the runs are added. If nothing was submitted, the runs are deleted;
    after a later failure they stay for ``submit --recover``. Raises what :func:`protocol.submit_staged` raises, and
    RequestError if a record cannot be written.
    """
    first = arrays[0][0].record
    with contextlib.ExitStack() as locks:
        try:
            staged = [_stage(store, sweep, plans, code, prepare) for plans in arrays]
            locks.enter_context(store.submitting(_first_run(sweep.id, first)))
            if sweeps.load(sweep.root, sweep.id) != before:
                raise Ambiguous(f"another command has just changed sweep {sweep.name}", hint="run the command again")
            sweeps.save(sweep, first.shared)
        except BaseException as error:
            _discard(store, arrays)
            if not isinstance(error, OSError):
                raise
            raise RequestError(
                f"cannot write the sweep's records: {error.filename or sweep.file}: {error.strerror}",
                hint="nothing was submitted; if the disk is full, free some space, then try again",
            ) from error
        return _Sender(store, scheduler, sweep, notify).send_all(staged, partial(_undo, store, sweep, arrays, before))


def _first_run(sweep_id: str, like: RunRecord) -> RunRecord:
    """Return the first run of a sweep, whose lock is the sweep's; one ``like`` it if it was deleted."""
    return run_record.load(like.run_dir.parent / sweep_id) or like


def _stage(
    store: Store, sweep: Sweep, plans: Sequence[Plan], code: Mapping[str, str],
    prepare: Callable[[RunRecord], None] | None,
) -> Array:  # fmt: skip
    """Write the records of an array's runs, and its script."""
    for plan in plans:
        store.stage(plan.record, plan.spec_json(), plan.script, plan.notify, code)
        if prepare is not None:
            prepare(plan.record)
    first, records = plans[0].record, [plan.record for plan in plans]
    if first.submission.task is not None:
        run_ids = {record.submission.task or 0: record.run_id for record in records}
        sweeps.save_script(first, array_script(plans[0].script, first.run_dir.parent, run_ids, sweep.at_once))
    return records, plans[0].submission._replace(script=first.sent_script)


def _discard(store: Store, arrays: Sequence[Sequence[Plan]]) -> None:
    """Delete the runs of arrays, of which none was submitted."""
    for plans in arrays:
        with contextlib.suppress(OSError):
            plans[0].record.sent_script.unlink(missing_ok=True)
        for plan in plans:
            store.discard(plan.record)


def _undo(store: Store, sweep: Sweep, arrays: Sequence[Sequence[Plan]], before: Sweep | None) -> None:
    """Delete the runs of arrays, of which none was submitted, and restore the sweep's file."""
    _discard(store, arrays)
    with contextlib.suppress(OSError):
        if before is not None:
            sweeps.save(before, arrays[0][0].record.shared)
        else:
            sweep.file.unlink(missing_ok=True)


def is_sent_with_a_sweep(run: RunRecord) -> bool:
    """Return whether the run is a task of an array, or on this machine a job of a sweep: all are sent together."""
    return run.submission.task is not None or (run.scheduler == LOCAL and run.sweep != "")


def recover_sweep(
    run: RunRecord, store: Store, scheduler_of: Callable[[RunRecord], Scheduler], environ: Mapping[str, str],
    notify: Notify,
) -> RunRecord:  # fmt: skip
    """Finish the submission of the sweep that a run belongs to: of each of its arrays find the job, or submit it.

    On this machine each run is a job. Returns the run's record. Raises NoSuchJob if the run is not in the sweep's file,
    and what :func:`resume.recover` raises.
    """
    refuse_to_recover(run)
    scheduler = scheduler_of(run)
    store.prepare_again(run)
    with store.submitting(_first_run(run.sweep, run)):
        sweep = _sweep_of(run)
        sender, unsent = _Sender(store, scheduler, sweep, notify), list[Array]()
        for token, records in _arrays(sweep).items():
            number = sender.find(token, records, is_first=not unsent)
            waiting = [record for record in records if record.submission.state != submissions.ACCEPTED]
            if number:
                sender.adopt(number, records, waiting)
            elif waiting:
                begun = [protocol.begin(store, record) for record in waiting]
                unsent.append((begun, rebuild_submission(waiting[0], environ)))
        sender.send_all(unsent)
    return run_record.load(run.run_dir) or run


def _sweep_of(run: RunRecord) -> Sweep:
    """Return the sweep of a run; raises NoSuchJob if its file, which is written before any sbatch, lacks the run."""
    sweep = sweeps.sweep_of(run)
    if sweep is None or run.run_dir not in sweep.folders():
        raise NoSuchJob(
            f"run {run.run_id} was not submitted: the earlier command ended before all records of its sweep were"
            " written",
            hint=f"submit the sweep again; to remove this run: clusterrun cancel {run.run_id}",
        )
    return sweep


def _arrays(sweep: Sweep) -> dict[str, list[RunRecord]]:
    """Return the user's runs of a sweep by the token of their array; on this machine each has its own."""
    arrays: dict[str, list[RunRecord]] = {}
    for record in map(run_record.load, sweep.folders()):
        if record is not None and record.mine and is_sent_with_a_sweep(record):
            arrays.setdefault(record.submission.token, []).append(record)
    return arrays


class _Sender:
    """Submits the arrays of a sweep in order and, but on this machine, notes the job of each in the sweep's file.

    ``jobs`` are the numbers of the jobs that count for the limit of the sweep.
    """

    def __init__(self, store: Store, scheduler: Scheduler, sweep: Sweep, notify: Notify) -> None:
        self.store, self.scheduler, self.sweep, self.notify = store, scheduler, sweep, notify
        self.local = scheduler.name == LOCAL
        self.jobs = list[str]()

    def send_all(self, arrays: Sequence[Array], undo: Callable[[], None] | None = None) -> list[RunRecord]:
        """Submit arrays; ``undo`` deletes all records if the first is refused, without it they stay."""
        sent, waiting = list[RunRecord](), list(arrays)
        try:
            while waiting:
                sent += self.send(*waiting[0])
                del waiting[0]
        except (Refused, NotDelivered) as error:
            if undo is not None and not sent:
                undo()
                raise
            records, submission = waiting[0]
            with contextlib.suppress(OSError):  # the next command then looks the array up
                self.note(submission.token, records[0].shared, None)
            raise _left_over(error, sum(len(records) for records, _ in waiting), self.sweep) from error
        finally:
            for records, _ in waiting:
                protocol.Staged(self.store, records).leave()
        return sent

    def send(self, records: Sequence[RunRecord], submission: Submission) -> list[RunRecord]:
        note = partial(self.note, submission.token, records[0].shared)
        note("")  # from now on it may be a job
        staged = protocol.Staged(self.store, records, note, keep=True)
        return protocol.submit_staged(staged, self.scheduler, self.delayed(submission), notify=self.notify)

    def note(self, token: str, shared: bool, number: str | None) -> None:
        """Note the job of an array: empty while it is sent, None if it was not accepted."""
        if number:
            self.jobs.append(number)
        if not self.local:
            self.sweep = sweeps.record_job(self.sweep, token, number, shared)

    def delayed(self, submission: Submission) -> Submission:
        """Return the submission of an array that starts after those before it, if the sweep has a limit."""
        before = self.job_before()
        if not before:
            return submission
        dependency = ",".join(filter(None, (submission.dependency, f"afterany:{before}")))
        if self.local:
            return submission._replace(dependency=dependency)
        return submission._replace(argv=(*submission.argv, f"--dependency={dependency}"))

    def job_before(self) -> str:
        """Return the job after which the next one may start, empty if it need not wait.

        Slurm's limit is one of each array. On this machine each run is a job, which starts after the one ``at_once``
        before it.
        """
        distance = self.sweep.at_once or 0
        if distance and not self.local:
            distance = 1
        return self.jobs[-distance] if 0 < distance <= len(self.jobs) else ""

    def find(self, token: str, records: Sequence[RunRecord], *, is_first: bool) -> str:
        """Return the number of an array's job by the sweep's file, its runs or the scheduler; empty if it was not sent.

        On this machine the runs are sent in order, so all after the first that waits were never sent.
        """
        if self.sweep.jobs.get(token):
            return self.sweep.jobs[token]
        for record in records:  # a query may have recorded it in some of them
            if record.job_id is not None:
                return record.job_id.base
        may_be_a_job = is_first if self.local else token in self.sweep.jobs
        job = protocol.find_job(self.scheduler, records, protocol.Clock(), self.notify) if may_be_a_job else None
        return job.base if job is not None else ""

    def adopt(self, number: str, records: Sequence[RunRecord], waiting: Sequence[RunRecord]) -> None:
        """Record the job of an array in those of its runs that have no job id yet."""
        if self.local:
            if records[0].submission.final is None:
                self.jobs.append(number)
        elif waiting:
            self.sweep = sweeps.record_job(self.sweep, waiting[0].submission.token, number, waiting[0].shared)
        protocol.Staged(self.store, waiting).commit(JobId(number), one_cluster(self.scheduler.cluster))


def _left_over(error: Refused | NotDelivered, count: int, sweep: Sweep) -> Refused | NotDelivered:
    were, them = ("was", "it") if count == 1 else ("were", "them")
    message = f"{plural(count, 'task')} of the sweep {were} not submitted: {error.message}"
    hint = f"to submit {them} later: clusterrun submit --recover {sweep.id}"
    return type(error)(message, detail=error.detail, hint=hint)
