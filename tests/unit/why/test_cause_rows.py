"""Rows and rules of the causes that no excerpt shows: one line each."""

# ruff: noqa: E501 (lines of logs stay in one piece)

from __future__ import annotations

import pytest

from clusterrun.why.causes import Cause, EndFacts, Line, first_cause

KEY = "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'"


def judge(text: str) -> Cause:
    lines = [Line("train_1.err", number, None, line) for number, line in enumerate(text.splitlines(), 1)]
    return first_cause([lines], EndFacts(state="FAILED", exit_status=1))


@pytest.mark.parametrize(
    ("text", "kind", "sentence", "advice"),
    [
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "no-gpu", "in use by another process", "exclusive-process"),
        ("but OMPI was not built with SLURM's PMI support and therefore cannot\n*** An error occurred in MPI_Init_thread", "launch-failed", "SLURM's PMI", "--mpi=pmix"),
        ("OSError: [Errno 116] Stale file handle: '/nas/a.arrow'", "file-system", "Stale file handle: /nas/a.arrow", "several nodes"),
        ("RuntimeError: operator torchvision::nms does not exist", "library-mismatch", "built for another torch", "reinstall"),
        ("SignalException: Process 7 got signal: 15", "interrupted", "SIGTERM", "scancel"),
        ("SignalException: Process 7 got signal: 1", "interrupted", "SIGHUP", "terminal"),
        ("SignalException: Process 7 got signal: 10", "interrupted", "(10)", "kill -l"),
        ("Received Signals.SIGINT death signal, shutting down workers", "interrupted", "Ctrl-C", "SIGINT"),
        ("PermissionError: [Errno 13] Permission denied: '/root/.cache/triton'", "permission", "/root/.cache/triton", "HOME"),
        ("PermissionError: [Errno 13] Permission denied: '/data/a.cache.txt'", "permission", "/data/a.cache.txt", "owner"),
        ("srun: error: n1: task 3: Aborted", "crashed", "task 3 on n1", "SIGABRT"),
        ("store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:02:00)"
         "\nRuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: k (world_size=2, worker_count=4, timeout=0:02:00)",
         "ranks-missing", "4 joined, 2 were expected", "delete that file"),
        ("n1:7:9 [1] NCCL WARN NET/IB : req 0/1 tag 4 peer 10.0.0.4<4> collective mismatch error, local size 8 remote size 16", "nccl-error", "local size 8", "shapes"),
    ],
)  # fmt: skip
def test_line_by_itself_has_its_cause_and_advice(text: str, kind: str, sentence: str, advice: str) -> None:
    cause = judge(text)
    assert (cause.kind, sentence in cause.sentence, advice in cause.advice) == (kind, True, True), cause


def test_crash_names_the_library_of_open_mpis_and_gdbs_backtraces() -> None:
    signal = "[n3:0123] Signal: Segmentation fault (11)\n"
    cause = judge(
        f"{signal}[n3:0123] [ 0] /lib64/libpthread.so.0(+0x12)[0x7f]\n[n3:0123] [ 1] /x/libnccl.so.2(ncclSend+0x1)[0x7f]"
    )
    assert "in libnccl.so.2 (ncclSend)" in cause.sentence and cause.node == "n3"
    assert "in libcuda.so.1 (cuInit)" in judge(f"{signal}#3  0x0000 in cuInit () from /usr/lib64/libcuda.so.1").sentence


def test_crash_without_a_backtrace_names_no_library() -> None:
    assert " in lib" not in judge("[n3:0123] Signal: Segmentation fault (11)\nloaded /x/libnccl.so.2").sentence


def test_rank_that_waits_for_a_key_is_not_the_one_that_did_not_write_it() -> None:
    error = "but store->get('0') got error: Socket Timeout"
    assert judge(f"[rank3]: RuntimeError: [3] {KEY}, {error}").rank == 0
    both = judge(f"[rank3]: RuntimeError: [1] {KEY}, {error}\n[rank0]: RuntimeError: [2] {KEY}, {error}")
    assert both.rank is None  # 0 is a number within a smaller group
