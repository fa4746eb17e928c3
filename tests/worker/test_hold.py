"""The nodes of a failed job are held until the time is over, SIGTERM comes, or hold.json is removed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from clusterrun.worker.job import hold
from tests.support.installed_command import until
from tests.support.slurm_stand_ins import Slurm

pytestmark = pytest.mark.usefixtures("signals_as_before")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "POLL_S", 0.1)


def job(
    folder: Path, on_failure: int = 600, runs_again: bool = False, ended: int | None = None, spare_nodes: int = 0
) -> Any:
    attempt = folder / "attempt"
    attempt.mkdir(exist_ok=True)
    (attempt / "first_failure.json").write_text(json.dumps({"rank": 3, "node": "n2"}))
    return types.SimpleNamespace(
        options=types.SimpleNamespace(on_failure=on_failure, ended=ended, spare_nodes=spare_nodes), attempt_dir=attempt,
        name="5", nodes=["n1"], identity=types.SimpleNamespace(job_id="5"),
        runs_again=runs_again,
    )  # fmt: skip


def when_held(folder: Path, then: Any) -> None:
    """Do something once the nodes are held."""

    def wait() -> None:
        until((folder / "attempt" / "hold.json").exists, 30)
        then()

    threading.Thread(target=wait, daemon=True).start()


def test_the_line_that_opens_a_shell_names_the_node_that_failed(
    tmp_path: Path, slurm: Slurm, capfd: pytest.CaptureFixture[str]
) -> None:
    file, seen = tmp_path / "attempt" / "hold.json", []
    when_held(tmp_path, lambda: (seen.append(json.loads(file.read_text())), file.unlink()))
    began = time.time()
    hold.hold_nodes(job(tmp_path), 1, was_terminated=False)
    assert seen[0]["shell"] == "srun --jobid=5 --overlap --nodelist=n2 --pty bash"
    assert int(began) + 600 <= seen[0]["until"] <= time.time() + 600
    printed = capfd.readouterr().err
    assert seen[0]["shell"] in printed and f"rm {file}" in printed
    assert slurm.calls == ["scontrol update JobId=5 Requeue=0"], "a preempted job would start its ranks again"


def test_sigterm_ends_it_at_once(tmp_path: Path, slurm: Slurm) -> None:
    when_held(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM))
    hold.hold_nodes(job(tmp_path), 1, was_terminated=False)
    assert (tmp_path / "attempt" / "hold.json").exists(), "it shows that the job had failed before"


def test_it_ends_after_its_time(tmp_path: Path, slurm: Slurm) -> None:
    hold.hold_nodes(job(tmp_path, on_failure=1), 1, was_terminated=False)


@pytest.mark.parametrize(("status", "terminated", "more"), [
    (0, False, {}), (85, False, {}), (143, True, {}), (1, False, {"runs_again": True}), (1, False, {"ended": 1}),
    (1, False, {"on_failure": 0}),
])  # fmt: skip
def test_a_job_that_did_not_fail_or_runs_again_is_not_held(
    tmp_path: Path, slurm: Slurm, status: int, terminated: bool, more: dict[str, Any]
) -> None:
    hold.hold_nodes(job(tmp_path, **more), status, was_terminated=terminated)
    assert not slurm.calls and not (tmp_path / "attempt" / "hold.json").exists()


def test_an_earlier_start_of_the_job_holds_nothing(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attempt_number").write_text("2\n")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER", "1")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER_FILE", str(tmp_path / "attempt_number"))
    hold.hold_nodes(job(tmp_path), 1, was_terminated=False)
    assert not slurm.calls


@pytest.mark.parametrize("state", ["COMPLETING", "TIMEOUT", "CANCELLED"])
def test_a_job_that_slurm_ends_is_not_held(tmp_path: Path, slurm: Slurm, state: str) -> None:
    slurm.show(JobState=state)  # SIGTERM was ignored while the end was recorded
    hold.hold_nodes(job(tmp_path), 1, was_terminated=False)
    assert not slurm.calls and not (tmp_path / "attempt" / "hold.json").exists()


@pytest.mark.parametrize(("spare", "limit", "is_lowered"), [
    (1, 7200, True), (1, None, True), (1, 30, False), (0, 7200, False),
])  # fmt: skip
def test_the_time_limit_of_a_job_that_outlives_its_first_node_is_lowered(
    tmp_path: Path, slurm: Slurm, spare: int, limit: int | None, is_lowered: bool
) -> None:
    now = time.time()
    slurm.show(EndTime="Unknown" if limit is None else stamp(now + limit))
    hold.hold_nodes(job(tmp_path, on_failure=1, spare_nodes=spare), 1, was_terminated=False)
    expected = [
        f"scontrol update JobId=5 EndTime={stamp(now + 1 + hold.AFTER_S + late)}"
        for late in range(int(time.time() - now) + 2)
    ]
    assert slurm.calls[0] == "scontrol update JobId=5 Requeue=0"
    assert len(slurm.calls) == 1 + is_lowered and {*slurm.calls[1:]} <= {*expected}


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))
