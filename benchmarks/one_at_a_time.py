"""What `--local-main-process-first` gains and costs: the time of a whole job of 8 ranks, with the option over without.

Each job starts on empty caches (cold), then again on those that it left (warm). `import` is a script that imports
transformers without byte code; `compile` trains `lm` for two steps with compile=true and torch's cache of kernels.
`python -m benchmarks.one_at_a_time [--rounds N] [--ranks N] [import] [compile]`
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLUSTERRUN = str(Path(sys.executable).with_name("clusterrun"))
SCRIPT = """
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
import torch, torch.distributed as dist
AutoModelForCausalLM, AutoTokenizer, Trainer
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
LM = ("compile=true", "steps=2", "eval_every=0", "save_every=0", "vocab=300", "seq_len=64")
OPTIONS = {"together": (), "in turn": ("--local-main-process-first",)}


def main() -> None:
    """Run all jobs in turns, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("works", nargs="*", choices=["import", "compile", []])
    options = parser.parse_args()
    taken: dict[tuple[str, str, str], list[float]] = {}
    for number in range(options.rounds):
        for work in options.works or ("import", "compile"):
            for way in [*OPTIONS][:: 1 if number % 2 else -1]:
                with tempfile.TemporaryDirectory() as folder:
                    for caches in ("cold", "warm"):
                        seconds = run(Path(folder), work, OPTIONS[way], options.ranks)
                        taken.setdefault((work, caches, way), []).append(seconds)
                        print(
                            f"  {number + 1}/{options.rounds} {work} {caches} {way}: {seconds:.1f} s", file=sys.stderr
                        )
    print(f"job of {options.ranks} ranks (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)")
    for work, caches, way in taken:
        if way == "together":
            together, in_turn = (statistics.median(taken[work, caches, each]) for each in OPTIONS)
            print(f"{work:8} {caches}: {together:6.1f} s together, {in_turn:6.1f} s in turn: {in_turn / together:.2f}")


def run(folder: Path, work: str, options: tuple[str, ...], ranks: int) -> float:
    """Run one job on this machine, with caches in `folder`; return its seconds."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "CLUSTERRUN_"))}
    environ |= {"CLUSTERRUN_STATE": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    project = folder / "project"
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text(SCRIPT)
    shape = ("--scheduler", "local", "--gpus-per-node", "0", "--tasks-per-node", str(ranks), "--follow")
    caches = {"import": ("PYTHONPYCACHEPREFIX", "byte-code"), "compile": ("TORCHINDUCTOR_CACHE_DIR", "kernels")}
    variable, name = caches[work]
    settings = [word for setting in (*LM, f"global_batch_size={ranks}") for word in ("--set", setting)]
    target = ["--", "train.py"] if work == "import" else [*settings, "lm"]
    command = [CLUSTERRUN, "submit", *shape, "--env", f"{variable}={folder / name}", *options, *target]
    began = time.monotonic()
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{work}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
