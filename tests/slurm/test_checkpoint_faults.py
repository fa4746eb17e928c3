"""A rank killed, or a disk that fills, while a checkpoint is written: the one before is whole, and it is used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.faults_table import Figure
from tests.support.installed_command import Job, Site, until
from tests.support.lm_runs import LIMIT, weights
from tests.support.patience import HUNG

SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "1")
SETTINGS = (
    "steps=600",
    "eval_every=0",
    "save_every=2",
    "log_every=5",
    "vocab=300",
    "seq_len=16",
    "global_batch_size=4",
)
TIMES = 20
DISK_MIB = 64  # holds the checkpoints that a run keeps

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("only root mounts a disk")  # mount refuses; CI is root
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", disk], check=True, timeout=HUNG)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True, timeout=HUNG)


@pytest.fixture
def disk_site(small_disk: Path, tmp_path: Path) -> Iterator[Site]:
    """A site on a lab of its own: nodes see only the disks that were mounted before they started."""
    with Lab(name=f"t{os.getpid()}d", nodes=2, accounting=False) as lab:
        site = Site(tmp_path, lab)
        yield site
        site.close()


def lm(site: Site, *options: str) -> Job:
    return site.submit(*SHAPE, *options, *(word for setting in SETTINGS for word in ("--set", setting)), "lm")


def whole(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, newest first; each must be as its manifest says."""
    steps = []
    for path in folder.glob("step-*[0-9]"):
        try:
            manifest = json.loads((path / "manifest.json").read_bytes())
            for name, entry in manifest["files"].items():
                data = (path / name).read_bytes()
                found = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                assert found == entry, f"{path.name}/{name}"
        except FileNotFoundError:
            if path.exists():
                raise
            continue  # the run removes old checkpoints meanwhile
        steps.append(int(path.name[5:]))
    return sorted(steps, reverse=True)


def in_a_write(folder: Path) -> bool:
    """Whether a checkpoint is being written, after a first one."""
    names = os.listdir(folder) if folder.exists() else []
    return any(name.startswith(".tmp-step") for name in names) and any(name.startswith("step-") for name in names)


def newest(folder: Path) -> int:
    names = os.listdir(folder) if folder.exists() else []
    return max((int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name)), default=0)


def fill(ballast: Path) -> None:
    """Fill a disk up to its last byte."""
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 2**16)
        except OSError:
            pass


def writer(job: Job) -> int:
    """The pid of rank 0 of the newest launch."""
    until(job.start, LIMIT, job.err.read_text)
    return job.pid(0)


def next_launch(job: Job, launches: int) -> None:
    until(lambda: len(job.attempts()) > launches and job.start(), LIMIT, job.err.read_text)


def test_kills_during_a_write(site: Site, figure: Figure) -> None:
    undisturbed = lm(site)
    site.wait_state(undisturbed, "COMPLETED", timeout=LIMIT)
    job = lm(site, "--max-restarts", str(TIMES))
    folder, next_steps = job.run_dir / "checkpoints", 0
    for kill in range(TIMES):
        next_launch(job, kill)
        pid = writer(job)
        until(lambda after=next_steps: in_a_write(folder) and newest(folder) > after, LIMIT, job.err.read_text, pause=0)
        os.kill(pid, signal.SIGKILL)
        until(lambda gone=pid: not Path(f"/proc/{gone}").exists(), LIMIT, job.err.read_text)
        steps = whole(folder)
        assert steps
        next_steps = steps[0]
        until(lambda step=next_steps: f"(step {step})" in job.out.read_text(), LIMIT, job.out.read_text)
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)
    assert state["state"] == "COMPLETED" and len(state["failed_launches"]) == TIMES, job.err.read_text()[-3000:]
    assert weights(job) == weights(undisturbed)
    figure(8, f"kill -9: {TIMES} of {TIMES} continued from the checkpoint before, bitwise")


def test_full_disks_during_a_write(disk_site: Site, small_disk: Path, figure: Figure) -> None:
    site = disk_site
    undisturbed = lm(site)
    site.wait_state(undisturbed, "COMPLETED", timeout=LIMIT)
    job = lm(site, "--max-restarts", str(TIMES), "--set", f"checkpoint_dir={small_disk}/kept")
    folder, ballast, before = small_disk / "kept", small_disk / "ballast", 0
    for number in range(TIMES):
        next_launch(job, number)
        pid, failed = writer(job), job.err.read_text().count("NOT SAVED")
        until(lambda after=before: newest(folder) > after, LIMIT, job.err.read_text)
        fill(ballast)
        until(lambda seen=failed: job.err.read_text().count("NOT SAVED") > seen, LIMIT, job.err.read_text)
        before = whole(folder)[0]
        os.kill(pid, signal.SIGKILL)
        ballast.unlink()
        until(lambda step=before: f"(step {step})" in job.out.read_text(), LIMIT, job.out.read_text)
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)
    assert state["state"] == "COMPLETED", job.err.read_text()[-3000:]
    assert weights(job) == weights(undisturbed)
    figure(8, f"disk full: {TIMES} of {TIMES} kept the checkpoint before and continued from it, bitwise")
