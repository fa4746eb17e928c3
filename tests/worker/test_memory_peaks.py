"""The most memory that a rank and its job hold, from /proc and Slurm's cgroup."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.worker.node import memory
from clusterrun.worker.node.memory import GIB, MemoryPeaks


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "PROC", tmp_path)
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    return tmp_path


def put(proc: Path, pid: int, gib: float, children: str = "") -> None:
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    half = int(gib * 2**20) // 2  # in memory that is shared, as a loader's batches are
    status = f"Name:\tpython\nVmRSS:\t{3 * half} kB\nRssAnon:\t{half} kB\nRssFile:\t{half} kB\nRssShmem:\t{half} kB\n"
    (folder / "status").write_text(status)
    (folder / "task" / str(pid) / "children").write_text(children)


def test_a_rank_counts_with_the_processes_that_it_started_and_its_peak_stays(proc: Path) -> None:
    put(proc, 5, 1.0, "6 7 ")
    put(proc, 6, 0.5)
    put(proc, 7, 0.25, "8 9")
    put(proc, 8, 0.25)  # 9 has ended meanwhile
    peaks = MemoryPeaks()
    assert peaks.look(5) == {"memory_peak_gib": 2.0}
    put(proc, 5, 1.0)
    assert peaks.look(5) == {"memory_peak_gib": 2.0}


def test_of_a_job_in_a_cgroup_all_processes_count_without_the_cache_of_files(proc: Path) -> None:
    (proc / "self").mkdir()
    (proc / "self/cgroup").write_text("0::/system.slice/n1_slurmstepd.scope/job_17/step_0/user/task_1\n")
    job = proc / "system.slice/n1_slurmstepd.scope/job_17"
    job.mkdir(parents=True)
    (job / "memory.stat").write_text(f"anon {3 * GIB}\nfile {60 * GIB}\nshmem {GIB}\n")
    assert MemoryPeaks().look(5) == {"node_memory_peak_gib": 4.0}
    (proc / "self/cgroup").write_text("0::/user.slice\n")
    assert MemoryPeaks().look(5) == {}


def test_a_real_process_and_its_child_are_seen() -> None:
    hold = "x = bytearray(300 * 2**20); print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        peaks = MemoryPeaks().look(parent.pid)
        parent.communicate(b"\n")
    assert 0.29 < peaks["memory_peak_gib"] < 0.5


def test_memory_that_a_process_shares_counts_as_a_limit_of_memory_counts_it() -> None:
    hold = (
        "import mmap; x = mmap.mmap(-1, 300 * 2**20); x.write(bytes(300 * 2**20)); print('ready', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        peaks = MemoryPeaks().look(process.pid)
        process.communicate(b"\n")
    assert 0.29 < peaks["memory_peak_gib"]
