"""A local scheduler in a folder of its own, with real scripts, and nothing of it left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import TERMINAL, JobId, JobStatus
from clusterrun.scheduler import Submission
from clusterrun.scheduler.local.client import LocalScheduler
from clusterrun.scheduler.local.jobfiles import Job
from clusterrun.scheduler.local.processes import end_members, members
from lab.cluster import Lab
from tests.support.installed_command import Site
from tests.support.patience import until


def job(token: str, **changes: Any) -> Job:
    """A request as `job.json` has it."""
    given: dict[str, Any] = {
        "token": token, "run_dir": "/r", "script": "/r/s.sh", "workdir": "/", "logs": "/l", "umask": 0o77, "nodes": 1,
        "tasks_per_node": 1, "gpus_per_node": 0, "time_limit": None, "dependency": "", "submitted": 1, "grace": 1.0,
    }  # fmt: skip
    return Job(**given | changes)


class Bench:
    """Submits bash scripts, which stand in for rendered ones, and waits for what becomes of them."""

    def __init__(self, folder: Path) -> None:
        """With a grace that a busy machine doesn't use up: a test of what outlives it sets a short one."""
        self.folder = folder
        self.state = folder / "state"
        self.local = self.state / "local"
        self.logs = folder / "logs"
        self.work = folder / "work"
        self.work.mkdir()
        self.set_grace(30.0)
        self.tokens: list[str] = []
        self.until = until

    def set_grace(self, seconds: float) -> None:
        """The time that jobs submitted from now on have between TERM and KILL."""
        self.scheduler = LocalScheduler(self.state, os.environ, grace=seconds)

    def submission(self, body: str, **changes: Any) -> Submission:
        number = len(self.tokens)
        run = self.folder / f"run{number}"
        run.mkdir()
        (run / "script.sh").write_text("#!/bin/bash -l\n" + body)
        self.tokens.append(os.urandom(10).hex())
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CLUSTERRUN_", "CUDA_"))}
        given: dict[str, Any] = {
            "run_id": f"run{number}",
            "run_dir": run,
            "token": self.tokens[-1],
            "script": run / "script.sh",
            "workdir": self.work,
            "logs": self.logs,
            "env": env | {"HOME": str(self.folder)} | changes.pop("env", {}),  # no profile of the user that runs this
        }
        return Submission(**given | changes)

    def submit(self, body: str, **changes: Any) -> JobId:
        return self.scheduler.submit(self.submission(body, **changes))

    def status(self, id: JobId) -> JobStatus:
        (status,) = self.scheduler.query([id]).jobs
        return status

    def wait(self, id: JobId, *states: str) -> JobStatus:
        """The job's status once it has one of those states, or any last one."""

        def there() -> JobStatus | None:
            status = self.status(id)
            assert not states or status.state in states or status.state not in TERMINAL, status
            return status if status.state in (states or TERMINAL) else None

        return until(there)

    def wait_file(self, name: str) -> str:
        """What a script wrote to a file in its working folder, once it stands there."""
        path = self.work / name
        until(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text()

    def out(self, id: JobId, stream: str = "out") -> str:
        return (self.logs / f"train_{id}.{stream}").read_text()

    def state_of(self, id: JobId) -> dict[str, Any]:
        return json.loads((self.local / str(id) / "state.json").read_text())

    def change_state(self, id: JobId, **changes: Any) -> None:
        """Rewrite a state file as if another machine or boot had written it."""
        (self.local / str(id) / "state.json").write_text(json.dumps(self.state_of(id) | changes))

    def unlock(self, id: JobId) -> None:
        """Let a job's request look as after the death of its supervisor, or after a restart of the machine."""
        request = self.local / str(id) / "job.json"
        data = request.read_bytes()
        request.unlink()
        request.write_bytes(data)

    def close(self) -> list[int]:
        """End what still runs; the processes that were left although their job was over."""
        self.scheduler.cancel([status.id for status in self.scheduler.query().jobs])
        left = [process.pid for token in self.tokens for process in members(token)]
        for token in self.tokens:
            end_members(token)
        return left


@pytest.fixture(scope="module")
def site(new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(None)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert bench.close() == []
