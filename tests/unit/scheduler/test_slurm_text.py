"""What we ask Slurm and how its answers are read, over text recorded from Slurm 22.05.8 (node names replaced)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.base.errors import Ambiguous, NotDelivered, Refused
from clusterrun.base.job import JobId, JobStatus, Outcome, carries
from clusterrun.scheduler.slurm import sacct as slurm_sacct
from clusterrun.scheduler.slurm import sbatch, scontrol, squeue
from clusterrun.scheduler.slurm import values as text
from clusterrun.scheduler.slurm.scontrol import parse_cluster_facts
from clusterrun.system import shell
from clusterrun.system.shell import Completed
from tests.support.folders import DATA

SLURM_TEXTS = DATA / "slurm"


def recorded(name: str) -> str:
    """A recorded answer as `shell.run` decodes it."""
    return shell._text((SLURM_TEXTS / name).read_bytes())


def by_name(jobs: list[JobStatus]) -> dict[str, JobStatus]:
    return {job.name.split(".")[0]: job for job in jobs}


# -- squeue --------------------------------------------------------------------------------------------------------


def test_squeue_of_a_live_cluster() -> None:
    jobs = squeue.parse_squeue(recorded("squeue-live.txt"))
    assert len(jobs) == 18
    named = by_name(jobs)
    train = named["train"]
    assert (train.id, train.state, train.outcome, train.reason) == (JobId("8"), "RUNNING", Outcome.RUNNING, "")
    assert (train.nodes, train.node_count, train.elapsed, train.time_limit) == ("lab-node[1-2]", 2, 2, 93840)
    assert (train.user, train.partition, train.source) == ("root", "gpu", "squeue")
    assert train.submitted == train.started == 1795236713
    assert train.ended is None, "squeue tells when it will end at the latest, which is no end"
    assert (named["done"].state, named["done"].outcome, named["done"].ended) == ("COMPLETED", Outcome.DONE, 1795236713)
    assert (named["fails"].state, named["fails"].reason) == ("FAILED", "NonZeroExitCode")
    assert named["segv"].outcome is Outcome.FAILED
    assert named["stopped"].outcome is named["never"].outcome is Outcome.CANCELLED
    waiting = {name: (job.state, job.reason) for name, job in named.items() if job.state == "PENDING"}
    assert waiting == {
        "after": ("PENDING", "Dependency"),
        "big": ("PENDING", "Resources"),
        "arr": ("PENDING", "JobHeldUser"),
        "held": ("PENDING", "JobHeldUser"),
    }
    assert named["after"].started is None and named["after"].nodes == ""
    assert named["big"].node_count == 4 and named["big"].started == 1795330553


def test_names_of_odd_bytes_keep_their_token() -> None:
    jobs = squeue.parse_squeue(recorded("squeue-live.txt"))
    odd = next(job for job in jobs if job.name.startswith("a,b"))
    assert odd.name == "a,b 'q\" |#%j \\ é 🙂\x1b[31m.eeeeeeee" and carries(odd, "eeeeeeeexxxxxxxx", Path("/x"))
    cut = next(job for job in jobs if job.name.startswith("bad"))
    assert cut.name == r"bad\xff\xfebytes.ffffffff" and carries(cut, "ffffffffxxxxxxxx", Path("/x"))
    assert next(job for job in jobs if job.id == JobId("7")).name == "two", "the rest of that name is no row"


def test_arrays() -> None:
    running = squeue.parse_squeue(recorded("squeue-array.txt"))
    assert [str(job.id) for job in running] == ["14_9", "14_6", "14_3", "14_0"]
    assert {job.id.base for job in running} == {"14"}
    waiting = by_name(squeue.parse_squeue(recorded("squeue-live.txt")))["arr"]
    assert waiting.id == JobId("13"), "tasks that wait share a row: 13_[0-49%4]"


def test_completing_is_not_over() -> None:
    train = by_name(squeue.parse_squeue(recorded("squeue-completing.txt")))["train"]
    assert (train.state, train.outcome, train.is_over, train.ended) == ("COMPLETING", Outcome.RUNNING, False, None)


@pytest.mark.parametrize("name", ["squeue-over.txt", "squeue-over-plain.txt"])
def test_a_time_limit(name: str) -> None:
    named = by_name(squeue.parse_squeue(recorded(name)))
    slow = named["slow"]
    assert (slow.state, slow.reason, slow.outcome) == ("TIMEOUT", "TimeLimit", Outcome.FAILED)
    assert slow.ended is not None and slow.started is not None and slow.elapsed == slow.ended - slow.started
    assert named["after"].reason == "DependencyNeverSatisfied"


def test_one_job_and_none() -> None:
    assert [str(job.id) for job in squeue.parse_squeue(recorded("squeue-one.txt"))] == ["8"]
    assert squeue.parse_squeue("") == [] == squeue.parse_squeue("\n\n")
    assert squeue.parse_squeue(recorded("squeue-unknown.txt")) == []


def row(**cells: str) -> str:
    """A row of squeue's answer, by the letters of its format."""
    usual = {"i": "5", "A": "5", "T": "RUNNING", "D": "1", "M": "0:01", "l": "1:00", "j": "x.aaaaaaaa"}
    return text.SEP.join((usual | cells).get(column[1], "") for column in squeue._JOB_FORMATS) + "\n"


@pytest.mark.parametrize(
    ("word", "state", "over"),
    [
        ("PROWLING", "PROWLING", False),
        ("CANCELLED by 1000", "CANCELLED", True),
        ("COMPLETED+", "COMPLETED", True),
        ("SUSPENDED", "SUSPENDED", False),
        ("REQUEUE_HOLD", "REQUEUE_HOLD", False),
        ("CONFIGURING", "CONFIGURING", False),
        ("STOPPED", "STOPPED", False),
        ("RESIZING", "RESIZING", False),
        ("NODE_FAIL", "NODE_FAIL", True),
        ("OUT_OF_ME+", "OUT_OF_ME", False),
        ("", "UNKNOWN", True),
    ],
)
def test_a_state_is_slurms_own_word_and_a_new_one_is_not_the_end(word: str, state: str, over: bool) -> None:
    (job,) = squeue.parse_squeue(row(T=word))
    assert (job.state, job.is_over) == (state, over)
    assert over or job.outcome is Outcome.RUNNING


@pytest.mark.parametrize(("reason", "status"), [
    ("RaisedSignal:53(Real-time signal 19)", 181), ("RaisedSignal:9(Killed)", 137), ("RaisedSignal:", None),
    ("NonZeroExitCode", None), ("None", None),
])  # fmt: skip
def test_the_reason_names_the_signal_that_ended_a_job(reason: str, status: int | None) -> None:
    (job,) = squeue.parse_squeue(row(T="FAILED", r=reason))
    assert job.exit_status == status


@pytest.mark.parametrize(
    ("id_text", "job"),
    [
        ("123", JobId("123")),
        ("123_4", JobId("123", task=4)),
        ("123_[0-49%4]", JobId("123")),
        ("123_[0,2,7-9:2]", JobId("123")),
        ("123_[...]", JobId("123")),
        ("123+1", JobId("123", part=1)),
        ("  123 ", JobId("123")),
    ],
)
def test_ids_of_arrays_and_components(id_text: str, job: JobId) -> None:
    assert [j.id for j in squeue.parse_squeue(row(i=id_text))] == [job]


@pytest.mark.parametrize("id_text", ["", "x", "12x", "-1", "١٢", "12.batch", "12_x", "9" * 5000, "1_" + "9" * 5000])
def test_a_row_without_an_id_is_left_out(id_text: str) -> None:
    assert squeue.parse_squeue(row(i=id_text) + row(i="9")) == squeue.parse_squeue(row(i="9"))


def test_every_beginning_of_an_answer_reads() -> None:
    whole = recorded("squeue-live.txt")
    known = {str(job.id) for job in squeue.parse_squeue(whole)}
    for end in range(0, len(whole), 7):
        assert {str(job.id) for job in squeue.parse_squeue(whole[:end])} <= known


def test_numbers_without_end() -> None:
    digits = "9" * 5000  # more than int() reads
    (job,) = squeue.parse_squeue(row(D=digits, M=f"{digits}:00", V=digits))
    assert (job.node_count, job.elapsed, job.submitted) == (None, None, None)
    assert slurm_sacct.exit_status(f"{digits}:0") is None


# -- sacct ---------------------------------------------------------------------------------------------------------


def test_sacct() -> None:
    jobs = slurm_sacct.parse_sacct(recorded("sacct.txt"))
    named = by_name(jobs)
    done, fails, segv, slow = (named[name] for name in ("done", "fails", "segv", "slow"))
    assert (done.state, done.exit_status, done.ended) == ("COMPLETED", 0, 1795236713)
    assert (fails.state, fails.exit_status, fails.outcome) == ("FAILED", 3, Outcome.FAILED)
    assert segv.exit_status == 139
    assert (slow.state, slow.elapsed, slow.time_limit, slow.partition) == ("TIMEOUT", 78, 60, "short")
    train = named["train"]
    assert (train.state, train.outcome) == ("CANCELLED", Outcome.CANCELLED), "sacct writes CANCELLED by 0"
    assert (train.nodes, train.node_count, train.time_limit) == ("lab-node[1-2]", 2, 93840)
    held = named["held"]
    assert (held.state, held.started, held.ended, held.nodes) == ("PENDING", None, None, "")
    assert all(job.source == "sacct" for job in jobs)
    assert [str(job.id) for job in jobs if job.name.startswith("arr2")] == ["14_0", "14_3", "14_6", "14_9"]


def test_accounting_changes_names_but_not_their_token() -> None:
    jobs = slurm_sacct.parse_sacct(recorded("sacct.txt"))
    odd = next(job for job in jobs if job.name.startswith("a,b"))
    assert odd.name == "a,b 'q` |#%j \\ é ?\x1b[31m.eeeeeeee", "quotes and emoji are lost in the database"
    assert carries(odd, "eeeeeeee", Path("/x"))


@pytest.mark.parametrize(
    ("code", "status"), [("0:0", 0), ("3:0", 3), ("0:15", 143), ("0:9", 137), ("1:9", 1), ("", None), ("x:y", None)]
)
def test_exit_codes(code: str, status: int | None) -> None:
    assert slurm_sacct.exit_status(code) == status


def test_stopped_is_told_by_its_status() -> None:
    cells = dict.fromkeys(slurm_sacct._SACCT, "") | {"JobID": "5", "State": "FAILED", "ExitCode": "85:0"}
    (job,) = slurm_sacct.parse_sacct(text.SEP.join(cells.values()))
    assert job.outcome is Outcome.STOPPED


# -- argv ----------------------------------------------------------------------------------------------------------


def test_argv() -> None:
    ids = [JobId("5"), JobId("7", part=1), JobId("5")]
    assert "--me" in squeue.squeue_argv(None) and not any(a.startswith("--jobs") for a in squeue.squeue_argv(None))
    assert "--jobs=5,7" in squeue.squeue_argv(ids) and "--me" not in squeue.squeue_argv(ids)
    assert "--states=all" in squeue.squeue_argv(None)
    assert "--clusters=b" in squeue.squeue_argv(None, "b") and "--clusters=b" in slurm_sacct.sacct_argv(ids, 0, "b")
    sacct = slurm_sacct.sacct_argv(ids, 86_400)
    assert {"--jobs=5,7", "--allusers", "--starttime=1970-01-02T00:00:00", "--duplicates"} <= set(sacct)
    assert not {"--allusers", "--jobs="} & set(slurm_sacct.sacct_argv((), 0))
    assert scontrol.scancel_argv([JobId("5", task=3)], "b") == ["scancel", "--clusters=b", "--", "5_3"]


# -- sbatch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "job", "alone"),
    [
        ("123\n", JobId("123"), True),
        ("123;lab\n", JobId("123", cluster="lab"), True),
        ("Welcome! job 7 credits left\n123\n", JobId("123"), False),
        ("\x1b[32m123\x1b[0m\n", JobId("123"), False),
        ("123\n123\n", JobId("123"), False),
        ("7\n123\n", None, False),
        ("Submitted batch job 123\n", None, False),
        ("Welcome! job 7 credits left", None, False),
        ("", None, False),
        ("x" * 1_000_000 + "\n123\n", JobId("123"), False),
        ("\x1b]0;99\x07\n123\n", JobId("123"), False),
        ("１２３\n", None, False),
    ],
)
def test_the_id_is_a_line_of_its_own(said: str, job: JobId | None, alone: bool) -> None:
    assert sbatch.sbatch_id(said) == (job, alone)


def test_a_refusal_keeps_slurms_words() -> None:
    said = recorded("sbatch-no-partition.txt")
    error = sbatch.sbatch_error(Completed(1, "", said))
    assert isinstance(error, Refused) and error.detail == said.strip() and "sinfo" in error.hint


@pytest.mark.parametrize(
    ("said", "kind", "wire"),
    [
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
         NotDelivered, None),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Ambiguous, True),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", Ambiguous, True),
        ("sbatch: error: Batch job submission failed: a reason nobody has heard of", Refused, None),
        ("sbatch: unrecognized option '--nope'", Refused, None),
        ("the wrapper has fallen over", Ambiguous, False),
        ("", Ambiguous, False),
    ],
)  # fmt: skip
def test_what_a_failed_sbatch_means(said: str, kind: type, wire: bool | None) -> None:
    error = sbatch.sbatch_error(Completed(1, "", said))
    assert type(error) is kind
    if isinstance(error, Ambiguous):
        assert error.cut_off is wire


def test_scancels_words() -> None:
    said = "scancel: error: Kill job error on job id 12: Invalid job id specified\nscancel: hm\n"
    assert scontrol.parse_scancel(said) == {"12": "Invalid job id specified"}
    assert scontrol.parse_scancel("scancel: error: Kill job error on job id 12_3: Access/permission denied") == {
        "12_3": "Access/permission denied"
    }


# -- small readings, and any text at all ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("0:01", 1), ("1:00", 60), ("2:00:00", 7200), ("1-02:03:04", 93784), ("UNLIMITED", None), ("INVALID", None),
     ("N/A", None), ("", None), ("Partition_Limit", None)],
)  # fmt: skip
def test_durations(said: str, seconds: int | None) -> None:
    assert text.parse_duration(said) == seconds


def test_the_configuration() -> None:
    facts = parse_cluster_facts(recorded("config-accounting.txt"))
    assert facts.cluster and facts.accounting and facts.gpus
    assert not parse_cluster_facts(recorded("config-plain.txt")).accounting
    assert parse_cluster_facts("").cluster == ""


pieces = st.sampled_from(
    [text.SEP, "\n", "RUNNING", "123", "123_4", "N/A", "1-0:0:0", "0:1", ".aaaaaaaa", "\r", "\x1b[0m"]
)
anything = st.one_of(st.text(), st.lists(st.one_of(pieces, st.text(max_size=4))).map("".join))


@settings(max_examples=3 * settings().max_examples)
@given(anything)
def test_no_answer_breaks_a_parser(said: str) -> None:
    for job in [*squeue.parse_squeue(said), *slurm_sacct.parse_sacct(said)]:
        assert job.id.raw.isdigit() and isinstance(job.outcome, Outcome)
    sbatch.sbatch_id(said)
    sbatch.sbatch_error(Completed(1, said, ""))
    scontrol.parse_scancel(said)
    text.parse_duration(said)
    slurm_sacct.exit_status(said)
    parse_cluster_facts(said)


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(anything, min_size=len(squeue._JOB_FORMATS) - 1, max_size=len(squeue._JOB_FORMATS) - 1))
def test_no_cells_break_a_parser(cells: list[str]) -> None:
    flat = [cell.replace(text.SEP, "").replace("\n", "") for cell in cells]
    (job,) = squeue.parse_squeue(text.SEP.join(["77", *flat]))
    assert job.id == JobId("77")
    slurm_sacct.parse_sacct(text.SEP.join(["77", *flat][: len(slurm_sacct._SACCT)]))


def test_fields_that_are_only_shown_are_kept_and_may_all_be_missing() -> None:
    formats = {field_format: key for key, field_format, _ in squeue.EXTRA_FIELDS}
    line = row(**{one[1:]: f"the {key}" for one, key in formats.items()})
    (job,) = squeue.parse_squeue(line)
    assert dict(job.extra) == {key: f"the {key}" for key in formats.values()}
    cells = zip(squeue._JOB_FORMATS, line.rstrip("\n").split(text.SEP), strict=True)
    (old,) = squeue.parse_squeue(text.SEP.join(cell for one, cell in cells if one not in formats))
    assert (old.script, old.name, old.extra) == (job.script, job.name, ())
