"""What the supervisor records of a launch, and that the login side reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.run_folder import launches
from clusterrun.run_folder.launches import LaunchRecord

PROGRESS = {"first_step": 1, "first_step_at": 60.0, "step": 90, "stepped": 950.0, "step_s": 10.0, "rank": 0}


def written(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "launch.json").read_text())
    return found


def test_a_running_launch_has_its_beginning(tmp_path: Path) -> None:
    LaunchRecord(tmp_path, 5.0)
    assert written(tmp_path).keys() == {"version", "began", "log_start", "limits"} and written(tmp_path)["began"] == 5.0


@pytest.mark.parametrize(("status", "cause"), [(137, "killed"), (0, ""), (85, "")])
def test_its_end_has_status_steps_and_a_cause_if_it_failed(tmp_path: Path, status: int, cause: str) -> None:
    LaunchRecord(tmp_path, 5.0).end(status, "killed", "ranks-lost", {}, PROGRESS)
    found = written(tmp_path)
    assert (found["began"], found["status"], found["cause"]) == (5.0, status, cause)
    assert {key: found[key] for key in PROGRESS if key != "rank"} == {k: v for k, v in PROGRESS.items() if k != "rank"}


def test_the_cause_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = LaunchRecord(tmp_path, 5.0)
    assert launches.find_failure(tmp_path) is None
    record.end(1, "port 5 is taken", "address-in-use", {"port": 5, "node": "n1"}, {})
    found = launches.find_failure(tmp_path)
    assert found is not None and (found.error, found.kind) == ("port 5 is taken", "address-in-use")
    assert found.rank is None and found.values == {"port": "5", "node": "n1"}
    record.end(0, "", "step-ended", {}, {})
    assert launches.find_failure(tmp_path) is None


def test_a_launch_without_progress_is_recorded(tmp_path: Path) -> None:
    LaunchRecord(tmp_path, 5.0).end(1, "the step ended with status 1", "step-ended", {}, {})
    assert written(tmp_path)["step"] is None


def test_when_the_job_was_submitted_eligible_and_started_is_kept(tmp_path: Path) -> None:
    record = LaunchRecord(tmp_path, 5.0)
    assert launches.find_queue_times(tmp_path) == {}
    record.note_queue({"submitted": 10, "eligible": 20, "started": 30})
    record.end(0, "", "", {}, {})
    assert launches.find_queue_times(tmp_path) == {"submitted": 10, "eligible": 20, "started": 30}


def test_a_folder_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    LaunchRecord(tmp_path / "gone", 5.0).end(0, "", "", {}, {})


def test_it_has_the_limits_that_the_ranks_inherit(tmp_path: Path) -> None:
    code = (
        "import resource, sys, pathlib; from clusterrun.run_folder.launches import LaunchRecord;"
        " resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300)); resource.setrlimit(resource.RLIMIT_CPU, (900, 900));"
        " LaunchRecord(pathlib.Path(sys.argv[1]), 1.0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    limits = launches.find_limits(tmp_path)
    assert (limits["nofile"], limits["cpu"]) == (200, 900)
    (tmp_path / "launch.json").write_text('{"limits": {"nofile": "many", "cpu": 5, "as": null}}')
    assert launches.find_limits(tmp_path) == {"cpu": 5}
    (tmp_path / "launch.json").write_text('{"limits": [1]}')
    assert launches.find_limits(tmp_path) == {}
