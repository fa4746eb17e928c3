"""Why a job ended, from records, logs and Slurm's answers together."""

# ruff: noqa: E501 (lines of logs stay in one piece)

from __future__ import annotations

import json
import os
import pickle
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.records.progress import RankProgress
from clusterrun.records.store import Store
from clusterrun.scheduler.slurm.nodes import parse_partitions
from clusterrun.scheduler.slurm.sacct import ended_argv, lost_nodes, parse_canceller
from clusterrun.why import ended
from clusterrun.why.causes import Cause, EndFacts, Line, first_cause
from clusterrun.why.ended.collect import stalled_ranks
from clusterrun.why.ended.resubmit import with_longer_limit
from tests.support.ended_runs import RAISED, Slurm, over, ranks_on, write_logs
from tests.support.rank_files import put_end, put_progress
from tests.support.run_records import AT, attempt, end, submitted

LIMIT = Cause(kind="time-limit", sentence="", command="clusterrun submit … --time LONGER")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "logs").mkdir()
    return Store(tmp_path, tmp_path / "state")


# -- records and logs --------------------------------------------------------------------------------------------------


def test_first_failure_is_told_with_node_place_line_and_a_command(store: Store) -> None:
    run = submitted(store)
    attempt(
        run,
        start=ranks_on("n1", "n2"),
        end=end(1),
        first_failure={"rank": 1, "node": "n2", "error": "ValueError: no", "file": "/u/train.py", "line": 4},
    )
    write_logs(run, "clusterrun: it starts\n" + RAISED)
    answer = ended.explain(Slurm(), over(run))
    told = answer.json()
    assert (told["kind"], told["rank"], told["node"], told["place"]) == ("exception", 1, "n2", "/u/train.py:4")
    assert told["evidence"] == [{"file": str(run.logs / "train_101.err"), "line": 4, "text": "ValueError: no"}]
    assert answer.headline() == "ValueError: no (rank 1 on n2, /u/train.py:4)"
    assert told["command"] == "clusterrun logs 101 --rank 1 --stream err -n 50"


def test_a_file_that_is_missing_is_looked_for_on_the_node_of_its_rank(store: Store) -> None:
    run = submitted(store, sources={"partition": ("gpu", "--partition")})
    attempt(run, start=ranks_on("n1", "n2"), end=end(1), first_failure={"rank": 1, "node": "n2"})
    write_logs(run, "1: FileNotFoundError: [Errno 2] No such file or directory: 'data/shard3.pt'\n")
    assert ended.explain(Slurm(), over(run)).command == "srun -w n2 -N1 ls -ld data/shard3.pt"
    in_partition = ended.explain(Slurm(), over(run, partition="gpu")).command
    assert in_partition == "srun -w n2 -N1 -p gpu ls -ld data/shard3.pt"


def test_short_form_names_the_rank_first_and_asks_nobody(store: Store) -> None:
    run = submitted(store)
    attempt(
        run,
        start=ranks_on("n1", "n2"),
        end=end(3),
        first_failure={"rank": 1, "node": "n2", "error": "exited with status 3"},
    )
    write_logs(run, "")
    assert ended.in_one_line(over(run, status=3)) == "rank 1 on n2 failed first: exited with status 3"
    assert ended.in_one_line(over(run, "COMPLETED", 0)) == ""


def test_only_the_newest_start_of_a_job_counts(store: Store) -> None:
    run = submitted(store)
    attempt(run, restart=0, first_failure={"rank": 1, "error": "ValueError: no"})
    attempt(run, restart=1, start=ranks_on("n1", "n2"), end=end(1, restart=1))
    begin = f"clusterrun: {run.run_id}: job 101, attempt {{}}.0: 8 ranks on n1 n2, rendezvous n1:20000\n"
    write_logs(run, begin.format(0) + RAISED + begin.format(1) + "ModuleNotFoundError: No module named 'wandb'\n")
    told = ended.explain(Slurm(), over(run, restarts=1)).json()
    assert (told["kind"], told["evidence"][0]["text"]) == (
        "import-error",
        "ModuleNotFoundError: No module named 'wandb'",
    )


def test_task_of_an_array_has_its_own_logs(store: Store) -> None:
    run = submitted(store)
    write_logs(run, "ModuleNotFoundError: No module named 'a'\n", job="101_3")
    write_logs(run, "ModuleNotFoundError: No module named 'b'\n", job="101_4")
    assert "module b" in ended.explain(Slurm(), over(run, job="101_4")).json()["cause"]


def test_logs_that_are_not_there_are_named(store: Store) -> None:
    run = submitted(store)
    answer = ended.explain(Slurm(), over(run, "TIMEOUT", 143))
    assert answer.kind == "time-limit"
    assert [note for note in answer.notes if note.startswith("not found: ")]


def test_log_that_is_a_link_is_not_read(store: Store, tmp_path: Path) -> None:
    run = submitted(store)
    (tmp_path / "secret").write_text(RAISED)
    (run.logs / "train_101.err").symlink_to(tmp_path / "secret")
    answer = ended.explain(Slurm(), over(run))
    assert answer.kind == "unknown" and "symbolic link" in " ".join(answer.notes)


def test_rank_that_stood_still_is_found_by_its_progress_record(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n1", "n2", "n2"), end=end(1))
    for rank in range(4):
        record = {"rank": rank, "node": "n1", "time": AT + (300 if rank != 2 else 60), "interval": 5, "step": 9}
        put_progress(folder, rank, record)
    write_logs(
        run, "0: RuntimeError: [unbound_buffer.cc:81] Timed out waiting 600000ms for recv operation to complete\n"
    )
    told = ended.explain(Slurm(), over(run)).json()
    assert (told["kind"], told["rank"], told["node"]) == ("collective-timeout", 2, "n2")
    assert "240 s before the other ranks" in told["cause"]


def test_rank_that_stood_still_is_found_by_its_flight_recorder(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n2", "n3"), end=end(1))
    for rank in range(3):
        status = {"0": {"last_enqueued_collective": 7 if rank == 1 else 8}}
        (folder / f"flight_recorder_{rank}").write_bytes(pickle.dumps({"pg_status": status, "entries": []}, 2))
    write_logs(
        run,
        "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=600000)\n",
    )
    told = ended.explain(Slurm(), over(run)).json()
    assert (told["rank"], told["node"]) == (1, "n2") and "flight recorder" in told["cause"]


def rank(number: int, time: float = 100.0, step: int | None = 5, interval: float | None = 5) -> RankProgress:
    return RankProgress(rank=number, node="n", time=time, step=step, interval=interval)


def test_ranks_that_are_together_stand_not_still() -> None:
    assert stalled_ranks([rank(0), rank(1), rank(2, time=95)]) == {}
    assert stalled_ranks([rank(0)]) == {}
    assert stalled_ranks([]) == {}


def test_rank_at_an_earlier_step_stands_behind() -> None:
    assert list(stalled_ranks([rank(0), rank(1, step=4), rank(2)])) == [1]


def test_half_of_all_ranks_silent_is_nobodys_fault_alone() -> None:
    assert stalled_ranks([rank(0), rank(1, time=0), rank(2, time=0)]) == {}


def test_an_error_of_the_supervisor_is_the_cause_as_it_was_printed(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, end=end(1))
    error = "could not start the rendezvous server on n1: n1 (203.0.113.7) is not an address of this host (n1)"
    (folder / "launch.json").write_text(json.dumps({"began": 1.0, "cause": error, "kind": "worker"}))
    write_logs(run, f"rendezvous: n1 (203.0.113.7) is not an address of this host (n1)\nclusterrun: {error}\n")
    cause = ended.explain(Slurm(), over(run))
    assert (cause.kind, cause.sentence) == ("worker", error) and [one.number for one in cause.evidence] == [2]
    write_logs(run, "")
    assert ended.explain(Slurm(), over(run)).sentence == error, "the record suffices"


def test_an_error_that_a_rank_recorded_is_the_cause_without_its_line_in_the_log(store: Store) -> None:
    run = submitted(store)
    error = "cannot reach the run's store at n1:12345 within 20 s: Name or service not known"
    attempt(
        run,
        start=ranks_on("n1", "n2"),
        end=end(1),
        first_failure={"rank": 5, "node": "n2", "error": error, "kind": "network"},
    )
    write_logs(run, "")
    cause = ended.explain(Slurm(), over(run))
    assert (cause.rank, cause.sentence) == (5, error)


# -- Slurm -------------------------------------------------------------------------------------------------------------


def test_who_cancelled_is_asked_of_accounting(store: Store) -> None:
    run = submitted(store)
    me = os.getuid()
    slurm = Slurm({"sacct": f"101|CANCELLED by {me}\n"})
    told = ended.explain(slurm, over(run, "CANCELLED", 143)).json()
    assert told["cause"].endswith(f"by {pwd.getpwuid(me).pw_name} (you)")
    assert slurm.asked == [" ".join(ended_argv(JobId("101")))]


def test_own_cancel_needs_no_question(store: Store) -> None:
    run = submitted(store)
    asked = replace(run, submissions=(replace(run.submission, cancel_asked=AT),))
    slurm = Slurm()
    assert "`clusterrun cancel`" in ended.explain(slurm, over(asked, "CANCELLED", 143)).json()["cause"]
    assert slurm.asked == []


def test_without_accounting_the_canceller_is_not_guessed(store: Store) -> None:
    slurm = Slurm(accounting=False)
    told = ended.explain(slurm, over(submitted(store), "CANCELLED", 143)).json()
    assert told["cause"] == "the job was cancelled" and slurm.asked == []


def test_lost_node_is_asked_of_slurm(store: Store) -> None:
    run = submitted(store)
    attempt(run, start=ranks_on("n1", "n2"))
    slurm = Slurm(
        {"show node": "NodeName=n1 State=IDLE\n\nNodeName=n2 State=DOWN+NOT_RESPONDING Reason=Not responding\n"}
    )
    told = ended.explain(slurm, over(run, "NODE_FAIL", None)).json()
    assert (told["kind"], told["node"]) == ("node-failure", "n2") and "--exclude n2" in told["command"]


def test_node_that_is_down_now_is_told_but_not_blamed(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n2"))
    put_end(folder, 0, {"rank": 0, "node": "n1", "status": 1})
    write_logs(run, "0: ModuleNotFoundError: No module named 'x'\n")
    answer = ended.explain(Slurm({"show node": "NodeName=n1 State=IDLE\n\nNodeName=n2 State=DOWN*\n"}), over(run))
    assert answer.kind == "import-error" and answer.notes[0].endswith("now down or not responding: n2")


def test_job_of_another_tool_is_explained_by_the_logs_that_slurm_names(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "slurm-7.out"
    log.write_text(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    )
    slurm = Slurm({"show job 7": shown_job("1:0", log)})
    told = ended.explain(slurm, over(None, job="7")).json()
    assert (told["kind"], told["command"]) == ("host-memory", None), "how much is for the reader to say"
    assert told["advice"].endswith(": `sbatch --mem SIZE /u/job.sh`")


def test_job_that_slurm_has_forgotten_says_what_can_still_be_done() -> None:
    slurm = Slurm(refusals={"show job": "slurm_load_jobs error: Invalid job id specified"})
    answer = ended.explain(slurm, over(None, "TIMEOUT", None, job="7"))
    assert answer.kind == "time-limit" and "--logs DIR" in answer.notes[0]
    assert "Slurm no longer has a record of the job" in answer.notes[0]


def test_slurm_that_is_silent_is_not_said_to_have_forgotten() -> None:
    slurm = Slurm(refusals={"show job": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"})
    note = ended.explain(slurm, over(None, "TIMEOUT", None, job="7")).notes[0]
    assert "Unable to contact slurm controller" in note and "forgotten" not in note


def shown_job(code: str, out: Path, state: str = "FAILED") -> str:
    return (
        "JobId=7 JobName=x\n   UserId=ann(1001) GroupId=ann(1001) MCS_label=N/A\n"
        f"   JobState={state} ExitCode={code}\n   Command=/u/job.sh\n   StdErr={out}\n   StdOut={out}\n"
    )


def test_exit_status_is_taken_from_what_slurm_still_shows(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text("")
    slurm = Slurm({"show job 7": shown_job("3:0", tmp_path / "a.out")})
    answer = ended.explain(slurm, over(None, status=None, job="7"))
    assert answer.sentence.startswith("no line in the log explains exit status 3;") and len(slurm.asked) == 1


def test_exit_status_of_another_state_is_not_believed(tmp_path: Path) -> None:
    slurm = Slurm({"show job 7": shown_job("3:0", tmp_path / "a.out", "RUNNING")})
    assert "exit status unknown" in ended.explain(slurm, over(None, status=None, job="7")).sentence


def test_log_that_could_not_be_opened_is_known_at_once(tmp_path: Path) -> None:
    slurm = Slurm({"show job 7": shown_job("0:53", tmp_path / "no such" / "a.out")})
    told = ended.explain(slurm, over(None, status=None, job="7", reason="JobLaunchFailure"))
    assert told.kind == "log-unopened" and told.command.startswith(f"ls -ld '{tmp_path / 'no such'}'; ")


def test_folder_of_logs_that_is_not_known_is_not_made_up() -> None:
    assert ended.explain(Slurm(), over(None, status=181, job="7")).command == "quota -s"


PARTITIONS = """PartitionName=short
   AllowGroups=ALL Default=NO MaxTime=00:01:00 State=UP

PartitionName=closed
   AllowGroups=ALL Default=NO MaxTime=UNLIMITED State=DOWN

PartitionName=gpu
   AllowGroups=ALL Default=YES MaxTime=02:00:00 State=UP
"""


def timed_out(store: Store, minutes: int, partition: str, text: str = PARTITIONS) -> Cause:
    run = submitted(store, sources={"time": (str(minutes), "--time"), "partition": (partition, "--partition")})
    state = over(run, "TIMEOUT", None, partition=partition, time_limit=minutes * 60)
    return ended.explain(Slurm({"show partition": text}), state)


def test_longer_time_that_the_partition_does_not_allow_is_asked_of_another() -> None:
    job = JobStatus(id=JobId("7"), state="TIMEOUT", outcome=Outcome.FAILED, partition="short", time_limit=60)
    cause = with_longer_limit(LIMIT, job, parse_partitions(PARTITIONS), None)
    assert cause.command == "clusterrun submit … --time 0:02:00 --partition gpu"
    assert "short allows at most 0:01:00" in cause.advice and "gpu allows 2:00:00" in cause.advice


def test_command_after_a_time_limit_can_start(store: Store) -> None:
    assert "--time 0:02:00 --partition gpu" in timed_out(store, 1, "short").command
    assert "--partition gpu --time 2:00:00" in timed_out(store, 60, "gpu").command


def test_partition_and_limit_are_those_asked_for_where_slurm_was_not_asked_again(store: Store) -> None:
    run = submitted(store, sources={"time": ("1", "--time"), "partition": ("short", "clusterrun.toml")})
    told = ended.explain(Slurm({"show partition": PARTITIONS}), over(run, "TIMEOUT", 143))
    assert "--time 0:02:00 --partition gpu" in told.command


def test_most_that_the_partition_allows_is_asked_where_no_other_allows_more(store: Store) -> None:
    told = timed_out(store, 90, "gpu")
    assert "--time 2:00:00" in told.command and "gpu allows at most 2:00:00" in told.advice


def test_time_limit_that_nothing_exceeds_is_told_in_words(store: Store) -> None:
    told = timed_out(store, 120, "gpu")
    assert told.command == "" and "no other" in told.advice


def test_partitions_that_are_not_told_change_nothing(store: Store) -> None:
    assert "--partition short --time 0:02:00" in timed_out(store, 1, "short", "").command


def test_folder_of_logs_gets_no_command_that_cannot_be_typed(tmp_path: Path) -> None:
    (tmp_path / "a b.err").write_text(
        'Traceback (most recent call last):\n  File "/u/t.py", line 4, in f\nValueError: no\n'
    )
    told = ended.explain_logs(tmp_path)
    assert told.kind == "exception" and told.command == f"less +3 '{tmp_path / 'a b.err'}'"


@pytest.mark.parametrize(
    ("text", "user"),
    [("7|CANCELLED by 0\n", 0), ("7|CANCELLED\n", None), ("", None), ("x|CANCELLED by 99999999999\n", None)],
)
def test_canceller_is_read(text: str, user: int | None) -> None:
    assert parse_canceller(text) == user


def test_nodes_that_answer_are_not_lost() -> None:
    shown = [
        {"NodeName": "a", "State": "IDLE"},
        {"NodeName": "b", "State": "IDLE*"},
        {"NodeName": "c", "State": "MIXED+DRAIN"},
        {"NodeName": "d", "State": "DOWN"},
        {},
    ]
    assert lost_nodes(shown) == ["b", "d"]


@pytest.mark.parametrize(("lines", "kind"), [
    (["Error running slurm prolog: 1"], "launch-failed"),
    (["Error running slurm prolog: 1", "rank 0 of 2"], "cancelled"),  # it ran after a requeue
])  # fmt: skip
def test_a_job_that_slurm_cancelled_for_its_prolog_was_cancelled_by_nobody(lines: list[str], kind: str) -> None:
    log = [Line("train_1.err", number, None, text) for number, text in enumerate(lines, 1)]
    cause = first_cause([log], EndFacts(state="CANCELLED", cancelled_by="root (you)"))
    assert cause.kind == kind and ("prolog failed" in cause.sentence) == (kind == "launch-failed")
