"""How fast one GPU trains SmolLM2's shapes: our `lm` against transformers' Trainer with the same settings.

Tokens per second, the share of the GPU's dense 16-bit peak (MFU) and peak memory, at sequence 2048 in bf16, plain and
compiled; medians of runs that take turns. `--tiny` walks the same path in a minute on a CPU, where the figures mean
nothing. `python -m benchmarks.train_gpu [--rounds N] [--micro N] [--tiny]`
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.train import prepared, write_rows
from clusterrun.base.gpus import peak_flops
from clusterrun.worker.models import presets
from clusterrun.worker.training.report import model_flops_per_token

ROOT = Path(__file__).resolve().parents[1]
WORKER = ROOT / "clusterrun" / "worker" / "__main__.py"
TRAINER = Path(__file__).resolve().parent / "peers" / "hf_trainer.py"
LR = 1e-3


@dataclass(frozen=True)
class Case:
    """A model and how it is run: `micro` sequences of `seq` tokens a step; time counts after `warm` steps."""

    preset: str
    seq: int
    micro: int
    steps: int
    warm: int
    every: int


@dataclass(frozen=True)
class Sample:
    """Tokens per second, and peak memory in GiB."""

    speed: float
    memory: float


CASES = (
    Case("smollm2-135m", 2048, 16, 120, 20, 10),
    Case("smollm2-360m", 2048, 8, 120, 20, 10),
)
TINY = Case("tiny", 64, 2, 14, 4, 2)


def main() -> None:
    """Print the hardware and a line for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro", type=int, help="sequences in a micro batch, instead of what fits 80 GB")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on whatever is here, to see that it runs")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.tiny:
        sys.exit("there is no GPU here; --tiny runs the same path on the CPU")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    print(f"{device}, torch {torch.__version__}, bf16")
    for case in (TINY,) if options.tiny else CASES:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), case, options.micro or case.micro, options.rounds, device)


def compare(project: Path, case: Case, micro: int, rounds: int, device: str) -> None:
    """Run all ways in turns and print their medians."""
    config = presets.config(case.preset, None)
    config.save_pretrained(project / "model")
    peak, flops = peak_flops(device), model_flops_per_token(bare(config), case.seq)
    lm(project, case, micro, "prepares", ["steps=1"])
    tokens = load_file(prepared(project))["train"]
    rows = (len(tokens) - 1) // case.seq
    flat = tokens[: rows * case.seq]
    write_rows(project / "text.safetensors", flat, flat, [case.seq] * rows)
    ways = {("clusterrun", False): lm, ("Trainer", False): trainer}
    if device[:3] != "CPU":  # compiling for a CPU needs a C++ compiler, and shows nothing here
        ways |= {("clusterrun", True): lm, ("Trainer", True): trainer}
    taken: dict[tuple[str, bool], list[Sample]] = {way: [] for way in ways}
    for i in range(rounds):
        for (name, compiled), run in ways.items():
            extra = [] if not compiled else ["compile=true"] if run is lm else ["--compile"]
            taken[name, compiled].append(run(project, case, micro, f"{name}-{compiled}-{i}", extra))
            print(f"  {i + 1}/{rounds} {name}: {taken[name, compiled][-1]}", file=sys.stderr, flush=True)
    print(f"{case.preset}, sequence {case.seq}, micro batch {micro}, {rounds} rounds")
    for (name, compiled), samples in taken.items():
        speed = statistics.median(sample.speed for sample in samples)
        spread = (max(s.speed for s in samples) - min(s.speed for s in samples)) / speed
        mfu = f"{speed * flops / peak:5.1%}" if peak and flops else "unknown"
        peer = statistics.median(sample.speed for sample in taken["Trainer", compiled])
        print(
            f"{name + (', compiled' if compiled else ''):22} {speed:10,.0f} tokens/s   spread {spread:4.0%}   MFU {mfu}"
            f"   peak {max(s.memory for s in samples):5.1f} GiB   {speed / peer:.3f} x Trainer",
            flush=True,
        )


def lm(project: Path, case: Case, micro: int, name: str, extra: list[str]) -> Sample:
    """One run of our task, in one process."""
    folder = project / ".clusterrun" / "runs" / name
    folder.mkdir(parents=True)
    settings = {"model": "model", "seq_len": case.seq, "micro_batch_size": micro, "lr": LR, "precision": "bf16"}
    settings |= {"steps": case.steps, "log_every": case.every, "eval_every": 0, "eval_samples": 1, "keep_last": 1}
    words = [f"{key}={value}" for key, value in settings.items()]
    finish([str(WORKER), "task", "lm", *words, *extra], project, {"CLUSTERRUN_RUN_DIR": str(folder)})
    rows = {row["step"]: row for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())}
    times = {step: row["time"] for step, row in rows.items()}
    return Sample(speed(times, case, micro), rows[max(rows)]["memory_gib"])


def trainer(project: Path, case: Case, micro: int, name: str, extra: list[str]) -> Sample:
    """One run of the Trainer over the same tokens, in one process."""
    values = {"model": "model", "rows": "text.safetensors", "out": f"{name}.json", "micro": micro, "lr": LR}
    values |= {"steps": case.steps, "every": case.every}
    words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
    finish([str(TRAINER), *words, "--bf16", *extra], project, {})
    found = json.loads((project / f"{name}.0.json").read_text())
    times = {int(step): moment for step, moment in found["times"].items()}
    return Sample(speed(times, case, micro), found.get("memory_gib", 0.0))


def speed(times: dict[int, float], case: Case, micro: int) -> float:
    """Tokens per second: the median over every few steps, without the warm-up and the last ones."""
    steps = range(case.warm, case.steps - case.every, case.every)
    found = [
        micro * case.seq * case.every / (times[s + case.every] - times[s]) for s in steps if s + case.every in times
    ]
    return statistics.median(found) if found else 0.0  # none in the run that prepares the data


def finish(words: list[str], cwd: Path, more: dict[str, str]) -> None:
    """Run a Python program to its end."""
    environ = os.environ | {"HF_HUB_OFFLINE": "1"} | more
    done = subprocess.run([sys.executable, *words], check=False, cwd=cwd, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")


def bare(config: Any) -> Any:
    """Return the model without its weights, to count parameters."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


if __name__ == "__main__":
    main()
