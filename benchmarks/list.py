"""`clusterrun list` with 10,000 array tasks in the queue and with 1,000 finished runs, against `--help` and squeue.

On a lab of its own: `python -m benchmarks.list`. Medians of interleaved rounds; the memory is the most of any round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from clusterrun.base.job import JobId
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord, SubmissionRecord
from clusterrun.records.store import Store
from lab.cluster import Lab

TASKS, FINISHED, ROUNDS = 10_000, 1_000, 15
CLUSTERRUN = [sys.executable, "-m", "clusterrun"]
COMMANDS = {
    "clusterrun --help": [*CLUSTERRUN, "--help"],
    "squeue --me": ["squeue", "--me", "--noheader"],
    "squeue --me --array": ["squeue", "--me", "--noheader", "--array"],
    "clusterrun list": [*CLUSTERRUN, "list"],
    "clusterrun list --expand": [*CLUSTERRUN, "list", "--expand"],
    "clusterrun list --expand --json": [*CLUSTERRUN, "list", "--expand", "--json"],
}
OF_HISTORY = {"clusterrun list": [*CLUSTERRUN, "list"], "clusterrun list --all": [*CLUSTERRUN, "list", "--all"]}


def main() -> None:
    """Print seconds, the difference to `--help`, and the memory."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(
            name=f"list{os.getpid()}", accounting=False, settings={"MaxArraySize": "20001", "MaxJobCount": "50000"}
        ) as lab,
    ):
        env = {**lab.full_env(), "CLUSTERRUN_STATE": f"{folder}/state", "HOME": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # who uses a program has its byte code
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {ROUNDS} rounds")
        held = ["sbatch", "--hold", f"--array=0-{TASKS - 1}", "--output=/dev/null", "--wrap=true"]
        assert lab.run(held).returncode == 0
        print(f"\n{TASKS:,} held array tasks in the queue")
        report(measured(COMMANDS, env, folder))
        lab.run(["scancel", "--me"])
        project = Path(folder) / "project"
        finished(project, Path(folder) / "state", lab.cluster_name)
        print(f"\n{FINISHED:,} finished runs in the store")
        report(measured({"clusterrun --help": COMMANDS["clusterrun --help"], **OF_HISTORY}, env, str(project)))


def measured(
    commands: dict[str, list[str]], env: dict[str, str], cwd: str
) -> dict[str, tuple[list[float], float, int]]:
    """Each command's seconds, its memory in MiB at most, and the lines it printed."""
    found: dict[str, tuple[list[float], float, int]] = {}
    for number in range(ROUNDS + 1):
        for name, argv in commands.items():
            began = time.perf_counter()
            process = subprocess.Popen(argv, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert process.stdout is not None
            lines = process.stdout.read().count(b"\n")
            _, status, usage = os.wait4(process.pid, 0)
            took = time.perf_counter() - began
            process.returncode = status
            assert status == 0, name
            if number:  # the first warms the caches
                seconds, memory, _ = found.get(name, ([], 0.0, 0))
                found[name] = ([*seconds, took], max(memory, usage.ru_maxrss / 1024), lines)
    return found


def report(found: dict[str, tuple[list[float], float, int]]) -> None:
    """Print one line per command."""
    base = statistics.median(found["clusterrun --help"][0])
    for name, (seconds, memory, lines) in found.items():
        median = statistics.median(seconds)
        print(f"{name:32} {median:6.3f} s  {median - base:+6.3f} s  {median / base:5.1f} x --help"
              f"  {memory:5.0f} MiB  {lines:6} lines")  # fmt: skip


def finished(project: Path, state: Path, cluster: str) -> None:
    """Record finished runs in the project, each a month old and with training figures."""
    (project / "logs").mkdir(parents=True)
    run_record.os.fsync = lambda _: None  # type: ignore[attr-defined]  # the disk is not what is measured
    store = Store(project, state)
    at = int(time.time()) - 30 * 86_400
    for number in range(FINISHED):
        token = f"{number:04}".translate(str.maketrans("0123456789", "bcdefghijk")) + "a" * 12
        run_id = f"20261001-{number:06}-aaaaaa"
        run = RunRecord(
            run_id=run_id, run_dir=store.runs / run_id, root=project, name=f"train{number}", what="train.py",
            scheduler="slurm", cluster=cluster, user="me", at=at + number, nodes=2, tasks_per_node=4, shared=False,
            sources={f"option{one}": (one, "jobs/lm.toml") for one in range(25)},
            submissions=(SubmissionRecord(token=token, at=at + number),),
        )  # fmt: skip
        store.stage(run, {}, "#!/bin/bash\n")
        run = store.commit(run, JobId(str(100_000 + number)))
        rows = ({"step": step, "time": at + step, "loss": 3.0, "tokens_per_second": 1e5} for step in range(200))
        (run.run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        final = {"state": "COMPLETED", "exit_status": 0, "ended": at + 900, "elapsed": 800, "nodes": "n[1-2]",
                 "figures": {"step": 199, "loss": 3.0, "tokens_per_second": 1e5}}  # fmt: skip
        store.save_submission(run, replace(run.submission, final=final))


if __name__ == "__main__":
    main()
