"""How fast one GPU trains SmolLM2's shapes: our `lm` and packed `sft`, and the Trainer with the same settings.

Tokens per second, the share of the GPU's dense 16-bit peak (MFU), peak memory, and how often the CPU waited for the GPU
in a step, at sequence 2048 in bf16: with each part of our speed in turn, and compiled. Every line is a run of its own,
printed when it is there; the most important come first, and what `--seconds` have no room for is named. All of it once
takes some eight minutes on an H100, and needs no network. `--tiny` walks the same path in two minutes on a CPU, where
the figures mean nothing. `python -m benchmarks.train_gpu [--seconds N] [--rounds N] [--tiny]`
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
import time
from dataclasses import dataclass, field
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
PEERS = Path(__file__).resolve().parent / "peers"
LR = 1e-3
PARTS = "attention,head,feed"  # as peers/switched.py calls them


@dataclass(frozen=True)
class Case:
    """A model and how it is run: `micro` sequences of `seq` tokens a step; time counts after `warm` steps."""

    preset: str
    seq: int
    micro: int
    steps: int = 50
    warm: int = 20
    every: int = 5


@dataclass(frozen=True)
class Way:
    """One line of the table. `task` is ours, or "Trainer"; `without` are parts of our speed that are switched off."""

    case: Case
    task: str
    compiled: bool
    without: str = "-"

    def __str__(self) -> str:
        """Return a name: the task, and which parts of our speed are switched on."""
        left = [part for part in PARTS.split(",") if part not in self.without.split(",")]
        on = "" if self.task == "Trainer" or self.without == "-" else f" {'+'.join(left) or 'as before'}"
        return f"{self.case.preset} {self.task}{on}{', compiled' if self.compiled else ', eager'}"


@dataclass
class Samples:
    """The runs of a way: tokens per second, peak memory in GiB, waits for the GPU per step (None: not counted)."""

    speeds: list[float] = field(default_factory=list)
    memory: float = 0.0
    waits: float | None = None


SMALL, MIDDLE = Case("smollm2-135m", 2048, 16), Case("smollm2-360m", 2048, 8)
LARGE = Case("smollm2-1.7b", 2048, 8, steps=30, warm=15)
TINY = Case("tiny", 64, 2, steps=14, warm=4, every=2)


def ways_of(small: Case, others: list[Case], compiled: bool) -> list[Way]:
    """Return the lines of the table, the most important first."""
    lines = [Way(small, "lm", compiled), Way(small, "Trainer", False)]
    if compiled:
        lines.append(Way(small, "Trainer", True))
    lines += [Way(small, "sft", compiled), Way(small, "lm", False, PARTS)]
    lines += [Way(case, "lm", compiled) for case in others[:1]]
    lines += [Way(small, "lm", False, "head,feed"), Way(small, "lm", False, "feed"), Way(small, "lm", False)]
    lines += [Way(small, "sft", False, PARTS), Way(small, "sft", False)]
    lines += [Way(case, "lm", compiled) for case in others[1:]]
    lines += [Way(small, "lm", compiled, PARTS), *(Way(case, "Trainer", compiled) for case in others)]
    return list(dict.fromkeys(lines))


def main() -> None:
    """Print the hardware and a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="turns of all ways, as long as there is time")
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="time for all of it; what it has no room for is named"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny model on whatever is here, to see that it runs")
    options = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    if not has_gpu and not options.tiny:
        sys.exit("there is no GPU here; --tiny runs the same path on the CPU")
    device = torch.cuda.get_device_name() if has_gpu else f"CPU ({platform.machine()})"
    print(f"{device}, torch {torch.__version__}, bf16", flush=True)
    # compiling for a CPU shows nothing here
    ways = ways_of(TINY, [], has_gpu) if options.tiny else ways_of(SMALL, [LARGE, MIDDLE], has_gpu)
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), ways * options.rounds, time.monotonic() + options.seconds, device)


def compare(root: Path, ways: list[Way], deadline: float, device: str) -> None:
    """Run all ways in turns, and print each with its medians so far."""
    taken: dict[Way, Samples] = {}
    for i, way in enumerate(ways):
        left = deadline - time.monotonic()
        project = root / way.case.preset
        samples = taken.setdefault(way, Samples())
        try:
            make_project(project, way.case, left)
            (trainer if way.task == "Trainer" else ours)(project, way, i, samples, deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            print(f"no time was left for: {', '.join(dict.fromkeys(map(str, ways[i:])))}", flush=True)
            return
        print(line(way, samples, taken, device), flush=True)


def line(way: Way, samples: Samples, taken: dict[Way, Samples], device: str) -> str:
    """Return a way's figures, and how they compare with the Trainer's, eager and compiled."""
    speed = statistics.median(samples.speeds)
    peak, flops = peak_flops(device), model_flops_per_token(bare(way.case), way.case.seq)
    text = f"{way!s:42} {speed:10,.0f} tokens/s"
    if len(samples.speeds) > 1:
        text += f" (spread {(max(samples.speeds) - min(samples.speeds)) / speed:.0%})"
    text += f"   MFU {speed * flops / peak:5.1%}" if peak and flops else ""
    text += f"   peak {samples.memory:5.1f} GiB"
    text += "" if samples.waits is None else f"   {samples.waits:.1f} waits a step"
    for compiled in (False, True):
        peer = taken.get(Way(way.case, "Trainer", compiled))
        if peer and peer.speeds and peer is not samples:
            text += f"   {speed / statistics.median(peer.speeds):.2f} x Trainer{' compiled' if compiled else ''}"
    return text


def make_project(project: Path, case: Case, seconds: float) -> None:
    """Make a folder with the model's configuration, and the rows of its data for the Trainer, if there is none yet."""
    if project.exists():
        return
    presets.config(case.preset, None).save_pretrained(project / "model")
    run_ours(project, Way(case, "lm", False), "prepares", ["steps=1"], seconds)
    tokens = load_file(prepared(project))["train"]
    rows = (len(tokens) - 1) // case.seq
    flat = tokens[: rows * case.seq]
    write_rows(project / "text.safetensors", flat, flat, [case.seq] * rows)


def ours(project: Path, way: Way, turn: int, samples: Samples, seconds: float) -> None:
    """One run of our task, in one process. For `sft` the tokens are those of chats, without padding."""
    case, name = way.case, f"{way.task}-{turn}"
    rows = run_ours(project, way, name, [f"steps={case.steps}"], seconds)
    times = {step: row["time"] for step, row in rows.items()}
    useful = statistics.mean(row["tokens_per_second"] * row["step_s"] for step, row in rows.items() if step > case.warm)
    samples.speeds.append(speed(times, case, useful))
    samples.memory = max(samples.memory, rows[max(rows)]["memory_gib"])
    waits = json.loads((project / f"{name}.waits").read_text())
    samples.waits = None if waits is None else waits / case.steps


def run_ours(project: Path, way: Way, name: str, more: list[str], seconds: float) -> dict[int, dict[str, Any]]:
    """Run our task to its end; return its rows by step."""
    case, folder = way.case, project / ".clusterrun" / "runs" / name
    folder.mkdir(parents=True)
    settings = {"model": "model", "seq_len": case.seq, "micro_batch_size": case.micro, "lr": LR, "precision": "bf16"}
    settings |= {"log_every": case.every, "eval_every": 0, "eval_samples": 1, "keep_last": 1, "sample_prompts": "[]"}
    settings |= {"compile": str(way.compiled).lower(), "measure": case.steps}  # measure: nothing is saved
    words = [str(PEERS / "switched.py"), way.without, f"{name}.waits", "task", way.task]
    words += [f"{key}={value}" for key, value in settings.items()]
    finish([*words, *more], project, {"CLUSTERRUN_RUN_DIR": str(folder)}, seconds)
    return {row["step"]: row for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())}


def trainer(project: Path, way: Way, turn: int, samples: Samples, seconds: float) -> None:
    """One run of the Trainer over the same tokens as `lm`, in one process."""
    case, name = way.case, f"trainer-{turn}"
    values = {"model": "model", "rows": "text.safetensors", "out": f"{name}.json", "micro": case.micro, "lr": LR}
    values |= {"steps": case.steps, "every": case.every}
    words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
    words += ["--bf16", *(["--compile"] if way.compiled else [])]
    finish([str(PEERS / "hf_trainer.py"), *words], project, {}, seconds)
    found = json.loads((project / f"{name}.0.json").read_text())
    times = {int(step): moment for step, moment in found["times"].items()}
    samples.speeds.append(speed(times, case, case.micro * case.seq))
    samples.memory = max(samples.memory, found.get("memory_gib", 0.0))


def speed(times: dict[int, float], case: Case, tokens: float) -> float:
    """Tokens per second: the median over every few steps of so many tokens, without the warm-up and the last ones."""
    steps = [s for s in range(case.warm, case.steps - case.every, case.every) if s + case.every in times]
    return statistics.median(tokens * case.every / (times[s + case.every] - times[s]) for s in steps)


def finish(words: list[str], cwd: Path, more: dict[str, str], seconds: float) -> None:
    """Run a Python program to its end. Raises TimeoutExpired."""
    environ = os.environ | {"HF_HUB_OFFLINE": "1"} | more
    done = subprocess.run(
        [sys.executable, *words], check=False, cwd=cwd, env=environ, capture_output=True, text=True,
        timeout=max(0.0, seconds),
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")


def bare(case: Case) -> Any:
    """Return the model without its weights, to count parameters."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(presets.config(case.preset, None))


if __name__ == "__main__":
    main()
