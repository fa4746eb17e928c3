"""How far `plan --measure` is off: its predictions over its measurements, on lab nodes whose links are slowed.

`python -m benchmarks.plan_measure [--rates 100mbit,1gbit] [--steps 80] [--rounds 3]`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from lab import Lab, available

GBIT = {"100mbit": "0.1", "1gbit": "1"}
SHAPE = ("--gpus-per-node", "0", "--tasks-per-node", "1", "--micro-batch", "4")


def main() -> None:
    """Print the median error for each rate and number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="100mbit,1gbit")
    parser.add_argument("--steps", default="80")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if reason := available():
        sys.exit(reason)
    errors: dict[tuple[str, float], list[float]] = defaultdict(list)
    with Lab(name="plan", nodes=4) as lab, tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for rate in options.rates.split(","):
                for node in lab.node_names:
                    lab.slow_link(node, rate)
                for row in measure(lab, Path(folder), GBIT[rate], options.steps):
                    error = row["predicted_tokens_per_second"] / row["tokens_per_second"] - 1
                    errors[rate, row["gpus"]].append(error)
                    print(f"  {number + 1}/{options.rounds} {rate} {row['gpus']} nodes: {100 * error:+.0f} %",
                          file=sys.stderr)  # fmt: skip
    print(f"prediction against measurement (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)")
    for (rate, nodes), found in errors.items():
        low, middle, high = (100 * figure for figure in (min(found), statistics.median(found), max(found)))
        print(f"{rate:>8} {nodes} nodes {middle:+6.1f} %  ({low:+.0f} to {high:+.0f}); aim: within 20 %")


def measure(lab: Lab, project: Path, gbit: str, steps: str) -> list[dict[str, float]]:
    """Measure one, two and four nodes and return the rows of the last two."""
    environ = {**os.environ, **lab.env, "CLUSTERRUN_STATE": str(project / "state"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "clusterrun", "plan", "--json", "lm", "--measure", "--gpus", "1,2,4", *SHAPE,
               "--network", gbit, "--measure-steps", steps]  # fmt: skip
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=True)
    rows: list[dict[str, float]] = json.loads(done.stdout)["data"]["measured"]
    return rows[1:]


if __name__ == "__main__":
    main()
