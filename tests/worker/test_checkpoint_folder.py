"""A folder of checkpoints: what becomes durable when, what is kept, what is swept, and a disk that is full."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.worker.training import atomic_files, checkpoint
from clusterrun.worker.training.checkpoint import Snapshot

HOST = socket.gethostname()


def numbered(step: int, size: int = 8, optimizer_size: int = 8) -> Snapshot:
    trainer = {"optimizer": {"m": torch.zeros(optimizer_size)}, "scaler": None}
    return Snapshot(step, {"w": torch.full((size,), float(step))}, trainer, {}, "{}")


def steps(folder: Path) -> list[int]:
    return sorted(step for step, _ in checkpoint.found(folder))


def test_nothing_gets_its_name_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 cannot show this, only a power cut could: so the order of the calls is looked at."""
    calls: list[tuple[str, str]] = []
    fsync, rename, replace = os.fsync, os.rename, os.replace
    name = re.compile(rf"-{re.escape(HOST)}-{os.getpid()}\.\w+")

    def short(path: object) -> str:
        return name.sub("", os.path.relpath(str(path), tmp_path))

    def synced(descriptor: int) -> None:
        calls.append(("sync", short(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", lambda a, b: (calls.append(("name", short(b))), rename(a, b)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append(("name", short(b))), replace(a, b)))
    checkpoint.write(tmp_path, numbered(1))
    parts = ["config.json", "manifest.json", "model.safetensors", "state.json", "trainer.pt"]
    assert sorted(calls[:5]) == [("sync", f".tmp-step-00000001/{part}") for part in parts]
    assert calls[5:] == [
        ("sync", ".tmp-step-00000001"),
        ("sync", ".tmp-latest"),
        ("name", "step-00000001"),
        ("sync", "."),
        ("name", "latest"),
        ("sync", "."),
    ]


@settings(max_examples=settings().max_examples, deadline=None)
@given(
    saves=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=7),
    keep_last=st.integers(1, 4),
    resumed_from=st.none() | st.integers(0, 5),
)
def test_pruning_keeps_what_it_must_and_nothing_else(
    saves: list[tuple[int, bool]], keep_last: int, resumed_from: int | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, step, best, in_use = Path(name), 0, None, None
        for number, (gap, is_best) in enumerate(saves):
            step += gap
            path = checkpoint.write(folder, numbered(step))
            best = step if is_best else best
            in_use = path if number == resumed_from else in_use
            before = steps(folder)
            checkpoint.prune(folder, keep_last, best, in_use)
            musts = {best, in_use and int(in_use.name.removeprefix("step-")), *before[-keep_last:]} - {None}
            assert set(steps(folder)) == musts
            for _, kept in checkpoint.found(folder):
                checkpoint.verify(kept)
            assert not [left for left in os.listdir(folder) if left.startswith(".tmp-")]


def test_pruning_leaves_alone_what_is_newer_than_the_one_just_written(tmp_path: Path) -> None:
    """After resume=no in a folder that another run has used, the new ones are the low numbers."""
    for step in (80, 90, 10, 20, 30):
        checkpoint.write(tmp_path, numbered(step))
    checkpoint.prune(tmp_path, keep_last=2)
    assert steps(tmp_path) == [20, 30, 80, 90]


def test_a_checkpoint_moved_aside_counts_until_its_successor_is_there(tmp_path: Path) -> None:
    """What a kill between the two renames of a second save of one step leaves."""
    for step in (1, 2):
        checkpoint.write(tmp_path, numbered(step))
    aside = tmp_path / "step-00000002.replaced"
    (tmp_path / "step-00000002").rename(aside)
    assert checkpoint.newest_valid(tmp_path) == (aside, [])
    checkpoint.prune(tmp_path, keep_last=1)
    assert steps(tmp_path) == [2]
    written = checkpoint.write(tmp_path, numbered(2))
    checkpoint.prune(tmp_path, keep_last=2)
    assert checkpoint.found(tmp_path) == [(2, written)]


@pytest.fixture
def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leftover(folder: Path, name: str, age_s: float = 0.0) -> Path:
    path = folder / name
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"half")
    for touched in (path / "model.safetensors", path):
        os.utime(touched, (time.time() - age_s,) * 2)
    return path


def test_leftovers_of_dead_writers_go_and_those_of_live_ones_stay(tmp_path: Path, ended_pid: int) -> None:
    hour = atomic_files.REMOTE_WRITER_DEAD_S
    dead = [
        leftover(tmp_path, f".tmp-step-00000001-{HOST}-{ended_pid}"),
        leftover(tmp_path, f".tmp-step-00000002.replaced-{HOST}-{ended_pid}"),
        leftover(tmp_path, f".tmp-step-00000003-node-17-{os.getppid()}", age_s=hour + 60),
        leftover(tmp_path, f".tmp-step-00000004-{HOST}-99999999999999999999"),
    ]
    alive = [
        leftover(tmp_path, f".tmp-step-00000001-{HOST}-{os.getppid()}", age_s=2 * hour),
        leftover(tmp_path, f".tmp-step-00000003-node-18-{ended_pid}", age_s=hour - 60),
        leftover(tmp_path, ".tmp-mine", age_s=2 * hour),
    ]
    pointer = tmp_path / f".tmp-latest-{HOST}-{ended_pid}"
    pointer.write_text("step-")
    atomic_files.sweep(tmp_path)
    assert [path.exists() for path in [*dead, pointer]] == [False] * 5
    assert [path.exists() for path in alive] == [True] * 3


def test_a_stranger_whose_folder_is_old_but_whose_file_grows_is_alive(tmp_path: Path) -> None:
    path = leftover(tmp_path, ".tmp-step-00000001-node-17-5", age_s=2 * atomic_files.REMOTE_WRITER_DEAD_S)
    os.utime(path / "model.safetensors")
    atomic_files.sweep(tmp_path)
    assert path.exists()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:  # nothing else is a truly full disk, and only root may make one; CI is root
        pytest.skip(f"a small file system to fill needs a user who may mount one: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(("weights", "moments"), [(300_000, 8), (8, 300_000)], ids=["safetensors", "torch.save"])
def test_a_full_disk_leaves_the_last_good_one_and_no_litter(full_disk: Path, weights: int, moments: int) -> None:
    good = checkpoint.write(full_disk, numbered(1))
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device") as caught:
            checkpoint.write(full_disk, numbered(2, weights, moments))
        assert caught.value.errno == errno.ENOSPC
        assert sorted(os.listdir(full_disk)) == ["latest", "step-00000001"]
        assert (full_disk / "latest").read_text() == "step-00000001\n"
        assert checkpoint.newest_valid(full_disk) == (good, [])


def test_every_place_where_a_disk_can_fill_leaves_the_last_good_one(full_disk: Path) -> None:
    """One page (4 KB) less of room each time: the end of the disk passes through every file of the checkpoint."""
    good = checkpoint.write(full_disk, numbered(1))
    ballast = full_disk / "ballast"
    refused = 0
    for pages in range(12):
        ballast.write_bytes(b"")
        with open(ballast, "wb", buffering=0) as file:
            room = shutil.disk_usage(full_disk).free
            file.write(b"\0" * (room - 4096 * pages))
        try:
            checkpoint.write(full_disk, numbered(2))
            break
        except OSError as error:
            assert error.errno == errno.ENOSPC
        refused += 1
        assert sorted(os.listdir(full_disk)) == ["ballast", "latest", "step-00000001"]
        assert (full_disk / "latest").read_text() == "step-00000001\n"
        assert checkpoint.newest_valid(full_disk) == (good, [])
    assert 5 <= refused < 12
    assert checkpoint.newest_valid(full_disk) == (full_disk / "step-00000002", [])


def test_a_file_size_limit_is_an_oserror_too(tmp_path: Path) -> None:
    good = checkpoint.write(tmp_path, numbered(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint.write(tmp_path, numbered(2, optimizer_size=300_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(os.listdir(tmp_path)) == ["latest", good.name]
