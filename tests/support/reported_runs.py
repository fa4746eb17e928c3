"""Runs for a report, with everything that a page can show, and the structure of a page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.report.collect import collect
from clusterrun.state.reconcile import RunState
from tests.support import run_readers
from tests.support.rank_files import put_end, put_progress
from tests.support.run_records import AT, attempt

NOW = AT + 1000.0
GPU = {"name": "A100", "use": 97.0, "memory_gib": 61.5, "memory_total_gib": 80.0, "temperature": 64.0}


def make_run(store: Store, number: int = 1) -> RunRecord:
    """A run of four ranks that failed, was launched again at step 61, and failed again."""
    run = run_readers.make_run(store, number)
    folders = [attempt(run), _second_launch(run)]
    for folder, began, steps in zip(folders, (AT + 4.0, AT + 400.0), (60, 150), strict=True):
        for rank in range(4):
            put_progress(folder, rank, {
                **run_readers.HEARTBEAT, "rank": rank, "node": f"n{rank // 2 + 1}", "phase": "ending",
                "first_step_at": began + 20, "since": began + 180, "time": began + 190, "step": steps, "steps": 200,
                "compute_s": 0.9 if rank == 3 else 0.3, "data_s": 0.02, "step_s": 0.95, "gpu": GPU,
            })  # fmt: skip
            put_end(folder, rank, {"rank": rank, "node": f"n{rank // 2 + 1}", "status": int(rank == 1),
                                   "error": "ValueError: no" * (rank == 1), "time": began + 191})  # fmt: skip
    rows = [_row(step) for step in range(1, 151)]
    (run.run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    samples = [{"step": step, "prompt": "Once", "text": f"upon {step} times"} for step in (0, 100, 150)]
    (run.run_dir / "samples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in samples))
    return run


def _second_launch(run: RunRecord) -> Path:
    document = run_readers.LAUNCH | {"began": AT + 400.0, "ended": AT + 600.0, "first_step": 61, "step": 150,
                                     "first_step_at": AT + 420.0, "stepped": AT + 580.0}  # fmt: skip
    folder = attempt(run, 0, 1, start=run_readers.START, packages={"packages": ["numpy==2.0"]})
    (folder / "launch.json").write_text(json.dumps(document))
    return folder


def _row(step: int) -> dict[str, Any]:
    values = {"loss": 5 * math.exp(-step / 40) + 1, "lr": 3e-4 * min(1, step / 20), "memory_gib": 61.5,
              "tokens_per_second": 9000 + 300 * math.sin(step), "mfu": 0.41}  # fmt: skip
    held_out = {"val_loss": 5 * math.exp(-step / 40) + 1.1} if step % 25 == 0 else {}
    return {"step": step, **values, **held_out}


def failed(run: RunRecord, **more: Any) -> RunState:
    status = JobStatus(id=JobId(str(run.submission.job_id)), state="FAILED", outcome=Outcome.FAILED, exit_status=1,
                       elapsed=600, time_limit=3600, node_count=2, **more)  # fmt: skip
    return RunState(run, status)


def data_of(run: RunRecord) -> dict[str, Any]:
    return collect(run_readers.RecordsOnly(), failed(run), NOW)


class Structure(HTMLParser):
    """The tags of a page with the names of their attributes, its links, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.links += [
            f"{name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")
        ]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", ()))

    def handle_data(self, data: str) -> None:
        self.text += data


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON data with each text changed, keys too where they are names (of packages and versions)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [with_texts(one, change) for one in value]
    if isinstance(value, dict):
        return {key: with_texts(one, change) for key, one in value.items()}
    return value
