"""What the worker's writers write, the readers on the login node read: one contract for each file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.jobspec import fields
from clusterrun.records.progress import RankProgress, last_metrics, read_ranks
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends, launches
from clusterrun.run_folder.ends import Failure, JobEnd, Outcome, RankEnd
from clusterrun.run_folder.launches import Launch, LaunchRecord
from clusterrun.run_folder.rank_records import RankSlot
from clusterrun.run_folder.submissions import SubmissionRecord
from clusterrun.worker.job import notify
from clusterrun.worker.rank.distenv import DistEnv, RunEnv
from clusterrun.worker.rank.failures import locate
from clusterrun.worker.rank.progress import Progress, Recorder
from clusterrun.worker.tasks import lm
from clusterrun.worker.training.report import Report
from tests.support.rank_files import ends_of, progress_of, put_end

DOCUMENTS = ("start.json", "first_failure.json", "stopped")
FOR_THE_WATCHDOG = ("collectives", "srun_step")  # keys of a progress record that stall.py alone reads


def entry(rank: int) -> dict[str, Any]:
    """An entry of start.json, as the worker's group.py makes it."""
    return {
        "rank": rank, "local_rank": 0, "node_rank": rank, "node": f"n{rank}", "host": f"n{rank}.site", "pid": 40 + rank,
        "task": rank, "device": "cpu",
    }  # fmt: skip


def fail() -> Exception:
    try:
        json.loads("{")
    except ValueError as error:
        return error
    raise AssertionError


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt's folder with one of each document, by the worker's writers."""
    error = fail()
    ends.write_start(tmp_path, "gloo", "2.13.0", [entry(0), entry(1)])
    ends.write_end(RankSlot(tmp_path, 0, 0), "n0", Outcome(0), joined_group=True, any_joined_group=True)
    outcome = Outcome(3, "ValueError: no", locate(error.__traceback__), "exception", {"number": 3, "word": "x"})
    ends.write_end(RankSlot(tmp_path, 1, 0), "n1", outcome)
    assert ends.claim_first_failure(tmp_path, 1, "n1", outcome)
    ends.write_stopped(tmp_path, 40, "SIGTERM", "saved in x", "stopped at step 40 by SIGTERM: saved in x")
    progress = Progress()
    progress.step, progress.steps, progress.tokens_per_second = 7, 40, 1000.0
    progress.enter("training")
    progress.gpu = lambda: {"name": "H100", "use": 90, "memory_gib": 1.0, "memory_total_gib": 80.0, "temperature": 50}
    dist = DistEnv(1, 0, 2, 1, 1, "n1", "n1.site", 1, "slurm", ("n0", 1))
    assert Recorder(progress, dist, tmp_path, every=10.0).write_if_due()
    return tmp_path


@pytest.fixture(params=["with a version", "of a worker without versions"])
def any_attempt(attempt: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "of a worker without versions":
        for name in DOCUMENTS:
            document = json.loads((attempt / name).read_text())
            del document["version"]
            (attempt / name).write_text(json.dumps(document))
    return attempt


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_document_bears_its_version(attempt: Path, name: str) -> None:
    assert json.loads((attempt / name).read_text())["version"] == 1
    assert progress_of(attempt)[1]["version"] == ends_of(attempt)[1]["version"] == 1


def test_the_start_is_read_as_it_was_written(any_attempt: Path) -> None:
    start = ends.load_start(any_attempt)
    assert start is not None and start["ranks"] == [entry(0), entry(1)]
    assert (start["world_size"], start["backend"], start["torch"]) == (2, "gloo", "2.13.0") and start["time"] > 1e9


def test_a_damaged_start_loses_its_damaged_entries_only(tmp_path: Path) -> None:
    whole = {"rank": 2, "task": 2, "node": "n2"}
    ranks = [whole, {"rank": 4, "node": "n2"}, {"rank": True, "node": "n1"}, {"rank": 1}, "1", None, {},
             {"rank": 3, "node": "n3", "task": "3"}, {"rank": "0", "node": "n"}, {"rank": 0, "node": 7}]  # fmt: skip
    (tmp_path / "start.json").write_text(json.dumps({"ranks": ranks}))
    assert ends.load_start(tmp_path) == {"ranks": [whole]}
    (tmp_path / "start.json").write_text('{"ranks": 5}')
    assert ends.load_start(tmp_path) == {"ranks": []}
    (tmp_path / "start.json").write_text('{"ranks": [')
    assert ends.load_start(tmp_path) is None


def test_the_ends_are_read_as_they_were_written(any_attempt: Path) -> None:
    first, second = ends.load_ends(any_attempt)
    assert first.time is not None and second.time is not None
    assert first == RankEnd(rank=0, node="n0", status=0, time=first.time)
    assert second == RankEnd(rank=1, node="n1", status=3, time=second.time, error="ValueError: no")
    assert (any_attempt / ends.STOPPED).exists()


@pytest.mark.parametrize("joined", [True, False, None])
def test_the_process_group_is_read_as_it_was_written(tmp_path: Path, joined: bool | None) -> None:
    assert ends.load_any_joined_group(tmp_path) is None
    ends.write_end(RankSlot(tmp_path, 0, 0), "n0", Outcome(0), joined_group=joined, any_joined_group=joined)
    assert ends.load_any_joined_group(tmp_path) is joined
    assert ends_of(tmp_path)[0]["joined_group"] is joined
    put_end(tmp_path, 0, {"any_joined_group": "no"})
    assert ends.load_any_joined_group(tmp_path) is None


def test_the_first_failure_is_read_as_it_was_written(any_attempt: Path) -> None:
    found = ends.find_failure(any_attempt)
    path = any_attempt / "first_failure.json"
    line = json.loads(path.read_text())["line"]
    assert found == Failure(
        rank=1, node="n1", status=3, error="ValueError: no", place=f"{__file__}:{line}", file=str(path),
        kind="exception", values={"number": "3", "word": "x"},
    )  # fmt: skip
    document = ends.load_first_failure(any_attempt)
    assert document is not None
    assert list(document) == ["rank", "node", "status", "error", "file", "line", "time"], "the keys that --json prints"
    assert ends.has_failed(any_attempt)


def test_the_stop_is_read_as_it_was_written(any_attempt: Path) -> None:
    found = ends.find_stop(any_attempt)
    assert found is not None and found.error == "stopped at step 40 by SIGTERM: saved in x"
    assert {key: found.values[key] for key in ("step", "reason", "saved")} == {
        "step": "40", "reason": "SIGTERM", "saved": "saved in x",
    }  # fmt: skip


def test_why_ranks_were_separate_is_read_as_it_was_written(tmp_path: Path) -> None:
    slot = RankSlot(tmp_path, 0, 0)
    outcome = Outcome(0, kind="no-process-group", values={"idle": True})
    ends.write_end(slot, "n0", outcome, any_joined_group=False)
    assert ends.find_separate(tmp_path) == Failure(kind="no-process-group", values={"idle": "True"})


@pytest.mark.parametrize("values", [None, [1], "x", {"a": None, "b": [1], "c": 2}])
def test_values_of_a_damaged_record_are_the_numbers_and_texts(tmp_path: Path, values: object) -> None:
    (tmp_path / "first_failure.json").write_text(json.dumps({"rank": 0, "kind": 7, "values": values}))
    found = ends.find_failure(tmp_path)
    assert found is not None and found.kind == "" and found.values in ({}, {"c": "2"})


def test_the_progress_is_read_as_it_was_written(any_attempt: Path) -> None:
    (found,) = read_ranks(any_attempt)
    assert isinstance(found, RankProgress) and found.gpu is not None
    written = progress_of(any_attempt)[1]
    for name in set(written) - {"version", "gpu", *FOR_THE_WATCHDOG}:
        assert getattr(found, name) == written[name], name
    for name, value in written["gpu"].items():
        assert getattr(found.gpu, name) == value, name


def test_the_metrics_are_read_as_they_were_written(tmp_path: Path) -> None:
    report = Report(0, RunEnv(run_dir=tmp_path), lm.Config(), 0, {})
    report.row(10, 40, {"loss": 2.5, "val_loss": 2.75, "tokens_per_second": 1000.0, "mfu": None})
    report.row(20, 40, {"loss": 2.25, "tokens_per_second": 1100.0, "mfu": 0.5})
    run = RunRecord(
        run_id="20261121-034501-k3v7qa", run_dir=tmp_path, root=tmp_path, name="lm", what="lm", scheduler="slurm",
        cluster="c", user="me", at=0, nodes=1, workers_per_node=1, shared=False, sources={},
        submissions=(SubmissionRecord(token="tok"),),
    )  # fmt: skip
    found = last_metrics(run)
    assert found is not None and found.time is not None
    assert (found.step, found.loss, found.val_loss, found.tokens_per_second, found.mfu) == (20, 2.25, 2.75, 1100.0, 0.5)


def test_events_are_the_ones_that_submit_offers() -> None:
    assert notify.EVENTS == fields.EVENTS and set(notify.DEFAULT_EVENTS) == {*fields.EVENTS} - {"started", "first-step"}


def test_the_end_of_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    end = JobEnd(143, "TERM", "TimeLimit", "TIME LIMIT", 2, "c", "7_1", 1, 3)
    assert ends.load_job_end(tmp_path) is None
    ends.write_job_end(tmp_path, end)
    found = ends.load_job_end(tmp_path)
    assert found is not None and found.time is not None and found == end._replace(time=found.time)


@pytest.mark.parametrize("text", ["[1]", "{", '{"status": "0", "due": 5, "restart": 1e400, "later": {}}', ""])
def test_a_damaged_end_of_a_job_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "end.json").write_text(text)
    assert ends.load_job_end(tmp_path) in (None, JobEnd())


def test_the_launches_of_a_job_are_found_in_order(tmp_path: Path) -> None:
    folders = [launches.folder_of(tmp_path, "tok_1", *numbers) for numbers in [(0, 0), (0, 2), (0, 10), (1, 0)]]
    others = ["tok.0.0", "tok_12.0.0", "tok_1.0.0.0", "tok_1.0", "tok_1.-1.0", "tok_1.0.x", "tok_1.0.1234567890"]
    for folder in (*reversed(folders), *(tmp_path / "attempts" / name for name in others)):
        folder.mkdir(parents=True)
    assert launches.folders(tmp_path, "tok_1") == folders
    assert launches.folders(tmp_path / "gone", "tok_1") == []


def test_a_launch_is_read_as_it_was_written(tmp_path: Path) -> None:
    steps = {"first_step": 1, "first_step_at": 60.0, "step": 90, "stepped": 950.0, "step_s": 10.0}
    LaunchRecord(tmp_path, 5.0).end(1, "killed", "ranks-lost", {"ranks": [3]}, steps)
    found = launches.load(tmp_path)
    assert found == Launch(tmp_path, 1, "killed", 5.0, found.ended, **steps) and found.ended is not None
    (tmp_path / "launch.json").write_text('{"began": "x", "ended": true, "step": 1e400, "cause": ["x"]}')
    assert launches.load(tmp_path) == Launch(tmp_path)
