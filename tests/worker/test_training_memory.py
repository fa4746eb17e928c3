"""Memory that really runs out: a limit on the address space of a process that trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


#: (micro batch, "auto" or "fixed", MiB above what the process has) of each test.
CASES = {"training": (64, "fixed", 700), "evaluating": (64, "fixed", 200), "fitting": (64, "auto", 700)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each case left: its status, its two streams and its run, in a folder of its own."""
    folder = tmp_path_factory.mktemp("short")
    script = Path(__file__).with_name("runs_short_of_memory.py")
    command = [sys.executable, str(script), str(folder), json.dumps(CASES)]
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    subprocess.run(command, env=environ, timeout=280, check=True)
    return folder


def ended(folder: Path, case: str) -> tuple[int, str, str]:
    status, out, err = ((folder / case / name).read_text() for name in ("status", "out", "err"))
    return int(status), out, err


def test_out_of_memory_names_the_figures_and_the_same_global_batch_in_smaller_pieces(folder: Path) -> None:
    status, _, err = ended(folder, "training")
    assert status == 1
    assert len(err.strip().splitlines()) == 1, err
    assert "out of memory on cpu, peak " in err
    assert " GiB, 0." in err and " GiB free" in err
    assert "set micro_batch_size=32 grad_accum_steps=2 (the same global batch of 64)" in err


def test_an_evaluation_that_runs_out_of_memory_gets_the_same_line(folder: Path) -> None:
    status, _, err = ended(folder, "evaluating")
    assert status == 1
    assert len(err.strip().splitlines()) == 1, err
    assert "set micro_batch_size=32 grad_accum_steps=2 (the same global batch of 64)" in err
    assert not (folder / "evaluating" / "metrics.jsonl").exists(), "the evaluation before the first step failed"


def test_auto_micro_batch_finds_one_that_fits_and_keeps_the_global_batch(folder: Path) -> None:
    status, out, err = ended(folder, "fitting")
    assert status == 0, err
    words = out.split("global batch 64 = micro batch ")[1].split()
    micro, accum = int(words[0]), int(words[5])
    assert micro < 64
    assert micro * accum == 64


def test_a_step_on_the_cpu_gets_the_pages_that_the_last_one_freed() -> None:
    code = """
import resource, torch
from clusterrun.worker.training.memory import keep_freed_memory
keep_freed_memory()
for step in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(2**20) for _ in range(10)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, timeout=280, check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) < 100  # 10,000 if all are new
