"""Memory that really runs out: a limit on the address space of a process that trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def short_of_memory(micro: int, auto: bool, folder: Path, more: int = 700) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("runs_short_of_memory.py")
    command = [sys.executable, str(script), str(micro), "auto" if auto else "fixed", str(folder), str(more)]
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=280)


def test_out_of_memory_names_the_figures_and_the_same_global_batch_in_smaller_pieces(tmp_path: Path) -> None:
    done = short_of_memory(64, False, tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "out of memory on cpu, peak " in done.stderr
    assert " GiB, 0." in done.stderr and " GiB free" in done.stderr
    assert "set micro_batch_size=32 grad_accum_steps=2 (the same global batch of 64)" in done.stderr


def test_an_evaluation_that_runs_out_of_memory_gets_the_same_line(tmp_path: Path) -> None:
    done = short_of_memory(64, False, tmp_path, 200)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "set micro_batch_size=32 grad_accum_steps=2 (the same global batch of 64)" in done.stderr
    assert not (tmp_path / "metrics.jsonl").exists(), "the evaluation before the first step failed"


def test_auto_micro_batch_finds_one_that_fits_and_keeps_the_global_batch(tmp_path: Path) -> None:
    done = short_of_memory(64, True, tmp_path)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split("global batch 64 = micro batch ")[1].split()
    micro, accum = int(words[0]), int(words[5])
    assert micro < 64
    assert micro * accum == 64
