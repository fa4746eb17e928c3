"""Runs for tests of records and states: staged, submitted, and written to by a job that is not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.job import JobId
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder.submissions import SubmissionRecord

AT = 1_795_000_000
TOKEN = "k3v7qaabcdefghij"


def make_run(root: Path, number: int = 1, **more: Any) -> RunRecord:
    """A run that is not written anywhere yet."""
    run_id = f"20261121-{number:06}-k3v7qa"
    token = f"{'abcdefghij'[number % 10]}{TOKEN[1:]}"
    values: dict[str, Any] = {
        "run_id": run_id, "run_dir": root / ".clusterrun" / "runs" / run_id, "root": root, "name": f"train{number}",
        "what": "train.py --lr 1", "scheduler": "slurm", "cluster": "lab", "user": "ann", "at": AT + number, "nodes": 2,
        "workers_per_node": 4, "shared": False,
        "sources": {"nodes": (2, "--nodes"), "env": ({"A": "b"}, "jobs/x.toml")},
        "submissions": (SubmissionRecord(token=token, at=AT + number),),
    }  # fmt: skip
    return RunRecord(**{**values, **more})


def submitted(store: Store, number: int = 1, job: str = "", **more: Any) -> RunRecord:
    """A run that became a job."""
    run = make_run(store.base, number, **more)
    store.stage(run, {"version": 1}, "#!/bin/bash\n")
    return store.commit(run, JobId.parse(job or str(100 + number)))


def claim(run: RunRecord, job: str = "", restart: int = 0) -> None:
    """What a job does first."""
    folder = run.run_dir / "claims" / run.submission.token
    folder.mkdir(exist_ok=True)
    (folder / "owner").write_text(f"{run.cluster} {job or run.submission.job_id} {restart}\n")


def attempt(run: RunRecord, restart: int = 0, launch: int = 0, **files: Any) -> Path:
    """An attempt's folder with its JSON files, by their names."""
    folder = run.run_dir / "attempts" / f"{run.submission.token}.{restart}.{launch}"
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return folder


def end(status: int = 0, **more: Any) -> dict[str, Any]:
    """An end record as the script writes it."""
    return {"version": 1, "status": status, "signal": "", "reason": "", "due": "", "restart": 0, "launch": 0,
            "time": AT + 600} | more  # fmt: skip


def with_submission(run: RunRecord, **more: Any) -> RunRecord:
    return replace(run, submissions=(replace(run.submission, **more),))
