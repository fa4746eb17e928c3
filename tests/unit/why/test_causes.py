"""The tables of causes: real log excerpts with their cause, healthy logs without one, and the order between ranks."""

# ruff: noqa: E501 (lines of logs stay in one piece)

from __future__ import annotations

import os
import pickle
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.why.causes import Cause, EndFacts, Failure, Line, RankEnd, first_cause
from clusterrun.why.causes.flight_recorder import ranks_behind, read_dump
from clusterrun.why.causes.match import TABLE, classify, fill_template, parse_ranges
from clusterrun.why.causes.model import Strength
from tests.support.cause_fixtures import Fixture, load_all
from tests.support.folders import ROOT

FIXTURES = load_all()
CONSEQUENCES = """
[rank97]: Traceback (most recent call last):
[rank97]:   File "/home/u/train.py", line 9, in <module>
[rank97]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error
[rank98]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:40112
torch.distributed.elastic.multiprocessing.api.SignalException: Process 31 got signal: 15
srun: error: n9: tasks 97-98: Terminated
slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T10:00:00 ***
"""


def lines(text: str, file: str = "train_1.err") -> list[Line]:
    """A log's lines; a label ``3: `` becomes the rank."""
    found = []
    for number, line in enumerate(text.strip("\n").split("\n"), 1):
        label = re.match(r" *(\d+): ", line)
        found.append(Line(file, number, int(label[1]) if label else None, line[label.end() :] if label else line))
    return found


def judge(text: str, **facts: object) -> Cause:
    return first_cause([lines(text)], EndFacts(**{"state": "FAILED", "exit_status": 1} | facts))  # type: ignore[arg-type]


# -- fixtures --------------------------------------------------------------------------------------------------------


def test_each_excerpt_has_its_cause() -> None:
    assert [complaint for one in FIXTURES if (complaint := one.complaint())] == []


def test_there_are_enough_excerpts_of_each_sort() -> None:
    assert len(FIXTURES) >= 240
    assert sum(one.head["expect"] == "none" or one.name.startswith("trap-") for one in FIXTURES) >= 30
    assert all(one.head["source"] for one in FIXTURES)


def test_document_states_how_many_excerpts_there_are() -> None:
    healthy = sum(one.head["expect"] == "none" for one in FIXTURES)
    document = " ".join((ROOT / "docs" / "why.md").read_text().split())
    assert f"{len(FIXTURES)} excerpts of logs" in document and f"{healthy} of them healthy" in document


def test_healthy_log_before_the_cause_changes_nothing() -> None:
    healthy = next(one for one in FIXTURES if one.name == "trap-healthy-words")
    for one in FIXTURES:
        if one.head["expect"] in ("none", "unknown") or "err" not in one.streams:
            continue
        longer = Fixture(one.name, one.head, one.streams | {"err": healthy.streams["err"] + one.streams["err"]})
        assert longer.complaint() == ""


def test_what_other_ranks_say_after_the_cause_changes_nothing() -> None:
    for one in FIXTURES:
        if one.head["expect"] in ("none", "unknown", "reported-error", "peer-lost") or "err" not in one.streams:
            continue
        if one.head.get("state") == "COMPLETED":  # only its last lines count
            continue
        longer = Fixture(one.name, one.head, one.streams | {"err": one.streams["err"].rstrip("\n") + CONSEQUENCES})
        assert longer.complaint() == ""


def test_healthy_excerpts_one_after_the_other_are_healthy() -> None:
    healthy = [one for one in FIXTURES if one.head["expect"] == "none" and "state" not in one.head]
    together = {stream: "".join(one.streams.get(stream, "") for one in healthy) for stream in ("err", "out")}
    assert len(healthy) >= 20
    assert Fixture("together", {"expect": "none"}, together).complaint() == ""


# -- the table -------------------------------------------------------------------------------------------------------


def test_every_row_says_where_it_was_seen_and_what_to_do() -> None:
    for row in TABLE:
        assert row.source, row
        if row.strength is not Strength.ECHO and row.kind != "worker":
            assert row.advice and row.command, row


def test_brackets_in_a_rows_texts_hold_a_word_to_fill_in() -> None:
    for row in TABLE:  # without one they would be dropped from what is printed
        for text in (row.sentence, row.advice, row.command):
            assert all("{" in part for part in re.findall(r"\[([^\]]*)\]", text)), text


def test_every_row_that_an_excerpt_shows_has_a_needle_in_the_lines_it_matches() -> None:
    texts = [line.text for one in FIXTURES for stream in one.streams for line in one.lines(stream)]
    for row in TABLE:
        for text in texts:
            if row.pattern.search(text):
                assert any(needle in text.lower() for needle in row.needles), (row.kind, row.pattern.pattern, text)


def test_part_in_brackets_goes_with_its_word() -> None:
    assert fill_template("full[: {what}]", {"what": "/scratch"}) == "full: /scratch"
    assert fill_template("full[: {what}]", {}) == "full"


# -- order -----------------------------------------------------------------------------------------------------------

CLOSED = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:40112"
RAISED = '1: Traceback (most recent call last):\n1:   File "/home/u/train.py", line 4, in <module>\n1: ValueError: no'


def test_first_exception_wins_over_a_later_one_of_another_rank() -> None:
    cause = judge(
        RAISED + '\n0: Traceback (most recent call last):\n0:   File "/home/u/train.py", line 9, in f\n0: KeyError: 1'
    )
    assert (cause.rank, cause.sentence, cause.place) == (1, "ValueError: no", "/home/u/train.py:4")


def test_rank_that_says_it_failed_first_wins_over_position() -> None:
    late = '0: Traceback (most recent call last):\n0:   File "/home/u/train.py", line 9, in f\n0: KeyError: 1'
    told = Failure(rank=1, error="ValueError: no", place="/home/u/train.py:4")
    cause = judge(f"{late}\n{RAISED}", failure=told)
    assert (cause.rank, cause.sentence) == (1, "ValueError: no")


def test_rank_that_only_lost_its_peer_is_not_the_cause_though_it_says_it_failed_first() -> None:
    told = Failure(rank=0, error=CLOSED)
    cause = judge(f"0: {CLOSED}\nsrun: error: node2: task 3: Killed", failure=told)
    assert (cause.kind, cause.rank, cause.node) == ("killed", 3, "node2")


def test_worker_that_lost_its_peer_says_so_and_is_not_the_cause() -> None:
    error = "lost the connection to another rank, which ended without a word: killed, or short of memory?"
    line, failure = f"clusterrun: rank 0: {error}", Failure(rank=0, error=error, kind="peer-lost")
    assert judge(line, failure=failure).kind == "peer-lost"
    assert judge(f"{line}\nsrun: error: n2: task 1: Killed", failure=failure).kind == "killed"


def test_line_of_clusterrun_ends_the_log_of_a_job_without_records() -> None:
    cause = judge("clusterrun: rank 2: checkpoint x is not valid: sizes differ")
    assert (cause.kind, cause.rank, cause.sentence) == ("worker", 2, "checkpoint x is not valid: sizes differ")


def test_rank_that_ended_without_a_word_is_named_by_what_it_did_not_write() -> None:
    ends = tuple(RankEnd(rank=rank, status=143) for rank in (0, 1, 3))
    cause = judge(f"0: {CLOSED}", world_size=4, ends=ends, nodes={2: "node7"}, failure=Failure(rank=0, error=CLOSED))
    assert (cause.kind, cause.rank, cause.node) == ("rank-lost", 2, "node7")


def test_kill_for_memory_is_memory() -> None:
    cause = judge(
        "srun: error: node2: task 3: Killed\nslurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step"
        " tasks have been OOM Killed."
    )
    assert (cause.kind, cause.rank, cause.node) == ("host-memory", 3, "node2")


def test_file_is_named_where_a_rank_wrote_nothing_but_its_own_record() -> None:
    cause = judge(
        "", failure=Failure(rank=2, node="n1", error="KeyError: 'x'", place="/u/t.py:3", file="first_failure.json")
    )
    assert (cause.kind, cause.rank, cause.place, cause.evidence[0].file) == (
        "exception",
        2,
        "/u/t.py:3",
        "first_failure.json",
    )


def test_hang_names_the_rank_whose_watchdog_had_not_enqueued_the_collective() -> None:
    text = "\n".join(
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout:"
        f" WorkNCCL(SeqNum={8 if rank != 2 else 7}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600001 milliseconds\n"
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or"
        f" timeout) detected by watchdog at work: 8, last enqueued NCCL work: {9 if rank != 2 else 7}, last completed NCCL work: 6."
        for rank in range(4)
    )
    cause = judge(text, world_size=4)
    assert (cause.kind, cause.rank) == ("collective-timeout", 2)


def test_hang_whose_rank_cannot_be_seen_says_so() -> None:
    cause = judge("RuntimeError: [unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete")
    assert cause.rank is None and "do not show which rank" in cause.sentence and "5 s" in cause.sentence


def test_hang_names_the_rank_known_to_have_stood_still() -> None:
    text = "0: RuntimeError: [unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"
    cause = judge(text, behind={5: "rank 5 sent its last heartbeat 40 s before the other ranks"}, nodes={5: "gpu4"})
    assert (cause.rank, cause.node) == (5, "gpu4") and "40 s before" in cause.sentence


def test_hang_that_ended_in_the_time_limit_is_told_with_it() -> None:
    limit = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***"
    cause = judge(
        limit, state="TIMEOUT", exit_status=143, behind={1: "rank 1 reached only step 3; the others reached step 4"}
    )
    assert cause.kind == "time-limit" and "rank 1" in cause.sentence


@pytest.mark.parametrize(("state", "kind"), [("TIMEOUT", "time-limit"), ("CANCELLED", "cancelled"), ("NODE_FAIL", "node-failure"),
                                             ("PREEMPTED", "preemption"), ("OUT_OF_MEMORY", "host-memory"), ("DEADLINE", "deadline"),
                                             ("LAUNCH_FAILED", "launch-failed")])  # fmt: skip
def test_state_alone_is_enough_where_there_is_no_log(state: str, kind: str) -> None:
    cause = first_cause([], EndFacts(state=state))
    assert cause.kind == kind and cause.sentence and cause.evidence == ()
    about = {"host-memory": "request more memory", "deadline": "--deadline", "launch-failed": "Slurm's reason"}
    assert about.get(kind, "") in cause.advice and "[" not in cause.command


def test_who_cancelled_is_named() -> None:
    assert "by ada" in first_cause([], EndFacts(state="CANCELLED", cancelled_by="ada")).sentence


def test_lost_node_is_named_and_kept_off() -> None:
    cause = first_cause([], EndFacts(state="NODE_FAIL", lost_nodes=("gpu7",)))
    assert cause.node == "gpu7" and "--exclude gpu7" in cause.command


def test_saved_and_left_is_not_a_failure() -> None:
    line = "stopped at step 120 by the time limit: saved in checkpoints"
    values = {"step": "120", "reason": "the time limit", "saved": "saved in checkpoints", "line": line}
    cause = judge(f"0: {line}", exit_status=85, stop=Failure(error=line, kind="stopped", values=values))
    assert cause.sentence == "the run stopped at step 120 because of the time limit (saved in checkpoints)"
    assert (cause.kind, [one.number for one in cause.evidence]) == ("stopped", [1])


def test_unknown_end_shows_the_last_lines_of_the_rank_that_ended_first() -> None:
    cause = judge(
        "0: fine\n3: about to leave\n0: still fine\nsrun: error: n1: task 3: Exited with exit code 7", exit_status=7
    )
    assert cause.kind == "unknown" and cause.rank == 3 and "exit status 7" in cause.sentence
    assert [one.text for one in cause.evidence] == ["about to leave"]


def test_completed_job_whose_process_was_killed_for_memory_says_so() -> None:
    cause = judge("slurmstepd: error: Detected 1 oom_kill event in StepId=5.batch.", state="COMPLETED", exit_status=0)
    assert cause.kind == "none" and "memory ran out" in cause.sentence and cause.evidence


def test_ranks_of_a_lost_node_are_named_together() -> None:
    ends = tuple(RankEnd(rank=rank, status=143) for rank in range(4))
    nodes = {rank: f"n{rank // 2}" for rank in range(6)}
    cause = judge(f"0: {CLOSED}", world_size=6, ends=ends, nodes=nodes)
    assert (cause.kind, cause.rank) == ("rank-lost", 4) and "rank 4 on n2, rank 5 on n2" in cause.sentence


def test_crash_is_placed_where_the_script_called_into_it() -> None:
    stack = '0: Current thread 0x1 (most recent call first):\n0:   File "/e/lib/python3.11/ctypes/__init__.py", line 9 in string_at\n0:   File "/u/train.py", line 7 in f'
    cause = judge(
        f"0: Fatal Python error: Segmentation fault\n0: \n{stack}\nsrun: error: n1: task 0: Segmentation fault"
    )
    assert (cause.kind, cause.rank, cause.place) == ("crashed", 0, "/u/train.py:7")


def test_hang_tells_where_the_others_waited() -> None:
    text = '0: Traceback (most recent call last):\n0:   File "/u/train.py", line 9, in f\n0: RuntimeError: [unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete'
    cause = judge(text, world_size=2)
    assert (cause.rank, cause.place) == (1, "") and "a waiting rank was at /u/train.py:9" in cause.sentence


# -- flight recorder -------------------------------------------------------------------------------------------------


def dump(enqueued: int) -> bytes:
    entry = {"profiling_name": "nccl:all_reduce", "frames": [{"name": "f", "filename": "/u/train.py", "line": 7}]}
    return pickle.dumps(
        {"version": "2.10", "pg_status": {"0": {"last_enqueued_collective": enqueued}}, "entries": [entry]}, 2
    )


def test_flight_recorder_names_the_rank_that_stopped_earlier() -> None:
    dumps = {rank: read_dump(dump(41 if rank == 2 else 42)) for rank in range(4)}
    found = ranks_behind({rank: one for rank, one in dumps.items() if one is not None})
    assert list(found) == [2] and "collective 41" in found[2] and "/u/train.py:7" in found[2]


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/clusterrun-pickle-ran",)


def test_flight_recorder_dump_that_would_run_something_is_not_read() -> None:
    assert read_dump(pickle.dumps(Harmful())) is None
    assert not os.path.exists("/tmp/clusterrun-pickle-ran")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_dump_or_none(data: bytes) -> None:
    assert read_dump(data) is None or isinstance(read_dump(data), tuple)


# -- any input -------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from([
    "Traceback (most recent call last):", '  File "/u/a.py", line 1, in f', "ValueError: x", "srun: error: n1: tasks 0-99999999: Killed",
    "CUDA out of memory. Tried to allocate 1 GiB", "{rank} [x] {0}", "Root Cause (first observed failure):", "  exitcode  : -9 (pid: 3)",
    "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-21T10:00:00 ***", "", "İ step 3", "\x1b[31m", "During handling of the above exception, another exception occurred:",
])  # fmt: skip


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 9), WORDS | st.text(max_size=60))),
    st.sampled_from(["", "FAILED", "TIMEOUT", "CANCELLED", "ODD"]),
)
def test_any_log_has_a_cause_or_says_that_it_shows_none(log: list[tuple[int | None, str]], state: str) -> None:
    cause = first_cause(
        [[Line("x.err", n, rank, text) for n, (rank, text) in enumerate(log, 1)]], EndFacts(state=state, exit_status=1)
    )
    assert cause.kind and cause.sentence


@pytest.mark.parametrize(
    "piece",
    ["Error: nan ", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=A ", "CUDA out of memory. Tried to allocate 1 GiB ",
     "loss is nan ", "error exception ", "network addresses of (", "ImportError: undefined symbol ", "srun: error: n: tasks 0-9999999: Killed ",
     "HTTPSConnectionPool(host='a', port=1): ", "urlopen error [Errno -3] ", "│ ❱ 1     ", 'File "a", line 1 ', "step 1 loss nan loss ", "loss ", "train_", "grad_norm", "[1,2", "Error: please install ", "Couldn't find a ",
     "Command '['gcc", "fatal error: a", "bash: a: ", "BAD EXIT STRING: A ", "pthread_create ", "Traceback (most recent call last): 1 ", "pip install ", "         ",
     "NCCL WARN Connect to a failed ", "Error: found NaN in the a ", "ucp_ep_create failed ",
     "/x.so: undefined symbol: _Z3c1", "NCCL WARN message truncated ", "retrieving ncclUniqueId from [0] ", "The node 'a_1 keep-alive heartbeat ", "PermissionError: /a/."],
)  # fmt: skip
def test_line_made_to_be_slow_is_not(piece: str) -> None:
    assert processor_time(piece) < 20 * processor_time("x")  # of a pattern that backtracks it is hundreds of times


def processor_time(piece: str) -> float:
    """Return the seconds of a processor that it takes to judge four long lines of a piece."""
    began = time.process_time()
    judge("\n".join([piece * (65_536 // len(piece))] * 4))
    return time.process_time() - began


def test_ranges_of_foreign_numbers_stay_small() -> None:
    assert parse_ranges("1-3,5") == (1, 2, 3, 5)
    assert len(parse_ranges("0-9999999,0-9999999")) <= 4_096
    assert parse_ranges("x,1-,99999999999") == (1,)


def test_text_of_an_error_by_itself_is_known() -> None:
    found = classify("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert found is not None and found.kind == "cuda-memory"
