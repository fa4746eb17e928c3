"""How long a submission takes, as ratios to sbatch itself, a minimal submitit script and TorchX, on the lab.

The nodes are drained, so no job starts; TorchX needs accounting. Medians of 15 runs each by hyperfine (a
Debian package). TorchX is measured if its command is on PATH (``pip install torchx`` into its own environment).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lab import Lab, available

SUBMITIT = """
import submitit
executor = submitit.SlurmExecutor(folder="pickles", python={python!r})
executor.update_parameters(time=5, additional_parameters={{"hold": True}})
print(executor.submit(print, 1).job_id)
"""


def main() -> None:
    """Print each way's median and its ratio to the submitit script."""
    reason = available() or (None if shutil.which("hyperfine") else "hyperfine is missing: apt-get install hyperfine")
    if reason:
        sys.exit(reason)
    with Lab(name="bench") as lab, tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "submitit_one.py").write_text(SUBMITIT.format(python=sys.executable))
        (project / "train.py").write_text("print(1)\n")
        ours = f"'{sys.executable}' -m clusterrun submit --gpus-per-node 1 --sbatch-arg=--hold -- train.py"
        ways = {
            "sbatch": "sbatch --hold --wrap true",
            "a minimal submitit script": f"'{sys.executable}' submitit_one.py",
            "clusterrun submit": ours,
            "clusterrun submit --no-check": ours.replace(" submit ", " submit --no-check "),
        }
        if torchx := shutil.which("torchx"):
            ways["torchx run"] = f"{torchx} run -s slurm --workspace '' dist.ddp -j 1x1 --script train.py"
        nodes = lab.run(["scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=benchmark"])
        assert nodes.returncode == 0, nodes.stderr
        result = project / "result.json"
        env = {**os.environ, **lab.env, "CLUSTERRUN_STATE": str(project / "state")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # who uses a program has its byte code
        subprocess.run(
            ["hyperfine", "--warmup", "2", "--runs", "15", "--export-json", str(result), *ways.values()],
            check=True,
            cwd=project,
            env=env,
            stdout=subprocess.DEVNULL,
        )
        medians = [entry["median"] for entry in json.loads(result.read_text())["results"]]
    base = medians[1]
    for name, median in zip(ways, medians, strict=True):
        print(f"{name:30} {median * 1000:7.0f} ms   {median / base:5.2f} x submitit")


if __name__ == "__main__":
    main()
