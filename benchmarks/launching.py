"""Start two ranks on this machine, as a batch script of ours does or as torchrun does, and read what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER = Path(__file__).resolve().parents[1] / "clusterrun" / "worker"
LIMIT_S = 900.0


@dataclass(frozen=True)
class Ran:
    """A finished run: its folder, and when its launcher was started (seconds since 1970)."""

    folder: Path
    began: float

    def rows(self) -> dict[int, dict[str, Any]]:
        """Step -> row of the metrics that a task of ours wrote."""
        rows = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row for row in rows}


def ours(project: Path, name: str, arguments: list[str], ranks: int = 2) -> Ran:
    """Run the worker with `arguments` the way a batch script does: the held store, the stand-in for srun, the ranks."""
    folder, variables = _prepare(project, name)
    began = time.time()
    helper = subprocess.Popen(
        [sys.executable, "-u", str(WORKER / "rank" / "rendezvous.py"), "--host", "127.0.0.1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert helper.stdout is not None
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": helper.stdout.readline().strip()}
        local = [
            str(WORKER / "node" / "local_launcher.py"),
            "--devices",
            "cpu",
            "--nodes",
            "1",
            "--tasks-per-node",
            str(ranks),
        ]
        worker = [sys.executable, "-u", str(WORKER / "__main__.py"), *arguments]
        _run([sys.executable, *local, "--", *worker], project, variables | store)
    finally:
        helper.terminate()
        helper.wait()
    return Ran(folder, began)


def torchrun(project: Path, name: str, arguments: list[str], ranks: int = 2) -> Ran:
    """Run the same worker under torchrun."""
    folder, variables = _prepare(project, name)
    began = time.time()
    torch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    _run([*torch, str(WORKER / "__main__.py"), *arguments], project, variables)
    return Ran(folder, began)


def _prepare(project: Path, name: str) -> tuple[Path, dict[str, str]]:
    folder = project / ".clusterrun" / "runs" / name
    (folder / "attempt").mkdir(parents=True)
    ours = {
        "CLUSTERRUN_RUN_DIR": str(folder),
        "CLUSTERRUN_RUN_ID": name,
        "CLUSTERRUN_ATTEMPT_DIR": str(folder / "attempt"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "CLUSTERRUN_", "MASTER_"))}
    return folder, inherited | ours


def _run(command: list[str], cwd: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(command, check=False, cwd=cwd, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
