"""After which failed launches the ranks are started again, and which line says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.run_folder.rank_records import HALF, read
from clusterrun.worker.job.restart import LaunchEnd, read_launch, why_not_again
from tests.support.rank_files import put_bytes, put_end, put_progress

KILLED = LaunchEnd(137, "rank 3 ended without reporting a status")


def failed(
    error: str, step: int | None = None, checkpoint: int | None = None, status: int = 1, kind: str = "exception"
) -> LaunchEnd:
    return LaunchEnd(status, f"rank 0 on n1: {error}", error, step, checkpoint, kind)


@pytest.mark.parametrize(
    "launches",
    [
        [KILLED],
        [KILLED, KILLED, KILLED],
        [failed("ValueError: bad sample", step=7)],
        [failed("ValueError: bad sample", step=7), failed("ValueError: bad sample", step=9)],
        [failed("OutOfMemoryError: CUDA out of memory", step=7)],
        [failed("RuntimeError: a", checkpoint=10), failed("RuntimeError: b", checkpoint=20), KILLED],
    ],
)
def test_what_a_new_start_may_mend_is_started_again(launches: list[LaunchEnd]) -> None:
    assert why_not_again(launches, 5) == ""


@pytest.mark.parametrize(
    ("launches", "reason"),
    [
        ([failed("ModuleNotFoundError: No module named 'x'", kind="code-error")], "cannot fix"),
        ([failed("exited with status 4", status=4, kind="exited")], "cannot fix"),
        ([failed("exited with status 93", status=93)], "exited with status 93"),
        ([failed("lr must be a number", status=2)], "exited with status 2 (invalid arguments or settings)"),
        ([failed("ValueError: bad sample", step=7)] * 2, "same error at the same step"),
        ([KILLED] * 6, "--max-restarts 5"),
        (
            [LaunchEnd(143, "the step ended with status 143", kind="terminated")],
            "SIGTERM usually means that the job was cancelled or preempted",
        ),
        ([failed(f"RuntimeError: {n}", checkpoint=10) for n in range(3)], "no progress"),
    ],
)
def test_what_would_only_fail_again_is_not(launches: list[LaunchEnd], reason: str) -> None:
    assert reason in why_not_again(launches, 5)


def records(folder: Path, ended: dict[int, int], first: dict[str, object] | None = None, step: int = 12) -> None:
    for rank, status in ended.items():
        put_end(folder, rank, {"rank": rank, "status": status})
    if first:
        (folder / "first_failure.json").write_text(json.dumps({"rank": 1, "node": "n1", **first}))
    put_progress(folder, 0, {"step": step})


def test_a_rank_without_an_end_record_is_the_cause(tmp_path: Path) -> None:
    first = {"error": "RuntimeError: Connection closed by peer", "kind": "collective-error"}
    records(tmp_path, {0: 143, 1: 1, 3: 143}, first)
    end = read_launch(tmp_path, read(tmp_path), tmp_path / "none", 143, 4)
    assert end.cause.startswith("rank 2 ended without reporting a status") and (end.error, end.step) == ("", 12)


def test_ranks_that_sigterm_ended_are_told_from_a_rank_that_failed(tmp_path: Path) -> None:
    records(tmp_path, {0: 143, 1: 143})
    assert read_launch(tmp_path, read(tmp_path), tmp_path, 143, 2).kind == "terminated"
    assert read_launch(tmp_path, read(tmp_path), tmp_path, 143, 3).kind == "ranks-lost", "one of them left no record"
    records(tmp_path, {0: 143, 1: 1}, {"error": "KeyError: 'x'", "kind": "exception"})
    assert read_launch(tmp_path, read(tmp_path), tmp_path, 143, 2).kind == "exception"


def test_an_error_of_the_users_code_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".tmp-step-00000020-n1-7").mkdir()
    records(tmp_path, {0: 143, 1: 1}, {"error": "KeyError: 'x'"})
    end = read_launch(tmp_path, read(tmp_path), tmp_path / "checkpoints", 1, 2)
    assert end == LaunchEnd(1, "rank 1 on n1: KeyError: 'x'", "KeyError: 'x'", 12, 10)


def test_a_rank_that_the_local_scheduler_saw_killed_is_the_cause(tmp_path: Path) -> None:
    records(tmp_path, {0: 1}, {"error": "lost the connection", "kind": "peer-lost"})
    (tmp_path / "exit.json").write_text('{"rank": 1, "node": "local0", "status": 137}')
    end = read_launch(tmp_path, read(tmp_path), tmp_path / "none", 137, 2)
    assert (end.kind, end.values) == ("killed", {"rank": 1, "node": "local0", "status": 137})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("sh was killed by SIGKILL", "command-killed"),
        ("DistBackendError: NCCL error in: x, remote process exited", "collective-error"),
    ],
)
def test_an_error_that_follows_from_a_lost_process_may_come_again(tmp_path: Path, error: str, kind: str) -> None:
    records(tmp_path, {0: 143, 1: 1}, {"error": error, "kind": kind})
    end = read_launch(tmp_path, read(tmp_path), tmp_path / "none", 1, 2)
    assert end.error == "" and error in end.cause


def test_ranks_that_sigterm_ended_did_not_fail(tmp_path: Path) -> None:
    records(tmp_path, {0: 143, 1: 143}, {})
    end = read_launch(tmp_path, read(tmp_path), tmp_path / "none", 143, 2)
    assert end.cause == "the ranks were ended by SIGTERM" and end.kind == "terminated"


def test_damaged_records_count_as_absent(tmp_path: Path) -> None:
    (tmp_path / "first_failure.json").write_bytes(b"[\xff")
    put_bytes(tmp_path, 0, b"{\xff")
    put_end(tmp_path, 0, {})
    end = read_launch(tmp_path, read(tmp_path), tmp_path, 9, 1)
    assert end == LaunchEnd(9, "the step ended with status 9", kind="step-ended")
    put_bytes(tmp_path, 0, b"{", HALF)
    assert read_launch(tmp_path, read(tmp_path), tmp_path, 9, 1).cause.startswith(
        "rank 0 ended without reporting a status"
    )
