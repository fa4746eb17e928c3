"""The submit protocol against a scheduler of our own making: every answer, every order of them, no waiting."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun import states, submission
from clusterrun import store as records
from clusterrun.errors import Ambiguous, ClusterrunError, NoScheduler, NotDelivered, Refused, SchedulerError
from clusterrun.job import JobId, JobStatus, Outcome, outcome_of
from clusterrun.scheduler import Answer, Cancelled, Submission
from clusterrun.store import RunRecord, Store, SubmissionRecord
from clusterrun.submission import Clock

NOW = 1_800_000_000
TOKEN = "abcdefgh22345672"


class Time:
    """A clock that only sleeping and asking move on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, sleep=self.sleep, jitter=lambda: 0.5)


class FakeSlurm:
    """A scheduler that does what it is told: `plan` holds what becomes of each sbatch, and `deaf` when it is silent.

    Plan words: accept, refuse, undelivered; "made" and "unmade": cut off, with a job or without; "late": cut off, with
    a job some seconds later; "strange": rc 1 and a text nobody knows; "yes": rc 0, job made, no id; "no job": rc 0, no
    job; "gone": there is no sbatch.
    """

    name, cluster = "slurm", "fake"

    def __init__(self, time: Time, plan: Sequence[str] = (), deaf: Sequence[tuple[float, float]] = ()) -> None:
        self.time, self.plan, self.deaf = time, list(plan), deaf
        self.jobs: list[tuple[float, JobStatus]] = []  # each from its second on
        self.past = Answer()
        self.sent, self.asked, self.cancelled = 0, 0, list[JobId]()
        self.cancel_fails = False

    def make(self, token: str, late: float = 0.0, **changes: object) -> JobId:
        id = JobId(str(100 + len(self.jobs)))
        self.jobs.append((self.time.seconds + late, status(id, token, **changes)))
        return id

    def submit(self, order: Submission) -> JobId:
        self.sent += 1
        word = self.plan.pop(0) if self.plan else "accept"
        self.time.sleep(10 if word in ("made", "unmade", "late") else 9 if word == "undelivered" else 0.01)
        match word:
            case "accept":
                return self.make(order.token)
            case "refuse":
                raise Refused("Slurm refused the job", said="sbatch: error: no")
            case "undelivered":
                raise NotDelivered("Slurm did not get the request", said="connect failure")
            case "gone":
                raise NoScheduler("sbatch could not be started")
            case "strange" | "no job":
                raise Ambiguous("?", said="what?", wire=False, yes=word == "no job")
            case "late":
                self.make(order.token, late=9.0)
            case "made" | "yes":
                self.make(order.token)
        raise Ambiguous("cut off", said="Socket timed out", yes=word == "yes")

    def _silent(self) -> bool:
        self.asked += 1
        return any(first <= self.time.seconds < last for first, last in self.deaf)

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        self.time.sleep(0.01)
        if self._silent():
            self.time.sleep(10)
            return Answer(complete=False, note="squeue: Socket timed out")
        return Answer([job for since, job in self.jobs if since <= self.time.seconds])

    def find(self, token: str, since: int) -> Answer:
        live = self.query()
        return replace(live, jobs=[job for job in live.jobs if job.name.endswith("." + token[:8])])

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        return self.past

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        if self.cancel_fails:
            raise SchedulerError("scancel failed")
        self.cancelled += ids
        return [Cancelled(id, done=True) for id in ids]


def status(id: JobId, token: str, state: str = "PENDING", **changes: object) -> JobStatus:
    job = JobStatus(id=id, state=state, outcome=outcome_of(state), name=f"a,b.{token[:8]}", source="squeue")
    return replace(job, **changes)


def staged(root: Path, token: str = TOKEN, **changes: object) -> tuple[Store, RunRecord, Submission]:
    """A run written down and about to be sent, by this process."""
    store = Store(root, root / "state")
    run_id = f"20261121-034501-{token[:6]}"
    one = SubmissionRecord(token=token, at=NOW, submitter=submission.submitter())
    record = RunRecord(
        run_id=run_id, run_dir=store.runs / run_id, root=root, name="a,b", what="train.py", scheduler="slurm",
        cluster="fake", user="me", at=NOW, nodes=2, tasks_per_node=4, shared=False, sources={},
        submissions=(replace(one, **changes),),
    )  # fmt: skip
    store.stage(record, {}, "#!/bin/bash\n")
    order = Submission(
        run_id=run_id, run_dir=record.run_dir, token=token, script=record.run_dir / "script.sh", workdir=root,
        logs=root / "logs", env={},
    )  # fmt: skip
    return store, record, order


def claim(record: RunRecord, job: str, restart: int = 0) -> None:
    folder = record.run_dir / "claims" / record.submission.token
    folder.mkdir()
    (folder / "owner").write_text(f"fake {job} {restart}\n")


def send(
    root: Path, plan: Sequence[str], deaf: Sequence[tuple[float, float]] = (), tell: Callable[[str], None] = str
) -> tuple[FakeSlurm, RunRecord | ClusterrunError]:
    """Submit a fresh run to a scheduler with that plan; what came of it, an error included."""
    time = Time()
    slurm = FakeSlurm(time, plan, deaf)
    store, record, order = staged(root)
    try:
        return slurm, submission.submit(store, slurm, record, order, tell=tell, clock=time.clock)
    except ClusterrunError as error:
        return slurm, error


def left(root: Path) -> list[RunRecord]:
    """The runs on disk."""
    return Store(root, root / "state").all()


# -- submit ----------------------------------------------------------------------------------------------------------


def test_an_accepted_submission_is_on_disk_with_its_id(tmp_path: Path) -> None:
    slurm, run = send(tmp_path, ["accept"])
    assert isinstance(run, RunRecord) and str(run.job_id) == "100" and (slurm.sent, slurm.asked) == (1, 0)
    (read,) = left(tmp_path)
    assert (read.submission.state, str(read.job_id)) == (records.ACCEPTED, "100")
    assert [r.run_id for r in Store(tmp_path, tmp_path / "state").by_job(JobId("100"))] == [run.run_id]


@pytest.mark.parametrize("word", ["made", "late", "yes"])
def test_a_job_behind_an_unclear_answer_is_found_and_not_sent_again(tmp_path: Path, word: str) -> None:
    slurm, run = send(tmp_path, [word])
    assert isinstance(run, RunRecord) and str(run.job_id) == "100" and slurm.sent == 1


@pytest.mark.parametrize("deaf", [20.0, 60.0, 119.0])
def test_a_silent_controller_is_waited_for(tmp_path: Path, deaf: float) -> None:
    slurm, run = send(tmp_path, ["made"], [(0, deaf)])
    assert isinstance(run, RunRecord) and slurm.sent == 1


def test_a_request_that_did_not_arrive_is_sent_again_after_ten_seconds_of_good_answers(tmp_path: Path) -> None:
    slurm, run = send(tmp_path, ["unmade", "accept"])
    assert isinstance(run, RunRecord) and slurm.sent == 2 and slurm.asked >= 3 and slurm.time.seconds >= 20


def test_silence_between_good_answers_does_not_count_as_absence(tmp_path: Path) -> None:
    # the first good answer comes before the job is there, silence follows, then the job is seen
    slurm, run = send(tmp_path, ["late"], [(10.5, 60)])
    assert isinstance(run, RunRecord) and slurm.sent == 1


def test_without_a_controller_the_sending_ends_and_nothing_is_left(tmp_path: Path) -> None:
    told: list[str] = []
    slurm, error = send(tmp_path, ["undelivered"] * 50, tell=told.append)
    assert isinstance(error, NotDelivered) and error.exit_code == 3 and "nothing was submitted" in error.message
    assert 60 < slurm.time.seconds < 120 and slurm.sent == len(told) + 1
    assert error.said == "connect failure" and not left(tmp_path) and not slurm.jobs
    assert not list((tmp_path / ".clusterrun" / "runs").iterdir())


def test_a_controller_that_stays_silent_leaves_the_record_and_says_how_to_go_on(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["made"], [(0, 1e9)])
    assert isinstance(error, Ambiguous) and error.exit_code == 75 and slurm.time.seconds < 180
    (run,) = left(tmp_path)
    assert error.hint == f"settle it later: clusterrun submit --recover {run.run_id}"
    assert run.submission.state == records.SUBMITTING and run.job_id is None
    assert not submission.submitter_lives(run.submission.submitter), "nobody is at it, though this process lives on"


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["refuse"])
    assert isinstance(error, Refused) and error.said == "sbatch: error: no" and slurm.sent == 1
    assert not left(tmp_path) and not list((tmp_path / ".clusterrun" / "runs").iterdir())


def test_an_unknown_failure_without_a_job_is_a_refusal_in_its_own_words(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["strange"])
    assert isinstance(error, Refused) and error.said == "what?" and slurm.sent == 1 and slurm.asked >= 3
    assert not left(tmp_path)


def test_a_yes_without_a_job_is_never_sent_again(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["no job"])
    assert isinstance(error, Ambiguous) and slurm.sent == 1 and "--recover" in error.hint
    assert len(left(tmp_path)) == 1


def test_requests_that_are_always_cut_off_end_some_time(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["unmade"] * 100)
    assert isinstance(error, NotDelivered) and slurm.time.seconds < 300 and not left(tmp_path) and not slurm.jobs


def test_no_sbatch_leaves_nothing(tmp_path: Path) -> None:
    _, error = send(tmp_path, ["gone"])
    assert isinstance(error, NoScheduler) and not left(tmp_path)


WORDS = ["accept", "refuse", "undelivered", "made", "unmade", "late", "strange", "yes", "no job"]
silences = st.lists(st.tuples(st.floats(0, 200), st.floats(0.1, 150)), max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12), silences)
def test_whatever_happens_none_is_lost_doubled_or_wrong(plan: list[str], silent: list[tuple[float, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        slurm, result = send(root, plan, [(first, first + length) for first, length in silent])
        made = [job.id for _, job in slurm.jobs]
        runs = left(root)
        assert len(made) <= 1, "doubled"
        assert slurm.time.seconds < 600
        if isinstance(result, RunRecord):
            assert [result.job_id] == made and [run.job_id for run in runs] == made
        elif isinstance(result, Ambiguous):
            assert [run.job_id for run in runs] == [None]
            # whatever it was, it is settled once the controller answers
            slurm.time.seconds += 1000
            (healed,) = states.read(Store(root, root / "state"), slurm, runs, now=NOW + 1000)
            assert healed.record is not None
            expected = (records.ACCEPTED, made[0]) if made else (records.NOT_SUBMITTED, None)
            assert (healed.record.submission.state, healed.record.job_id) == expected
        else:
            assert not made and not runs, "a job without a record"


# -- copies ----------------------------------------------------------------------------------------------------------


def test_of_two_jobs_the_older_is_kept_and_the_waiting_one_cancelled(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN), slurm.make(TOKEN), slurm.make(TOKEN, state="RUNNING")
    told: list[str] = []
    _, record, _ = staged(tmp_path)
    assert submission.look_up(slurm, record, slurm.time.clock, told.append) == JobId("100")
    assert slurm.cancelled == [JobId("101")] and "keeping job 100" in told[0]


def test_of_two_jobs_the_one_that_claimed_is_kept(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN), slurm.make(TOKEN, state="RUNNING")
    _, record, _ = staged(tmp_path)
    claim(record, "101")
    assert submission.look_up(slurm, record, slurm.time.clock, str) == JobId("101")
    assert slurm.cancelled == [JobId("100")]


def test_a_copy_that_cannot_be_cancelled_is_no_error(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN), slurm.make(TOKEN)
    slurm.cancel_fails = True
    _, record, _ = staged(tmp_path)
    assert submission.look_up(slurm, record, slurm.time.clock, str) == JobId("100")


def test_a_claim_alone_tells_the_job(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time(), deaf=[(0, 1e9)])
    _, record, _ = staged(tmp_path)
    claim(record, "7")
    assert submission.look_up(slurm, record, slurm.time.clock, str) == JobId("7")


@pytest.mark.parametrize("owner", ["", "fake none 0", "fake 7", "fake ../7 0", "fake 7 x", "fake 7 0 0"])
def test_a_claim_that_is_none_is_not_believed(tmp_path: Path, owner: str) -> None:
    _, record, _ = staged(tmp_path)
    claim(record, "7")
    (record.run_dir / "claims" / TOKEN / "owner").write_text(owner)
    assert records.claim_of(record) is None


@pytest.mark.parametrize(
    ("claimed", "recorded", "there", "expected"),
    [
        (None, "", ["5", "6"], "5"),
        (None, "6", ["5", "6", "7"], "6"),
        (None, "9", ["5", "6"], "5"),  # the recorded id was a banner's
        ("6", "5", ["5", "6"], "6"),
        ("6", "5", ["5"], None),  # 5 is a copy that left; 6 has left the queue
        ("6", "", [], None),
        (None, "", ["10", "9"], "9"),  # by number
    ],
)
def test_which_of_the_jobs_with_a_token_is_the_runs(
    tmp_path: Path, claimed: str | None, recorded: str, there: list[str], expected: str | None
) -> None:
    _, record, _ = staged(tmp_path, job_id=recorded)
    if claimed:
        claim(record, claimed)
    found = submission.own_job(record, [status(JobId(id), TOKEN) for id in there])
    assert (found.id.raw if found else None) == expected


# -- what a killed submitter leaves ----------------------------------------------------------------------------------

GONE = ("", 0, 0)


def ask(slurm: FakeSlurm, root: Path, now: float = NOW + 30) -> states.RunState:
    (state,) = states.read(Store(root, root / "state"), slurm, left(root), now=now)
    return state


def test_killed_before_sbatch_it_says_so_and_later_that_it_was_never_submitted(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    staged(tmp_path, submitter=(submission.submitter()[0], 1, 7))  # the pid is another process's by now
    soon, later = ask(slurm, tmp_path), ask(slurm, tmp_path, NOW + 61)
    assert "not known whether it was submitted" in soon.status.reason
    assert later.status.reason.startswith("never submitted") and "--recover" in later.status.reason
    assert left(tmp_path)[0].submission.state == records.NOT_SUBMITTED


def test_a_submitter_on_another_host_is_given_longer(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    staged(tmp_path, submitter=("elsewhere", 1, 7))
    assert "not known" in ask(slurm, tmp_path, NOW + 299).status.reason
    assert "never submitted" in ask(slurm, tmp_path, NOW + 301).status.reason


def test_nothing_is_concluded_from_silence(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time(), deaf=[(0, 1e9)])
    staged(tmp_path, submitter=GONE)
    assert "not known" in ask(slurm, tmp_path, NOW + 10_000).status.reason
    assert left(tmp_path)[0].submission.state == records.SUBMITTING


def test_a_living_submitter_is_left_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    staged(tmp_path)
    slurm.make(TOKEN)
    assert ask(slurm, tmp_path, NOW + 10_000).status.reason == "being submitted"
    assert left(tmp_path)[0].submission.state == records.SUBMITTING


@pytest.mark.parametrize("how", ["queue", "claim"])
@pytest.mark.parametrize("before", [records.SUBMITTING, records.NOT_SUBMITTED])
def test_a_job_that_turns_up_is_adopted_however_late(tmp_path: Path, how: str, before: str) -> None:
    slurm = FakeSlurm(Time())
    _, record, _ = staged(tmp_path, submitter=GONE, state=before)
    slurm.make("another-token22", state="RUNNING")
    if how == "queue":
        slurm.make(TOKEN)
    else:
        claim(record, "101")
    state = ask(slurm, tmp_path, NOW + 10_000)
    assert state.status.id == JobId("101")
    (read,) = left(tmp_path)
    assert (read.submission.state, str(read.job_id)) == (records.ACCEPTED, "101")


def test_killed_while_staging_leaves_nothing_that_looks_like_a_run(tmp_path: Path) -> None:
    _, record, _ = staged(tmp_path)
    whole = sorted(path for path in record.run_dir.rglob("*") if path.is_file())
    names = [path.name for path in whole]
    assert names == ["record.json", "script.sh", "spec.json", f"{TOKEN}.json"]
    for missing in (f"{TOKEN}.json", "record.json", "script.sh", "spec.json"):  # the order of writing, backwards
        next(path for path in whole if path.name == missing).unlink()
        assert left(tmp_path) == []


def test_a_torn_temporary_file_is_not_read(tmp_path: Path) -> None:
    _, record, _ = staged(tmp_path)
    (record.run_dir / "submissions" / f".{TOKEN}.json.4711").write_text('{"version": 1, "tok')
    assert len(left(tmp_path)) == 1


def test_reading_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    _, record, _ = staged(tmp_path, submitter=GONE)
    slurm.make(TOKEN)
    (record.run_dir / "submissions" / f".{TOKEN}.json.{submission.submitter()[1]}").mkdir()  # in the way of writing
    assert ask(slurm, tmp_path).record is not None


# -- ids that were given out twice -----------------------------------------------------------------------------------


def accepted(root: Path, token: str, job: str, **changes: object) -> RunRecord:
    return staged(root, token, state=records.ACCEPTED, job_id=job, submitter=GONE, **changes)[1]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "FAILED"])
def test_the_state_of_who_got_the_id_is_never_shown(tmp_path: Path, state: str) -> None:
    slurm = FakeSlurm(Time())
    slurm.make("another-token22", state=state, nodes="node1")
    slurm.past = Answer([
        status(JobId("100"), TOKEN, "PENDING"),  # accounting still believes that the lost one waits
        status(JobId("100"), "another-token22", "COMPLETED", ended=NOW),
    ])  # fmt: skip
    accepted(tmp_path, TOKEN, "100")
    found = ask(slurm, tmp_path)
    assert (found.status.state, found.status.outcome, found.status.nodes) == ("UNKNOWN", Outcome.LOST, "")
    assert left(tmp_path)[0].submission.final is None


@pytest.mark.parametrize("tokens", [("aaaaaaaa22222222", "zzzzzzzz22222222"), ("zzzzzzzz22222222", "aaaaaaaa22222222")])
def test_of_two_runs_with_one_id_the_later_is_the_newest_even_within_a_second(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    for token in tokens:
        store, record, _ = staged(tmp_path, token)
        store.commit(record, JobId("100"))
    assert [run.submission.token for run in store.by_job(JobId("100"))] == list(tokens)


def test_accounting_that_does_not_answer_is_no_proof_of_loss(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.past = Answer(complete=False, note="sacct: Connection refused")
    accepted(tmp_path, TOKEN, "100")
    found = ask(slurm, tmp_path)
    assert (found.status.outcome, found.note) == (Outcome.UNKNOWN, "sacct: Connection refused")


def test_a_copy_never_stands_for_the_run(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN, state="RUNNING"), slurm.make(TOKEN, state="FAILED", exit_status=75)
    record = accepted(tmp_path, TOKEN, "100")
    claim(record, "100")
    for _ in range(2):
        assert (ask(slurm, tmp_path).status.id.raw, ask(slurm, tmp_path).status.state) == ("100", "RUNNING")


def test_a_run_is_the_job_that_claimed_it_whichever_was_written_down(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN, state="FAILED", exit_status=75)
    record = accepted(tmp_path, TOKEN, "100")
    claim(record, "101")
    attempt = record.run_dir / "attempts" / f"{TOKEN}.0.0"
    attempt.mkdir()
    (attempt / "end.json").write_text(json.dumps({"status": 0, "job": "101", "restart": 0, "time": NOW}))
    found = ask(slurm, tmp_path)
    assert (found.status.id.raw, found.status.state) == ("101", "COMPLETED")
    assert str(left(tmp_path)[0].job_id) == "101"
