"""A Cluster of our own making for the live view, and the screen as plain text."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.submissions import SubmissionRecord
from clusterrun.scheduler import Cancelled
from clusterrun.state.filters import OPEN
from clusterrun.state.reconcile import Listing, RunState
from tests.support.patience import HUNG
from tests.support.rank_files import put_progress


def run(root: Path, number: int, name: str = "lm", scheduler: str = "slurm", ranks: int = 2) -> RunRecord:
    """A submitted run with a folder of its own."""
    run_id = f"20261121-0345{number:02}-k3v7qa"
    folder = root / ".clusterrun" / "runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    (root / "logs").mkdir(exist_ok=True)
    return RunRecord(
        run_id=run_id, run_dir=folder, root=root, name=name, what="lm", scheduler=scheduler, cluster="fake",
        user="me", at=0, nodes=1, workers_per_node=ranks, shared=False, sources={},
        submissions=(SubmissionRecord(token=f"token{number}", state="accepted", job_id=str(number)),),
    )  # fmt: skip


def status(number: int, state: str = "RUNNING", **changes: Any) -> JobStatus:
    """A job as squeue would show it."""
    known = {"name": "lm.token", "user": "me", "nodes": "node1", "elapsed": 61, "source": "squeue"} | changes
    return JobStatus(id=JobId(str(number)), state=state, outcome=outcome_of(state), **known)


def write_rank(one: RunRecord, rank: int, **values: Any) -> None:
    """A rank's progress record, as the worker writes it."""
    folder = one.run_dir / "attempts" / f"{one.submission.token}.0.0"
    folder.mkdir(parents=True, exist_ok=True)
    record = {"version": 1, "rank": rank, "node": "node1", "time": time.time(), "interval": 10.0, "phase": "training"}
    put_progress(folder, rank, record | values)


class FakeCluster:
    """Runs and how they stand, to be changed by a test; `asked` counts the questions, `silent` holds them up."""

    user = "me"

    def __init__(self) -> None:
        self.jobs: list[RunState] = []
        self.trouble = ""
        self.error: Exception | None = None
        self.silent = threading.Event()
        self.silent.set()
        self.asked = 0
        self.cancelled: list[str] = []
        self.held: list[tuple[str, bool]] = []

    def put(self, *jobs: tuple[RunRecord, JobStatus]) -> None:
        """These are the jobs from now on."""
        self.jobs = [RunState(one, job) for one, job in jobs]

    def listing(self) -> Listing:
        return Listing([state for state in self._answer(self.jobs) if state.status.outcome in OPEN])

    def states(self, runs: Sequence[RunRecord], answer: object = None) -> list[RunState]:
        wanted = {one.run_id for one in runs}
        return [state for state in self.jobs if state.record is not None and state.record.run_id in wanted]

    def _answer(self, jobs: Sequence[RunState]) -> list[RunState]:
        self.asked += 1
        self.silent.wait(600)
        if self.error is not None:
            raise self.error
        if self.trouble:
            dark = {"state": "UNKNOWN", "outcome": outcome_of("UNKNOWN"), "reason": "not known"}
            return [RunState(s.record, replace(s.status, **dark), self.trouble) for s in jobs]
        return list(jobs)

    def status(self, texts: Sequence[str]) -> list[RunState]:
        found = [state for state in self.jobs if str(state.status.id) in texts]
        if not found:
            raise ClusterrunError(f"no such job: {texts}")
        return found

    def cancel(self, targets: Sequence[RunState]) -> list[tuple[RunState, Cancelled]]:
        self.cancelled += [str(target.status.id) for target in targets]
        for target in targets:
            self._change(target, status(int(target.status.id.raw), "CANCELLED"))
        return [(target, Cancelled(target.status.id, True)) for target in targets]

    def hold(self, target: RunState, *, release: bool = False) -> None:
        self.held.append((str(target.status.id), release))
        self._change(target, replace(target.status, reason="Priority" if release else "JobHeldUser"))

    def _change(self, target: RunState, job: JobStatus) -> None:
        self.jobs = [RunState(s.record, job) if s.status.id == job.id else s for s in self.jobs]


def text_of(app: Any) -> str:
    """What stands on the screen of a running app, without its colours."""
    width, height = app.size
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, record=True,
                      color_system="truecolor", legacy_windows=False, safe_box=False)  # fmt: skip
    console.print(app.screen._compositor.render_update(full=True))  # how textual itself makes its screenshots
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


async def shown(pilot: Any, *words: str, without: Sequence[str] = (), seconds: float = HUNG) -> str:
    """The screen once it shows all these words, and none of those it is to be without."""
    return await until_shown(
        pilot, lambda text: all(w in text for w in words) and not any(w in text for w in without), seconds
    )


async def pressed(pilot: Any, key: str, *words: str, without: Sequence[str] = ()) -> str:
    """Press a key; the screen once it shows what that is to bring."""
    await pilot.press(key)
    return await shown(pilot, *words, without=without)


async def until_shown(pilot: Any, wanted: Callable[[str], bool], seconds: float = HUNG) -> str:
    """The screen, once two looks show what is wanted and differ only in numbers: it may be drawn in parts."""
    deadline = time.monotonic() + seconds
    before, shown = "", text_of(pilot.app)
    while not (wanted(before) and wanted(shown) and _without_numbers(before) == _without_numbers(shown)):
        assert time.monotonic() < deadline, f"never shown:\n{shown}"
        await pilot.pause(0.05)
        before, shown = shown, text_of(pilot.app)
    return shown


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "#", text)
