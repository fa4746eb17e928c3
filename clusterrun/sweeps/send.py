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
    undo = partial(_undo, store, sweep, arrays, before)
    with contextlib.ExitStack() as locks:
        if before is not None:
            locks.enter_context(store.submitting(_first_run(sweep.id, first)))
            if sweeps.load(sweep.root, sweep.id) != before:
                raise Ambiguous(f"another command has just changed sweep {sweep.name}", hint="run the command again")
        try:
            staged = _stage(store, sweep, arrays, code, prepare)
        except OSError as error:
            undo()
            raise RequestError(
                f"cannot write the sweep's records: {error.filename or sweep.file}: {error.strerror}",
                hint="nothing was submitted; if the disk is full, free some space, then try again",
            ) from error
        except BaseException:
            undo()
            raise
        if before is None:
            locks.enter_context(store.submitting(first))
        return _Sender(store, scheduler, sweep, notify).send_all(staged, undo)


def _first_run(sweep_id: str, like: RunRecord) -> RunRecord:
    """Return the first run of a sweep, whose lock is the sweep's; one ``like`` it if it was deleted."""
    return run_record.load(like.run_dir.parent / sweep_id) or like


def _stage(
    store: Store, sweep: Sweep, arrays: Sequence[Sequence[Plan]], code: Mapping[str, str],
    prepare: Callable[[RunRecord], None] | None,
) -> list[Array]:  # fmt: skip
    """Write all records, the scripts of the arrays and, last, the sweep's file."""
    staged = list[Array]()
    for plans in arrays:
        for plan in plans:
            store.stage(plan.record, plan.spec_json(), plan.script, plan.notify, code)
            if prepare is not None:
                prepare(plan.record)
        first = plans[0]
        if first.record.submission.task is not None:
            run_ids = {plan.record.submission.task or 0: plan.record.run_id for plan in plans}
            script = array_script(first.script, first.record.run_dir.parent, run_ids, sweep.at_once)
            sweeps.save_script(first.record, script)
        submission = first.submission._replace(script=first.record.sent_script)
        staged.append(([plan.record for plan in plans], submission))
    sweeps.save(sweep, first.record.shared)
    return staged


def _undo(store: Store, sweep: Sweep, arrays: Sequence[Sequence[Plan]], before: Sweep | None) -> None:
    """Delete the runs of arrays, of which none was submitted, and restore the sweep's file."""
    for plans in arrays:
        for plan in plans:
            store.discard(plan.record)
    with contextlib.suppress(OSError):
        for plans in arrays:
            plans[0].record.sent_script.unlink(missing_ok=True)
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
        for token, records in _arrays(sweep, local=sender.local).items():
            number = _number(sweep, token, records) or sender.find(token, records, is_first=not unsent)
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
        sent, count = list[RunRecord](), sum(len(records) for records, _ in arrays)
        try:
            for records, submission in arrays:
                sent += self.send(records, submission)
        except (Refused, NotDelivered) as error:
            if undo is not None and not sent:
                undo()
                raise
            with contextlib.suppress(OSError):  # the next command then looks the array up
                self.note(submission.token, records[0].shared, None)
            raise _left_over(error, count - len(sent), self.sweep) from error
        finally:
            if len(sent) < count:
                for records, _ in arrays:
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
        """Return the number of an array's job if it was sent, else an empty text.

        On this machine the runs are sent in order, so all after the first that waits were never sent.
        """
        may_be_a_job = is_first if self.local else token in self.sweep.jobs
        if not may_be_a_job:
            return ""
        job = protocol.find_job(self.scheduler, records, protocol.Clock(), self.notify)
        return job.base if job is not None else ""

    def adopt(self, number: str, records: Sequence[RunRecord], waiting: Sequence[RunRecord]) -> None:
        """Record the job of an array in those of its runs that have no job id yet."""
        if not self.local and waiting:
            self.sweep = sweeps.record_job(self.sweep, waiting[0].submission.token, number, waiting[0].shared)
        if self.local and records[0].submission.final is None:
            self.jobs.append(number)
        protocol.Staged(self.store, waiting).commit(JobId(number), one_cluster(self.scheduler.cluster))


def _left_over(error: Refused | NotDelivered, count: int, sweep: Sweep) -> Refused | NotDelivered:
    were, them = ("was", "it") if count == 1 else ("were", "them")
    message = f"{plural(count, 'task')} of the sweep {were} not submitted: {error.message}"
    hint = f"to submit {them} later: clusterrun submit --recover {sweep.id}"
    return type(error)(message, detail=error.detail, hint=hint)
