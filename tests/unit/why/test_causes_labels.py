"""Whose a line is, and which lines belong together: labels, process groups, tracebacks that are handed on."""

# ruff: noqa: E501 (lines of logs stay in one piece)

from __future__ import annotations

import pytest

from clusterrun.why.causes import EndFacts, Line, first_cause
from clusterrun.why.causes.model import Failure, RankEnd
from clusterrun.why.causes.scan import SUMMARY
from clusterrun.why.causes.tracebacks import find_tracebacks, split_rank

WAITED = "[Rank {local}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600045 milliseconds"
TOLD = "[PG ID 11 PG GUID {group} Rank {local}] Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {last}, last completed NCCL work: 5."


def lines(text: str) -> list[Line]:
    return [Line("train_1.err", number, None, line) for number, line in enumerate(text.strip("\n").split("\n"), 1)]


@pytest.mark.parametrize(
    ("label", "rank"),
    [("[rank3]: ", 3), ("[rank3]:", 3), ("[default1]:[rank3]: ", 3), ("[rank3]:[rank3]: ", 3),
     (" 2025-02-18 12:54 [rank13]:", 13), ("192.168.13.81: [rank19]:", 19), ("node7: [rank4]: ", 4)],
)  # fmt: skip
def test_label_tells_the_rank_behind_a_time_or_a_hosts_name_too(label: str, rank: int) -> None:
    assert split_rank(Line("x", 1, None, f"{label}KeyError: 1")) == (rank, "KeyError: 1")


@pytest.mark.parametrize("text", ["KeyError: [rank3]", "x" * 80 + "[rank3]: y", "[x] [rank3]: y"])
def test_text_that_only_mentions_a_rank_has_no_label(text: str) -> None:
    assert split_rank(Line("x", 1, None, text)) == (None, text)


def test_rank_of_a_process_group_is_not_the_rank_of_the_job() -> None:
    told = WAITED.format(local=1, seq=7) + "\nCUDA error: unspecified launch failure"
    (_, fault) = lines(told)
    fault = fault._replace(
        text="[rank29]:[E x] [PG ID 5 PG GUID 83(TENSOR) Rank 1] terminated with exception: " + fault.text
    )
    assert first_cause([[fault]], EndFacts(state="FAILED")).rank == 29


def test_groups_are_not_compared_with_each_other() -> None:
    text = "\n".join(
        f"[rank{rank}]:[E x] {form.format(local=rank % 2, group=group, seq=seq, last=seq)}"
        for rank, group, seq in ((12, 119, 216), (13, 119, 216), (14, 112, 57))
        for form in (WAITED, TOLD)
    )
    cause = first_cause([lines(text)], EndFacts(state="FAILED", exit_status=1))
    assert (cause.kind, cause.rank) == ("collective-timeout", None)


def test_rank_that_is_behind_in_its_group_is_named_by_its_rank_in_the_job() -> None:
    text = "\n".join(
        f"[rank{rank}]:[E x] {form.format(local=rank - 12, group=119, seq=216, last=215 if rank == 14 else 220)}"
        for rank in (12, 13, 14)
        for form in (WAITED, TOLD)
    )
    assert first_cause([lines(text)], EndFacts(state="FAILED", exit_status=1)).rank == 14


# -- tracebacks ------------------------------------------------------------------------------------------------------

FRAME = 'Traceback (most recent call last):\n  File "/u/{file}", line {line}, in f\n'


def test_place_is_the_innermost_line_of_the_users_own_code() -> None:
    library = '  File "/e/lib/python3.11/site-packages/torch/x.py", line 9, in stack\n    raise\n'
    (raised,) = find_tracebacks(lines(FRAME.format(file="a.py", line=3) + library + "RuntimeError: sizes"))
    assert (raised.place, raised.text) == ("/u/a.py:3", "RuntimeError: sizes")


def test_chain_is_one_traceback_that_ends_in_its_last() -> None:
    between = "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    text = FRAME.format(file="a.py", line=1) + between + FRAME.format(file="a.py", line=2) + "ValueError: 2"
    (raised,) = find_tracebacks(lines(text))
    assert (raised.text, raised.first) == ("ValueError: 2", 0)


def test_exception_of_an_ending_interpreter_is_not_the_cause() -> None:
    text = "Exception ignored in: <function f>\n" + FRAME.format(file="a.py", line=1) + "KeyError: 1"
    assert first_cause([lines(text)], EndFacts(state="FAILED", exit_status=1)).kind == "unknown"


def test_tracebacks_of_two_ranks_in_each_other_are_told_apart() -> None:
    ranks = [(FRAME.format(file="a.py", line=4) + error).split("\n") for error in ("KeyError: 0", "ValueError: no")]
    mixed = [Line("x", None, rank, text) for pair in zip(*ranks, strict=True) for rank, text in enumerate(pair)]
    assert [(one.rank, one.text) for one in find_tracebacks(mixed)] == [(0, "KeyError: 0"), (1, "ValueError: no")]


@pytest.mark.parametrize(
    "handed_on",
    [
        FRAME.format(file="a.py", line=1) + "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n",
        FRAME.format(file="a.py", line=1) + "Exception: \n\n-- Process 0 terminated with the following error:\n",
        FRAME.format(file="a.py", line=1) + "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal ",
    ],
    ids=["spawn", "spawn of old", "data loader"],
)  # fmt: skip
def test_error_that_a_process_hands_on_is_told_where_it_was_raised(handed_on: str) -> None:
    (raised,) = find_tracebacks(lines(handed_on + FRAME.format(file="data.py", line=7) + "KeyError: 'x'"))
    assert (raised.text, raised.place, raised.first) == ("KeyError: 'x'", "/u/data.py:7", 0)


def test_message_ends_where_another_programs_line_begins() -> None:
    (raised,) = find_tracebacks(
        lines(
            FRAME.format(file="a.py", line=1)
            + "ValueError: sizes\n  [3] and [4]\nsrun: error: n1: task 0: Exited\n  more"
        )
    )
    assert raised.end == 3


def test_report_of_another_process_is_no_cause() -> None:
    text = "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1."
    assert first_cause([lines(text)], EndFacts(state="FAILED", exit_status=1)).kind == "unknown"


def test_download_that_is_tried_again_is_no_cause() -> None:
    text = "'HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /a (Caused by X)' thrown while requesting HEAD https://huggingface.co/a"
    assert first_cause([lines(text)], EndFacts(state="FAILED", exit_status=1)).kind == "unknown"


WARNED = "/e/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: Found no NVIDIA driver on your system."


def test_warning_alone_is_no_failure() -> None:
    assert first_cause([lines(WARNED)], EndFacts()).kind == "none"


def test_warning_before_the_end_of_a_job_that_failed_is_its_cause() -> None:
    cause = first_cause([lines(WARNED + "\nstep 1")], EndFacts(state="FAILED"))
    assert (cause.kind, "no NVIDIA driver" in cause.sentence) == ("no-gpu", True)


def test_warning_before_an_exception_is_named_beside_it() -> None:
    text = FRAME.format(file="a.py", line=1) + "ValueError: not on cuda:0"
    cause = first_cause([lines(f"{WARNED}\n{text}")], EndFacts())
    assert cause.sentence.startswith("ValueError: not on cuda:0; before that: ")
    assert "no NVIDIA driver" in cause.sentence


def test_warning_before_an_exception_about_gpus_is_its_cause() -> None:
    text = FRAME.format(file="a.py", line=1) + "AssertionError: no GPU"
    cause = first_cause([lines(f"{WARNED}\n{text}")], EndFacts())
    assert (cause.kind, cause.place) == ("no-gpu", "/u/a.py:1")
    assert "no NVIDIA driver" in cause.sentence and cause.sentence.endswith("; then AssertionError: no GPU")


@pytest.mark.parametrize(
    "text",
    [
        "".join(("CUDA out of memory. Tried to allocate 2.00 GiB\n", *(f"step {n}\n" for n in range(12)))),
        "run.sh: line 3: foo: command not found\n[trainer] fatal: lost the state of the sampler\n",
    ],
    ids=["survived", "broad"],
)
def test_line_that_healthy_jobs_print_too_is_shown_but_not_named(text: str) -> None:
    cause = first_cause([lines(text)], EndFacts(state="FAILED", exit_status=1))
    assert (cause.kind, cause.evidence[0].text) == ("unknown", text.splitlines()[0])


def test_exception_after_a_bare_line_is_named_with_that_line() -> None:
    text = "cp: error writing 'a': No space left on device\n" + FRAME.format(file="a.py", line=1) + "KeyError: 'x'"
    cause = first_cause([lines(text)], EndFacts(state="FAILED", exit_status=1))
    assert (cause.kind, cause.sentence) == ("exception", "KeyError: 'x'; before that: a disk is full")


def test_batch_too_large_that_is_left_out_is_no_failure() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB\nWARNING: skipping batch"
    assert first_cause([lines(text)], EndFacts()).kind == "none"


@pytest.mark.parametrize(
    ("error", "kind"), [("BrokenPipeError: [Errno 32] Broken pipe", "none"), ("KeyError: 'x'", "exception")]
)
def test_thread_of_a_queue_that_nobody_reads_is_no_failure(error: str, kind: str) -> None:
    head = 'Traceback (most recent call last):\n  File "/usr/lib/python3.8/multiprocessing/queues.py", line 245, in _feed\n'
    assert first_cause([lines(head + error)], EndFacts()).kind == kind


@pytest.mark.parametrize(("error", "kind"), [("exited with status 1", "exception"), ("exited: no data", "exit-status")])
def test_exception_of_a_thread_is_behind_an_exit_without_words(error: str, kind: str) -> None:
    head = "Exception in thread Thread-1 (load):\nTraceback (most recent call last):\n"
    log = lines(head + FRAME.format(file="a.py", line=3) + "KeyError: 'x'")
    values = {"status": "1"} if "status" in error else {}
    failure = Failure(rank=0, error=error, status=1, kind="exited", values=values)
    assert first_cause([log], EndFacts(state="FAILED", exit_status=1, world_size=1, failure=failure)).kind == kind


def test_a_command_that_started_torchrun_has_its_rank_named() -> None:
    summary = (
        f"{SUMMARY}\n[0]:\n  host      : n2\n  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 7)  (SIGKILL)"
    )
    log = [line._replace(rank=1) for line in lines(summary)]  # the label of the second node
    failure = Failure(rank=1, error="launch.sh exited with 1", status=1, kind="command-exited", values={"status": "1"})
    cause = first_cause([log], EndFacts(state="FAILED", exit_status=1, world_size=2, failure=failure))
    assert (cause.kind, cause.rank) == ("killed", 3)


def test_a_killed_rank_that_its_launcher_does_not_name_is_the_one_without_an_end_record() -> None:
    log = lines("[ERROR] [launch.py:259:sigkill_handler] ['python', 'train.py'] exits with return code = -9")
    ends = tuple(RankEnd(rank=rank, status=1) for rank in range(3))
    cause = first_cause([log], EndFacts(state="FAILED", exit_status=1, world_size=4, ends=ends))
    assert (cause.kind, cause.rank) == ("killed", 3)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            "ProxyError: HTTPSConnectionPool(host='hf.co', port=443): Max retries exceeded with url: /a (Caused by "
            "ProxyError('Cannot connect to proxy.', OSError()))",
            "the node cannot reach the server hf.co through the proxy in http_proxy or https_proxy (Cannot connect to proxy)",
        ),
        (
            "RuntimeError: HIP error: invalid device function",
            "the GPU could not run a kernel: HIP error: invalid device function; usually torch or a library was not built for this GPU model",
        ),
        (
            "RuntimeError: CUDA error: invalid device ordinal",
            "the rank selected a GPU that it cannot see: invalid device ordinal",
        ),
    ],
)
def test_sentence_says_what_the_error_means(error: str, sentence: str) -> None:
    assert first_cause([lines(error)], EndFacts(state="FAILED", exit_status=1)).sentence == sentence


def test_task_that_exits_after_another_crashed_is_not_blamed() -> None:
    text = "OSError: libfoo.so: cannot open shared object file\n"
    ends = ("srun: error: n1: task 0: Aborted (core dumped)\n", "srun: error: n2: task 1: Exited with exit code 1\n")
    facts = EndFacts(state="FAILED", exit_status=1)
    assert first_cause([lines(text + "".join(ends))], facts).rank is None
    assert first_cause([lines(text + ends[1])], facts).rank == 1


def test_the_only_error_message_has_the_rank_and_the_node_of_its_own_line() -> None:
    text = "[rank1]: ERROR: the tokenizer has no padding token"
    facts = EndFacts(state="FAILED", exit_status=1, nodes={0: "n1", 1: "n2"})
    cause = first_cause([lines(text)], facts)
    assert (cause.kind, cause.rank, cause.node) == ("reported-error", 1, "n2")
