"""Measure how exact the time left of `status` is in five trainings, and that a training without output shows none.

The figure is the time left that `status` showed, over the time that the rest then took. On a machine with other work
that time depends on what the others do; the second figure compares the processor time that the rank would have got in
the time shown, at its share until then, with what it then used. `python -m benchmarks.eta [--seconds N] [WAY …]`
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clusterrun.run_folder import rank_records, training_progress

CLUSTERRUN = str(Path(sys.executable).with_name("clusterrun"))
SCRIPT = str(Path(__file__).with_name("peers") / "prints_progress.py")
LM = ("eval_every=0", "save_every=0", "vocab=1000", "seq_len=128", "global_batch_size=8")
#: Steps in a second on a quiet machine, by way of printing.
STEPS = {"lm": 18.0, "tqdm": 12.0, "trainer": 13.0, "epochs": 12.0, "lines": 12.0, "nothing": 12.0}


def main() -> None:
    """Train in each way, and print what was shown and what was true."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("ways", nargs="*", choices=[*STEPS, []])
    options = parser.parse_args()
    print(f"{'prints':9}{'steps':>7}{'at':>6}{'left, shown':>13}{'true':>8}{'ratio':>7}{'of processor':>14}{'load':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for way in options.ways or STEPS:
            line = measure(Path(folder), way, int(STEPS[way] * options.seconds))
            print(f"{line}{os.getloadavg()[1]:6.1f}", flush=True)


def measure(project: Path, way: str, steps: int) -> str:
    """Train once; return the line of the table."""
    shape = ("--scheduler", "local", "--gpus-per-node", "0", "--tasks-per-node", "1", "--json")
    settings = [word for setting in (*LM, f"steps={steps}") for word in ("--set", setting)]
    work = [*settings, "lm"] if way == "lm" else ["--", SCRIPT, way, str(steps)]
    job = run(project, "submit", *shape, *work)
    shown, is_over = None, False
    used: list[tuple[float, float]] = []  # times, and the rank's processor time until then, both in seconds
    while not is_over:
        time.sleep(1.0)
        now, (state,) = time.time(), run(project, "status", job["job_id"], "--json")
        used += processor_time(Path(job["run_dir"]), now)
        figures = state["metrics"] or {}
        if shown is None and state["seconds_left"] and figures["step"] >= figures["steps"] / 10:
            shown = now, figures["step"] / figures["steps"], state["seconds_left"]
        is_over = state["state"] not in ("PENDING", "RUNNING")
    (attempt,) = Path(job["run_dir"], "attempts").iterdir()
    last = training_progress.load(attempt)
    if shown is None or last is None:
        claims = "nothing" if last is None else f"step {last.step} of {last.steps}, no time"
        return f"{way:9}{steps:7}  {state['state']}: {claims} shown".ljust(64)
    at, part, left = shown
    before = [(when, cpu) for when, cpu in used if (last.first_step_at or 0.0) <= when <= at]
    share = (before[-1][1] - before[0][1]) / (before[-1][0] - before[0][0])
    true, of_processor = last.stepped - at, left * share / (used[-1][1] - before[-1][1])
    return f"{way:9}{steps:7}{part:6.0%}{left:11.1f} s{true:6.1f} s{left / true:7.2f}{of_processor:14.2f}"


def processor_time(run_dir: Path, now: float) -> list[tuple[float, float]]:
    """Return the time with the rank's processor time; nothing before it has started or after its end."""
    try:
        (attempt,) = Path(run_dir, "attempts").iterdir()
        pid = rank_records.read_node(attempt, 0)[0][0]["pid"]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, KeyError, ValueError):
        return []
    return [(now, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))]


def run(project: Path, *words: str) -> Any:
    """Run a command and return the data that it prints."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "CLUSTERRUN_"))}
    environ |= {"CLUSTERRUN_STATE": str(project / "state"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([CLUSTERRUN, *words], cwd=project, env=environ, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["data"]


if __name__ == "__main__":
    main()
