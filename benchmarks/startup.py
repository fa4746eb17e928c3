"""How long `clusterrun` takes to start, as ratios to a bare interpreter and to one that imports click.

Medians of interleaved runs by hyperfine (a Debian package), in one run on one machine; absolute times mean little.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PEERS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import click'": [sys.executable, "-c", "import click"],
    "clusterrun --help": [sys.executable, "-m", "clusterrun", "--help"],
    "clusterrun list": [sys.executable, "-m", "clusterrun", "list"],
    "clusterrun render": [sys.executable, "-m", "clusterrun", "render", "--nodes", "2", "--gpus-per-node", "4"],
}


def main() -> None:
    """Print each command's median and its ratio to `import click`."""
    if shutil.which("hyperfine") is None:
        sys.exit("hyperfine is missing: apt-get install hyperfine")
    env = dict(os.environ)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # who uses a program has its byte code
    with tempfile.TemporaryDirectory() as folder:
        env["CLUSTERRUN_STATE"] = str(Path(folder) / "state")  # not the old runs of who measures
        result = Path(folder) / "result.json"
        commands = [" ".join(f"'{word}'" for word in argv) for argv in PEERS.values()]
        subprocess.run(
            ["hyperfine", "--warmup", "3", "--runs", "20", "--ignore-failure", "--export-json", str(result), *commands],
            check=True,
            cwd=folder,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        medians = [entry["median"] for entry in json.loads(result.read_text())["results"]]
    took = dict(zip(PEERS, medians, strict=True))
    base = took["python -c 'import click'"]
    for name, median in took.items():
        print(f"{name:28} {median * 1000:7.0f} ms   {median / base:5.2f} x import click")
    more = took["clusterrun list"] - took["clusterrun --help"]
    print(f"clusterrun list takes {more * 1000:.0f} ms more than --help (to be at most 60; --help at most 1.2 x)")


if __name__ == "__main__":
    main()
