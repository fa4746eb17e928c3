"""Real ranks on this machine: the held store, the stand-in for srun and the worker, as a batch script runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import HUNG
from tests.support.rank_files import ends_of
from tests.support.warm_programs import RANKS, WarmProcess, WarmPrograms

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "clusterrun" / "worker"
DATA = ROOT / "tests" / "data"


@dataclass(frozen=True)
class Done:
    """How a step ended, and what it left in its attempt folder."""

    status: int
    out: str
    err: str
    run_dir: Path

    def lines(self, rank: int) -> list[str]:
        """What one rank said on stdout."""
        return [t for who, _, t in (line.partition(": ") for line in self.out.splitlines()) if who.strip() == str(rank)]

    def json(self, name: str) -> dict[str, Any]:
        return json.loads((self.run_dir / "attempt" / name).read_text())

    def has(self, name: str) -> bool:
        return (self.run_dir / "attempt" / name).exists()

    def statuses(self) -> dict[int, int]:
        """Rank -> status, over the end records that exist."""
        return {rank: end["status"] for rank, end in self.ends().items()}

    def ends(self) -> dict[int, dict[str, Any]]:
        """The end records that exist, by rank."""
        return ends_of(self.run_dir / "attempt")


def write_llama(folder: Path, **settings: Any) -> None:
    """Make a model folder of an architecture without weights, and without an import of transformers in this process."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **settings}))


Starter = Callable[..., Done]
Process = subprocess.Popen[str] | WarmProcess


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmPrograms]:
    """Start ranks of tasks without importing torch and transformers in each."""
    ranks = WarmPrograms(*RANKS)
    yield ranks
    ranks.close()


@pytest.fixture
def step(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Starter]:
    """Run one step of nodes x tasks ranks to its end: `step(2, 2, "script", "--", "train.py")`.

    The ranks of a task are forked (`warm`); scripts, modules and commands get interpreters of their own, unless their
    test looks at what comes after the imports and says `forked=True`.
    `environ` overrides the batch script's variables. `during(process, helper)` is called once the step runs.
    `run` is the run's folder under tmp_path; the same one again is its next attempt.
    """
    started: list[Process] = []

    def start(
        nodes: int,
        tasks: int,
        *arguments: str,
        environ: dict[str, str] | None = None,
        during: Callable[[Any, subprocess.Popen[str]], None] | None = None,
        cwd: Path = DATA,
        run: str = "",
        forked: bool = False,
    ) -> Done:
        run_dir = tmp_path / run
        attempt = run_dir / "attempt"
        shutil.rmtree(attempt, ignore_errors=True)  # of the run's earlier attempt
        attempt.mkdir(parents=True)
        (attempt / "nodes").write_text("\n".join(f"local{i}" for i in range(nodes)))
        helper = subprocess.Popen(
            [
                sys.executable,
                "-u",
                WORKER / "rank" / "rendezvous.py",
                "--host",
                "127.0.0.1",
                "--clients",
                str(nodes * tasks),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(helper)
        assert helper.stdout is not None
        variables = os.environ | {
            "CLUSTERRUN_RUN_DIR": str(run_dir),
            "CLUSTERRUN_RUN_ID": run.rpartition("/")[2] or "run1",
            "CLUSTERRUN_ATTEMPT_DIR": str(attempt),
            "CLUSTERRUN_WORLD_SIZE": str(nodes * tasks),
            "CLUSTERRUN_NODES": str(nodes),
            "CLUSTERRUN_JOIN_TIMEOUT": f"{HUNG:.0f}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": helper.stdout.readline().strip(),
            "OMP_NUM_THREADS": "1",
        }
        variables |= environ or {}
        script = WORKER / "node" / "local_launcher.py"
        local = ["--devices", "cpu", "--nodes", str(nodes), "--tasks-per-node", str(tasks)]
        local += ["--", sys.executable, "-u", str(WORKER / "__main__.py"), *arguments]
        process: Process
        if arguments[0] == "task" or forked:
            process = request.getfixturevalue("warm").start(script, *local, cwd=cwd, env=variables)
        else:
            process = subprocess.Popen(
                [sys.executable, str(script), *local],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=cwd,
                env=variables,
            )
        started.append(process)
        if during is not None:
            during(process, helper)
        out, err = process.communicate(timeout=2 * HUNG)
        helper.terminate()
        return Done(process.returncode, out, err, run_dir)

    yield start
    for process in reversed(started):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(HUNG)


@pytest.fixture
def worker_root() -> Path:
    """The repository's root, from which `python -m clusterrun.worker` is found."""
    return ROOT
