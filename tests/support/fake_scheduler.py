"""A fake Slurm whose answers a test plans, on a fake clock; and staged runs to submit to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from clusterrun.base.errors import Ambiguous, ClusterrunError, NoScheduler, NotDelivered, Refused, SchedulerError
from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder.submissions import SubmissionRecord
from clusterrun.scheduler import Answer, Cancelled, Submission
from clusterrun.state import reconcile
from clusterrun.submit import protocol
from clusterrun.submit.protocol import Clock
from clusterrun.system import processes
from clusterrun.testing import FakeScheduler

NOW = 1_800_000_000
TOKEN = "abcdefgh22345672"
#: a submitter that is no process of any host
GONE = ("", 0, 0)


class Time:
    """A clock that only sleeping and asking move on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, sleep=self.sleep, jitter=lambda: 0.5)


BUSY = "Slurm temporarily unable to accept job, sleeping and retrying"


class FakeSlurm(FakeScheduler):
    """A fake Slurm on a fake clock: `plan` holds the result of each sbatch, and `deaf` when it does not respond.

    Plan words: accept, refuse, undelivered; "made" and "unmade": cut off, with a job or without; "late": cut off, with
    a job some seconds later; "busy": cut off while sbatch waited, without a job; "strange": rc 1 and an unknown text;
    "yes": rc 0, job made, no id; "no job": rc 0, no job; "gone": there is no sbatch.
    """

    def __init__(self, time: Time, plan: Sequence[str] = (), deaf: Sequence[tuple[float, float]] = ()) -> None:
        super().__init__()
        self.time, self.plan, self.deaf = time, list(plan), deaf
        self.visible_from: dict[JobId, float] = {}
        self.past = Answer()
        self.sent, self.asked = 0, 0
        self.cancel_fails = False

    def make(self, token: str, late: float = 0.0, **changes: object) -> JobId:
        id = self.add_job(token, **{"name": f"a,b.{token[:8]}", **changes})
        self.visible_from[id] = self.time.seconds + late
        return id

    def submit(self, submission: Submission) -> JobId:
        self.sent += 1
        word = self.plan.pop(0) if self.plan else "accept"
        self.time.sleep(10 if word in ("made", "unmade", "late", "busy") else 9 if word == "undelivered" else 0.01)
        match word:
            case "accept":
                return self.make(submission.token)
            case "refuse":
                raise Refused("Slurm refused the job", detail="sbatch: error: no")
            case "undelivered":
                raise NotDelivered("Slurm did not receive the request", detail="connect failure")
            case "gone":
                raise NoScheduler("cannot run sbatch")
            case "strange" | "no job":
                raise Ambiguous("?", detail="what?", cut_off=False, accepted=word == "no job")
            case "busy":
                raise Ambiguous("cut off", detail=f"sbatch: error: {BUSY}", busy=BUSY)
            case "late":
                self.make(submission.token, late=9.0)
            case "made" | "yes":
                self.make(submission.token)
        raise Ambiguous("cut off", detail="Socket timed out", accepted=word == "yes")

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        self.time.sleep(0.01)
        self.asked += 1
        if any(first <= self.time.seconds < last for first, last in self.deaf):
            self.time.sleep(10)
            return Answer(complete=False, note="squeue: Socket timed out")
        return Answer([job for id, job in self.jobs.items() if self.visible_from[id] <= self.time.seconds])

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        return self.past

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        if self.cancel_fails:
            raise SchedulerError("scancel failed")
        return super().cancel(ids)


def status(id: JobId, token: str, state: str = "PENDING", **changes: object) -> JobStatus:
    job = JobStatus(id=id, state=state, outcome=outcome_of(state), name=f"a,b.{token[:8]}", source="squeue")
    return replace(job, **changes)


def staged(root: Path, token: str = TOKEN, **changes: object) -> tuple[Store, RunRecord, Submission]:
    """A run written down and about to be sent, by this process."""
    store = Store(root, root / "state")
    run_id = f"20261121-034501-{token[:6]}"
    one = SubmissionRecord(token=token, at=NOW, submitter=processes.submitter())
    record = RunRecord(
        run_id=run_id, run_dir=store.runs / run_id, root=root, name="a,b", what="train.py", scheduler="slurm",
        cluster="fake", user="me", at=NOW, nodes=2, workers_per_node=4, shared=False, sources={},
        submissions=(replace(one, **changes),),
    )  # fmt: skip
    store.stage(record, {}, "#!/bin/bash\n")
    submission = Submission(
        run_id=run_id, run_dir=record.run_dir, token=token, script=record.run_dir / "script.sh", workdir=root,
        logs=root / "logs", env={},
    )  # fmt: skip
    return store, record, submission


def claim(record: RunRecord, job: str, restart: int = 0) -> None:
    folder = record.run_dir / "claims" / record.submission.token
    folder.mkdir()
    (folder / "owner").write_text(f"fake {job} {restart}\n")


def send(
    root: Path, plan: Sequence[str], deaf: Sequence[tuple[float, float]] = (), notify: Callable[[str], None] = str
) -> tuple[FakeSlurm, RunRecord | ClusterrunError]:
    """Submit a fresh run to a scheduler with that plan; what came of it, an error included."""
    time = Time()
    slurm = FakeSlurm(time, plan, deaf)
    store, record, submission = staged(root)
    try:
        return slurm, protocol.submit(store, slurm, record, submission, notify=notify, clock=time.clock)
    except ClusterrunError as error:
        return slurm, error


def left(root: Path) -> list[RunRecord]:
    """The runs on disk."""
    return Store(root, root / "state").all()


def ask(slurm: FakeSlurm, root: Path, now: float = NOW + 30) -> reconcile.RunState:
    (state,) = reconcile.reconcile(Store(root, root / "state"), slurm, left(root), now=now)
    return state
