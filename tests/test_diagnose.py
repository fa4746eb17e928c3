"""Why a job ended, from records, logs and Slurm's answers together; bounded, and honest about what it did not see."""

# ruff: noqa: E501 (lines of logs stay in one piece)

from __future__ import annotations

import json
import os
import pickle
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun import diagnose
from clusterrun.diagnose.again import again
from clusterrun.diagnose.reading import rank_of_name, read_logs
from clusterrun.diagnose.records import still
from clusterrun.errors import RequestError
from clusterrun.job import JobId, JobStatus, outcome_of
from clusterrun.logs import ends
from clusterrun.progress import RankProgress
from clusterrun.scheduler import Scheduler
from clusterrun.scheduler.slurm import ClusterFacts, SlurmScheduler
from clusterrun.scheduler.slurm_ended import ended_argv, lost_nodes, parse_canceller
from clusterrun.shell import Completed
from clusterrun.states import RunState
from clusterrun.store import RunRecord, Store
from tests.recording import AT, attempt, end, submitted

RAISED = '1: Traceback (most recent call last):\n1:   File "/u/train.py", line 4, in f\n1: ValueError: no\n'


class Slurm:
    """A cluster whose commands answer what they are told to, and are counted."""

    def __init__(self, answers: Mapping[str, str] | None = None, accounting: bool = True) -> None:
        self.answers, self.asked = answers or {}, list[str]()
        self._slurm = SlurmScheduler(ClusterFacts("lab", accounting, True), {}, run=self._run)

    def scheduler(self, name: str) -> Scheduler:
        return self._slurm

    def _run(self, argv: Sequence[str], **how: Any) -> Completed:
        line = " ".join(argv)
        self.asked.append(line)
        found = next((text for words, text in self.answers.items() if words in line), None)
        return Completed(0, found, "") if found is not None else Completed(1, "", "no answer")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "logs").mkdir()
    return Store(tmp_path, tmp_path / "state")


def over(
    run: RunRecord | None, state: str = "FAILED", status: int | None = 1, job: str = "101", **more: Any
) -> RunState:
    return RunState(
        run, JobStatus(id=JobId.parse(job), state=state, outcome=outcome_of(state, status), exit_status=status, **more)
    )


def write_logs(run: RunRecord, err: str, out: str = "", job: str = "101") -> None:
    (run.logs / f"train_{job}.err").write_text(err)
    (run.logs / f"train_{job}.out").write_text(out)


def ranks_on(*nodes: str) -> dict[str, Any]:
    return {"ranks": [{"rank": rank, "task": rank, "node": node} for rank, node in enumerate(nodes)], "time": AT}


# -- records and logs ------------------------------------------------------------------------------------------------


def test_first_failure_is_told_with_node_place_line_and_a_command(store: Store) -> None:
    run = submitted(store)
    attempt(
        run,
        start=ranks_on("n1", "n2"),
        end=end(1),
        first_failure={"rank": 1, "node": "n2", "error": "ValueError: no", "file": "/u/train.py", "line": 4},
    )
    write_logs(run, "clusterrun: it starts\n" + RAISED)
    answer = diagnose.explain(Slurm(), over(run))
    told = answer.json()
    assert (told["kind"], told["rank"], told["node"], told["place"]) == ("exception", 1, "n2", "/u/train.py:4")
    assert told["evidence"] == [{"file": str(run.logs / "train_101.err"), "line": 4, "text": "ValueError: no"}]
    assert answer.lines()[0] == "first cause: ValueError: no (rank 1 on n2, /u/train.py:4)"
    assert told["command"] == "clusterrun logs 101 --rank 1 --stream err -n 50"


def test_short_form_names_the_rank_first_and_asks_nobody(store: Store) -> None:
    run = submitted(store)
    attempt(
        run,
        start=ranks_on("n1", "n2"),
        end=end(3),
        first_failure={"rank": 1, "node": "n2", "error": "exited with status 3"},
    )
    write_logs(run, "")
    assert diagnose.in_one_line(over(run, status=3)) == "rank 1 on n2 failed first: exited with status 3"
    assert diagnose.in_one_line(over(run, "COMPLETED", 0)) == ""


def test_only_the_newest_start_of_a_job_counts(store: Store) -> None:
    run = submitted(store)
    attempt(run, restart=0, first_failure={"rank": 1, "error": "ValueError: no"})
    attempt(run, restart=1, start=ranks_on("n1", "n2"), end=end(1, restart=1))
    begin = f"clusterrun: {run.run_id}: job 101, attempt {{}}.0: 8 ranks on n1 n2, rendezvous n1:20000\n"
    write_logs(run, begin.format(0) + RAISED + begin.format(1) + "ModuleNotFoundError: No module named 'wandb'\n")
    told = diagnose.explain(Slurm(), over(run, restarts=1)).json()
    assert (told["kind"], told["evidence"][0]["text"]) == (
        "import-error",
        "ModuleNotFoundError: No module named 'wandb'",
    )


def test_task_of_an_array_has_its_own_logs(store: Store) -> None:
    run = submitted(store)
    write_logs(run, "ModuleNotFoundError: No module named 'a'\n", job="101_3")
    write_logs(run, "ModuleNotFoundError: No module named 'b'\n", job="101_4")
    assert "module b" in diagnose.explain(Slurm(), over(run, job="101_4")).json()["cause"]


def test_logs_that_are_not_there_are_named(store: Store) -> None:
    run = submitted(store)
    answer = diagnose.explain(Slurm(), over(run, "TIMEOUT", 143))
    assert answer.cause.kind == "time-limit"
    assert [line for line in answer.lines() if line.startswith("note: not there: ")]


def test_log_that_is_a_link_is_not_read(store: Store, tmp_path: Path) -> None:
    run = submitted(store)
    (tmp_path / "secret").write_text(RAISED)
    (run.logs / "train_101.err").symlink_to(tmp_path / "secret")
    answer = diagnose.explain(Slurm(), over(run))
    assert answer.cause.kind == "unknown" and "symbolic link" in " ".join(answer.notes)


def test_rank_that_stood_still_is_found_by_its_progress_record(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n1", "n2", "n2"), end=end(1))
    for rank in range(4):
        record = {"rank": rank, "node": "n1", "time": AT + (300 if rank != 2 else 60), "interval": 5, "step": 9}
        (folder / f"rank-{rank}.progress").write_text(json.dumps(record))
    write_logs(
        run, "0: RuntimeError: [unbound_buffer.cc:81] Timed out waiting 600000ms for recv operation to complete\n"
    )
    told = diagnose.explain(Slurm(), over(run)).json()
    assert (told["kind"], told["rank"], told["node"]) == ("collective-timeout", 2, "n2")
    assert "240 s older" in told["cause"]


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
    told = diagnose.explain(Slurm(), over(run)).json()
    assert (told["rank"], told["node"]) == (1, "n2") and "flight recorder" in told["cause"]


def rank(number: int, time: float = 100.0, step: int | None = 5, interval: float | None = 5) -> RankProgress:
    return RankProgress(rank=number, node="n", time=time, step=step, interval=interval)


def test_ranks_that_are_together_stand_not_still() -> None:
    assert still([rank(0), rank(1), rank(2, time=95)]) == {}
    assert still([rank(0)]) == {}
    assert still([]) == {}


def test_rank_at_an_earlier_step_stands_behind() -> None:
    assert list(still([rank(0), rank(1, step=4), rank(2)])) == [1]


def test_half_of_all_ranks_silent_is_nobodys_fault_alone() -> None:
    assert still([rank(0), rank(1, time=0), rank(2, time=0)]) == {}


# -- Slurm -----------------------------------------------------------------------------------------------------------


def test_who_cancelled_is_asked_of_accounting(store: Store) -> None:
    run = submitted(store)
    me = os.getuid()
    slurm = Slurm({"sacct": f"101|CANCELLED by {me}\n"})
    told = diagnose.explain(slurm, over(run, "CANCELLED", 143)).json()
    assert told["cause"].endswith(f"by {pwd.getpwuid(me).pw_name} (you)")
    assert slurm.asked == [" ".join(ended_argv(JobId("101")))]


def test_own_cancel_needs_no_question(store: Store) -> None:
    run = submitted(store)
    asked = replace(run, submissions=(replace(run.submission, cancel_asked=AT),))
    slurm = Slurm()
    assert "`clusterrun cancel`" in diagnose.explain(slurm, over(asked, "CANCELLED", 143)).json()["cause"]
    assert slurm.asked == []


def test_without_accounting_the_canceller_is_not_guessed(store: Store) -> None:
    slurm = Slurm(accounting=False)
    told = diagnose.explain(slurm, over(submitted(store), "CANCELLED", 143)).json()
    assert told["cause"] == "the job was cancelled" and slurm.asked == []


def test_lost_node_is_asked_of_slurm(store: Store) -> None:
    run = submitted(store)
    attempt(run, start=ranks_on("n1", "n2"))
    slurm = Slurm(
        {"show node": "NodeName=n1 State=IDLE\n\nNodeName=n2 State=DOWN+NOT_RESPONDING Reason=Not responding\n"}
    )
    told = diagnose.explain(slurm, over(run, "NODE_FAIL", None)).json()
    assert (told["kind"], told["node"]) == ("node-failure", "n2") and "--exclude n2" in told["command"]


def test_node_that_is_down_now_is_told_but_not_blamed(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run, start=ranks_on("n1", "n2"))
    (folder / "rank-0.end").write_text(json.dumps({"rank": 0, "node": "n1", "status": 1}))
    write_logs(run, "0: ModuleNotFoundError: No module named 'x'\n")
    answer = diagnose.explain(Slurm({"show node": "NodeName=n1 State=IDLE\n\nNodeName=n2 State=DOWN*\n"}), over(run))
    assert answer.cause.kind == "import-error" and "n2 is down" in answer.notes[0]


def test_job_of_another_tool_is_explained_by_the_logs_that_slurm_names(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "slurm-7.out"
    log.write_text(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    )
    slurm = Slurm(
        {
            "show job 7": f"JobId=7 JobName=x\n   JobState=FAILED\n   Command=/u/job.sh\n   StdErr={log}\n   StdOut={log}\n"
        }
    )
    told = diagnose.explain(slurm, over(None, job="7")).json()
    assert (told["kind"], told["command"]) == ("host-memory", "sbatch --mem SIZE /u/job.sh")


def test_job_that_slurm_has_forgotten_says_what_can_still_be_done() -> None:
    answer = diagnose.explain(Slurm(), over(None, "TIMEOUT", None, job="7"))
    assert answer.cause.kind == "time-limit" and "--logs DIR" in answer.notes[0]


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


# -- folders of logs -------------------------------------------------------------------------------------------------


def test_folder_of_a_log_for_each_rank(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"rank{number}.err").write_text(
            "Connection closed by peer\n" if number != 1 else "KeyError: 1\nModuleNotFoundError: No module named 'x'\n"
        )
    told = diagnose.explain_logs(tmp_path).json()
    assert (told["kind"], told["rank"]) == ("import-error", 1)


def test_healthy_folder_shows_no_cause(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.3\ntimeout: 600\n")
    answer = diagnose.explain_logs(tmp_path)
    assert answer.cause.kind == "none" and "not known" in answer.lines()[0]


def test_folder_without_logs_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no log"):
        diagnose.explain_logs(tmp_path)
    with pytest.raises(RequestError, match="not a folder"):
        diagnose.explain_logs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "number"),
    [("rank3.err", 3), ("train_task-12.log", 12), ("run/4/stderr.log", 4), ("train_101.err", None), ("log.out", None)],
)
def test_rank_in_a_files_name(name: str, number: int | None) -> None:
    assert rank_of_name(Path("/logs") / name) == number


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_large_log_is_read_at_its_ends_and_where_trouble_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("HEAD", 4_000), ("TAIL", 8_000), ("AROUND", 4_000)):
        monkeypatch.setattr(ends, name, size)
    filler = "".join(f"0: step {n} loss 2.3\n" for n in range(2_000))
    path = tmp_path / "train_1.err"
    path.write_text(
        filler
        + RAISED
        + filler
        + "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\n"
    )
    read = read_logs([path], world_size=2)
    texts = [line.text for line in read.logs[0]]
    assert "ValueError: no" in texts and len(texts) < 2_000
    assert read.notes and "were not" in read.notes[0]
    assert read.logs[0][0].number == 1 and read.logs[0][-1].number is None


def test_line_numbers_are_the_files_own_though_srun_cut_a_line(tmp_path: Path) -> None:
    path = tmp_path / "train_1.err"
    path.write_text("0: " + "x" * 1024 + "\n0: rest\n" + "1: ValueError\n")
    lines = read_logs([path], world_size=2).logs[0]
    assert [(line.number, line.text[-4:]) for line in lines] == [(2, "rest"), (3, "rror")]


# -- the command to type ---------------------------------------------------------------------------------------------


def asked(store: Store, **sources: tuple[Any, str]) -> RunRecord:
    run = submitted(store, sources={name.replace("_", "-"): value for name, value in sources.items()})
    (run.run_dir / "spec.json").write_text(json.dumps({"work": {"kind": "script"}}))
    return run


def test_run_is_submitted_again_as_it_was_typed_with_what_changes(store: Store) -> None:
    run = asked(
        store,
        nodes=(2, "--nodes"),
        mem=("64G", "--mem"),
        partition=("gpu", "clusterrun.toml"),
        set=({"lr": "1"}, "--set"),
        requeue=(False, "--no-requeue"),
    )
    assert (
        again("clusterrun submit … --mem SIZE", run)
        == "clusterrun submit --nodes 2 --set lr=1 --no-requeue --mem 128G -- train.py --lr 1"
    )


@pytest.mark.parametrize(
    ("limit", "longer"),
    [("90", "3:00:00"), ("2:00:00", "4:00:00"), ("1-12", "72:00:00"), ("1:30", "0:03:00"), ("soon", "LONGER")],
)
def test_time_limit_is_doubled(store: Store, limit: str, longer: str) -> None:
    run = asked(store, time=(limit, "--time"))
    assert again("clusterrun submit … --time LONGER", run) == f"clusterrun submit --time {longer} -- train.py --lr 1"


def test_node_is_kept_off_besides_those_kept_off_before(store: Store) -> None:
    run = asked(store, exclude=("n1", "--exclude"), nodelist=("n2,n3", "--nodelist"))
    assert again("clusterrun submit … --exclude n2", run) == "clusterrun submit --exclude n1,n2 -- train.py --lr 1"


def test_option_is_taken_away(store: Store) -> None:
    run = asked(store, master_port=(29500, "--master-port"), nodes=(2, "--nodes"))
    assert again("clusterrun submit … (without --master-port)", run) == "clusterrun submit --nodes 2 -- train.py --lr 1"
