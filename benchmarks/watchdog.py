"""What the watchdog costs in the training loop: step time of `lm` with it over step time without it.

Two ranks on this machine, jobs with and without `--hang-timeout 0` take turns. A round's figure is the median over
every ten steps. `python -m benchmarks.watchdog [--rounds N] [--steps N]`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

CLUSTERRUN = str(Path(sys.executable).with_name("clusterrun"))
EVERY = 10  # steps between two rows of the metrics
SETTINGS = ("eval_every=0", "eval_samples=8", "save_every=0", f"log_every={EVERY}", "vocab=1000", "seq_len=128",
            "global_batch_size=8")  # fmt: skip
WAYS = {"with the watchdog": "10", "without": "0"}  # --hang-timeout; 10 has the most heartbeats


def main() -> None:
    """Print the medians of both ways and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        step_times(Path(folder), "0", 2 * EVERY)  # prepares the data
        for number in range(options.rounds):
            for way in [*WAYS][:: 1 if number % 2 else -1]:
                taken[way].append(statistics.median(step_times(Path(folder), WAYS[way], options.steps)))
                print(f"  {number + 1}/{options.rounds} {way}: {1000 * taken[way][-1]:.2f} ms", file=sys.stderr)
    watched, plain = taken.values()
    print(f"step time of lm, 2 ranks (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)")
    for way, values in taken.items():
        low, middle, high = (1000 * figure for figure in (min(values), statistics.median(values), max(values)))
        print(f"{way:18} {middle:7.2f} ms ({low:.2f} to {high:.2f})")
    ratios = [a / b for a, b in zip(watched, plain, strict=True)]
    print(f"ratio of the medians {statistics.median(watched) / statistics.median(plain):.4f}; aim: at most 1.01")
    print(f"of the fastest rounds {min(watched) / min(plain):.4f}; by round {min(ratios):.3f} to {max(ratios):.3f}")


def step_times(project: Path, hang_timeout: str, steps: int) -> list[float]:
    """Train once and return the seconds per step, over every ten steps but the first."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "CLUSTERRUN_"))}
    environ |= {"CLUSTERRUN_STATE": str(project / "state"), "OMP_NUM_THREADS": "1"}
    shape = ("--scheduler", "local", "--gpus-per-node", "0", "--tasks-per-node", "2", "--hang-timeout", hang_timeout)
    settings = [word for setting in (*SETTINGS, f"steps={steps}") for word in ("--set", setting)]
    command = [CLUSTERRUN, "submit", "--json", *shape, *settings, "lm"]
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=True)
    data = json.loads(done.stdout)["data"]
    subprocess.run([CLUSTERRUN, "wait", data["job_id"]], cwd=project, env=environ, capture_output=True, check=True)
    rows = map(json.loads, (Path(data["run_dir"]) / "metrics.jsonl").read_text().splitlines())
    times = [row["time"] for row in rows if row["step"] and row["step"] % EVERY == 0]
    return [(after - before) / EVERY for before, after in pairwise(times)]


if __name__ == "__main__":
    main()
