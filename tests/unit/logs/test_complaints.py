"""--errors: what users look for when a run has died, and not what only speaks of errors."""

import pytest

from clusterrun.logs.complaints import ErrorFilter
from clusterrun.logs.labels import Labels, LogLine


def kept(*texts, rank=0):
    complaints = ErrorFilter(Labels(None))
    return [text for text in texts if complaints.passes(LogLine("err", rank, text.encode()))]


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: out of memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "srun: error: node1: task 3: Killed",
        "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***",
        "node1:312:345 [0] NCCL WARN Cuda failure 2 'out of memory'",
        "[rank3]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout",
        "2026-11-21 10:00:00 ERROR trainer: disk",
        "FATAL: no checkpoint",
        "Segmentation fault (core dumped)",
        "OSError: [Errno 28] No space left on device",
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: an illegal memory access was encountered",
        "bash: line 1: python4: command not found",
    ],
)
def test_an_error_is_shown(text):
    assert kept(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "step 10 loss 2.31 error 0.12",
        "mean_error=0.3",
        "0 errors, 3 warnings",
        "UserWarning: this raises a RuntimeError in the next release",
        "[W1121 10:00:00] WARNING: NCCL_ASYNC_ERROR_HANDLING is deprecated, ValueError",
        "timeout set to 600 s",
        "epoch 1 done",
        "",
    ],
)
def test_what_is_no_error_is_not(text):
    assert kept(text) == []


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    main()",
    "    ^^^^^^",
    "ValueError: no data",
)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_a_traceback_is_whole(prefix):
    lines = [prefix + text for text in TRACEBACK]
    assert kept("before", *lines, "after") == lines


def test_a_traceback_s_end_need_not_look_like_an_error():
    assert kept(*TRACEBACK[:-1], "KeyboardInterrupt", "after")[-1] == "KeyboardInterrupt"


def test_chained_tracebacks_are_whole():
    between = ["", "During handling of the above exception, another exception occurred:", ""]
    shown = kept(*TRACEBACK, *between, *TRACEBACK, "after")
    assert shown == [*TRACEBACK, between[1], *TRACEBACK]


def test_tracebacks_of_several_ranks_do_not_mix():
    complaints, shown = ErrorFilter(Labels(None)), []
    for text in TRACEBACK:
        for rank, said in ((0, text), (1, "all is well"), (2, text)):
            if complaints.passes(LogLine("err", rank, said.encode())):
                shown.append((rank, said))
    assert shown == [(rank, text) for text in TRACEBACK for rank in (0, 2)]


def told(complaints, *texts):
    return complaints.select("".join(f"{text}\n" for text in texts).encode()).decode().splitlines()


HEALTHY = [f"step {i} loss 0.{i}" for i in range(20)]


def test_of_a_block_the_errors_are_told():
    complaints = ErrorFilter(Labels(None))
    assert told(complaints, *HEALTHY, "ValueError: no data", *HEALTHY) == ["ValueError: no data"]


def test_a_traceback_goes_on_in_a_block_without_an_error():
    complaints = ErrorFilter(Labels(None))
    assert told(complaints, *TRACEBACK[1:4], *HEALTHY) == []
    assert told(complaints, *HEALTHY, TRACEBACK[0]) == [TRACEBACK[0]]
    assert told(complaints, *TRACEBACK[1:4], *HEALTHY) == [*TRACEBACK[1:4], HEALTHY[0]]


def test_lines_that_differ_only_in_their_numbers_are_looked_at_once(monkeypatch):
    complaints = ErrorFilter(Labels(None))
    assert told(complaints, *HEALTHY) == []
    monkeypatch.setattr(complaints, "passes", lambda _: pytest.fail("it was looked at"))
    assert told(complaints, "step 99 loss 1.25") == []


def test_a_block_that_is_mostly_errors_is_told_whole():
    assert told(ErrorFilter(Labels(None)), *TRACEBACK) == [*TRACEBACK]
