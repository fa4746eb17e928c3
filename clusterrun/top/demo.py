"""A recorded run in place of a cluster: what ``top --demo`` shows.

``demo.jsonl`` was recorded on a test cluster (scripts/screens.py). Its first line names the runs; each other one is
``[SECONDS, KIND, ...]``: what Slurm answered, or what a job wrote into a file of its run, so long after the beginning.
The files are written again, into a folder of their own, and read as those of any run. Times in them count from the
beginning too.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from clusterrun.base.decode import parse_lines
from clusterrun.base.errors import RequestError
from clusterrun.base.job import JobId, JobStatus, log_paths, outcome_of
from clusterrun.logs.files import CLOCK
from clusterrun.records import progress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files, training_progress
from clusterrun.run_folder.rank_records import RankSlot
from clusterrun.run_folder.submissions import SubmissionRecord
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.top.source import Ranks, TopData, in_order

NOTE = "a recorded run of a test cluster without GPUs; the figures of GPUs are made up"
PAUSE = 10.0
"""Seconds between the end and the next beginning."""
TAPE = Path(__file__).with_name("demo.jsonl")
TIMES = frozenset(
    {"time", "since", "stepped", "advanced", "first_step_at", "warm_step_at", "submitted", "started", "ended"}
)


class EverySecond(Pace):
    """A recording is asked often: nobody waits for its answers."""

    def after(self, *, changed: bool, failed: bool, took: float) -> float:
        return 1.0


class Recording(TopData):
    """The recorded jobs, ``at`` seconds after the beginning, with time running on; no key changes them."""

    def __init__(self, folder: Path, at: float = 0.0) -> None:
        """``folder`` gets the files of the runs."""
        self._header, *self._tape = parse_lines(TAPE.read_bytes().splitlines())
        self._folder, self._round = folder, 0
        self._playing = threading.Lock()  # the feeds of the screen are threads
        self._begin(time.time() - at)

    def _begin(self, at: float) -> None:
        """Play from the beginning, as other runs."""
        self._round += 1
        self._began, self._events = at, deque[list[Any]](self._tape)
        self._runs = {run["job"]: self._record(run) for run in self._header["runs"]}
        self._queue: list[dict[str, Any]] = []

    @property
    def user(self) -> str:
        return "demo"

    def jobs(self) -> Listing:
        """Return the jobs as they were."""
        self._play()
        return Listing(in_order(list(map(self._state, self._queue))))

    def ranks(self, state: RunState, only: frozenset[str] | None = progress.SCREEN) -> Ranks:
        """Return what the files of a job's run contained."""
        self._play()
        return super().ranks(state, only)

    def explain(self, state: RunState) -> list[str]:
        """Return what `clusterrun why` printed."""
        reasons: dict[str, list[str]] = self._header["why"]
        return reasons.get(str(state.status.id), ["nothing was recorded about this job"])

    def cancel(self, state: RunState) -> str:
        """Raise RequestError."""
        raise RequestError("this is a recording: nothing can be cancelled")

    def hold(self, state: RunState) -> str:
        """Raise RequestError."""
        raise RequestError("this is a recording: nothing can be held")

    def _play(self) -> None:
        """Do what has happened since the last call; some time after the end, begin again."""
        with self._playing:
            if time.time() > self._began + self._tape[-1][0] + PAUSE:
                self._begin(time.time())
            while self._events and self._began + self._events[0][0] <= time.time():
                _, kind, *values = self._events.popleft()
                getattr(self, f"_play_{kind}")(*values)

    def _play_queue(self, jobs: list[dict[str, Any]]) -> None:
        self._queue = jobs

    def _play_log(self, job: str, stream: str, text: str) -> None:
        out, err = log_paths(self._runs[job].logs, JobId.parse(job))
        with (out if stream == "out" else err).open("a") as log:
            log.write(text)

    def _play_clock(self, job: str, tick: dict[str, Any], out: int, err: int) -> None:
        with (_attempt(self._runs[job]) / CLOCK).open("a") as clock:
            clock.write(f"{self._absolute(tick)['time']} {out} {err}\n")

    def _play_metrics(self, job: str, row: dict[str, Any]) -> None:
        with (self._runs[job].run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(self._absolute(row)) + "\n")

    def _play_progress(self, job: str, document: dict[str, Any]) -> None:
        files.write_json(_attempt(self._runs[job]) / training_progress.FILE, self._absolute(document))

    def _play_rank(self, job: str, rank: int, local_rank: int, document: dict[str, Any]) -> None:
        slot = RankSlot(_attempt(self._runs[job]), rank, local_rank)
        slot.write_progress(self._absolute(document))
        slot.close()

    def _absolute(self, document: dict[str, Any]) -> dict[str, Any]:
        return {key: int(self._began + value) if key in TIMES else value for key, value in document.items()}

    def _state(self, job: dict[str, Any]) -> RunState:
        job_id, job = JobId.parse(job["id"]), self._absolute(job)
        if job["state"] == "RUNNING":
            job["elapsed"] = int(time.time() - job["started"])
        known: dict[str, Any] = {"id": job_id, "outcome": outcome_of(job["state"]), "source": "squeue"}
        return RunState(self._runs.get(job_id.raw), JobStatus(**job | known))

    def _record(self, run: dict[str, Any]) -> RunRecord:
        name, root = f"{run['run_id']}-{self._round}", self._folder / str(self._round)
        token = (run["run_id"][-6:] * 3)[:16]
        submission = SubmissionRecord(token=token, state="accepted", job_id=run["job"])
        record = RunRecord(
            run_id=name, run_dir=root / "runs" / name, root=root, name=run["name"], what=run["what"],
            scheduler="slurm", cluster="demo", user="demo", at=int(self._began + run["submitted"]), nodes=run["nodes"],
            workers_per_node=run["workers_per_node"], shared=False, sources={}, submissions=(submission,),
        )  # fmt: skip
        _attempt(record).mkdir(parents=True)
        record.logs.mkdir(exist_ok=True)
        return record


def _attempt(run: RunRecord) -> Path:
    return run.run_dir / "attempts" / f"{run.submission.key}.0.0"
