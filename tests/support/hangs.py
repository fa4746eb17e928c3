"""What tests of hangs share: small jobs, a rank that is stopped with SIGSTOP, and what the watchdog left."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterrun.worker.job import hung_step
from clusterrun.worker.node import nccl_ras
from lab.cluster import Lab
from tests.support.installed_command import Job, Site, read_json, until
from tests.support.lm_runs import SHAPE
from tests.support.patience import HUNG
from tests.support.proc import state_of
from tests.support.rank_files import progress_of

LIMIT = 10  # seconds, of --hang-timeout
LATE = 300  # seconds that a test waits
HANG = ("--hang-timeout", str(LIMIT))
WATCHED = (*HANG, "--max-restarts", "20")
SCRIPT = Path(__file__).parents[1] / "data" / "scripts" / "trains_on.py"


def progress(attempt: Path, rank: int) -> dict[str, Any]:
    return progress_of(attempt).get(rank, {})


def collectives(attempt: Path) -> int:
    """The fewest collectives that a rank has recorded."""
    ranks = len((read_json(attempt / "start.json") or {"ranks": [0]})["ranks"])
    return min(sum(progress(attempt, rank).get("collectives", {}).values()) for rank in range(ranks))


@dataclass(frozen=True)
class Ended:
    """A launch that the watchdog ended after a rank was stopped: `after` is from the stop to the next launch, in s."""

    rank: int
    after: float
    hang: dict[str, Any]
    stacks: list[str]


def stop_rank(job: Job, rank: int) -> tuple[Path, int]:
    """Stop a rank of the newest launch with SIGSTOP; return the launch's folder and the pid."""
    attempt = job.attempts()[-1]
    pid = job.pid(rank)
    os.kill(pid, signal.SIGSTOP)
    return attempt, pid


def stop_and_await(job: Job, rank: int) -> Ended:
    """Stop a rank, wait for the next launch, and check what every hang must leave."""
    launches, ranks = len(job.attempts()), len((job.start() or {})["ranks"])
    attempt, pid = stop_rank(job, rank)
    stopped = time.monotonic()
    until(lambda: len(job.attempts()) > launches, LATE, job.err.read_text, pause=0.01)
    after = time.monotonic() - stopped
    hang = read_json(attempt / "hang.json")
    assert hang is not None, job.err.read_text()[-3000:]
    assert (hang["ranks"], hang["pid"], hang["state"]) == ([rank], pid, "stopped (SIGSTOP)"), hang
    assert re.search(rf"rank {rank} on \S+ \(pid {pid}\) is stopped \(SIGSTOP\)", job.err.read_text())
    stacks = sorted(path.name for path in attempt.glob("stacks-rank-*.txt"))
    assert stacks == [f"stacks-rank-{other}.txt" for other in range(ranks) if other != rank], stacks
    assert all('File "' in (attempt / name).read_text() for name in stacks)
    assert state_of(pid) in ("Z", "")
    return Ended(rank, after, hang, stacks)


def submit_script(site: Site, *options: str) -> tuple[Job, Path]:
    """Submit the DDP script; it ends once the returned file exists."""
    end = site.project / f"end-{random.getrandbits(32)}"
    return site.submit(*SHAPE, *options, "--", str(SCRIPT), str(end)), end


def be_patient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the client, and the job that waits for it, all the time of a busy machine."""
    text = Path(nccl_ras.__file__).read_text()
    client = folder / "patient_client.py"
    client.write_text(re.sub(r"(?m)^(LIMIT_S|GREETING_S) = [\d.]+$", rf"\1 = {HUNG}", text))
    assert client.read_text() != text
    monkeypatch.setattr(nccl_ras, "__file__", str(client))
    monkeypatch.setattr(hung_step, "NCCL_S", HUNG)


def start_now(lab: Lab, job: Job) -> None:
    """Let a job that was requeued start again at once, if it has not done so."""
    update = ["scontrol", "update", f"JobId={job.id}", "StartTime=now"]
    until(lambda: lab.run(update).returncode == 0 or len(job.attempts()) > 1, LATE)
