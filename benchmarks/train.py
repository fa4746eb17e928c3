"""How fast the tasks train, as ratios: to a bare DDP loop and transformers' Trainer, to torchrun's start, to padding.

Two ranks of one thread each on the CPU over gloo. All ways take turns in one run: whole runs, or for the speed, where a
hundredth matters, slices of a few seconds. A ratio is the median over the turns: absolute figures mean little.
`python -m benchmarks.train [--rounds N] [speed] [start] [packing]`
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks import slices
from benchmarks.launching import Ran, ours, torchrun

PEERS = Path(__file__).resolve().parent / "peers"
SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
RANKS, SEQ, MICRO, LR = 2, 128, 8, 3e-3
PACKED_SEQ, PACKED_MICRO = 512, 2
STEPS, EVERY = 80, 10
SLICED_STEPS, SLICE_S = 1500, 6.0
WINDOWS = range(
    EVERY, STEPS - EVERY, EVERY
)  # time is taken over EVERY steps after each: the first and last do not count


@dataclass(frozen=True)
class Sample:
    """One run's figures, and the mean loss of its steps, which shows that all ways did the same work."""

    values: list[float]
    loss: float = float("nan")


Way = Callable[[str], Sample]


def main() -> None:
    """Print one table for each figure asked for."""
    figures = {"speed": speed, "start": start, "packing": packing}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("figures", nargs="*", choices=[*figures, []], metavar="speed|start|packing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "model").mkdir()
        (project / "model" / "config.json").write_text(json.dumps(SHAPE))
        for name in options.figures or figures:
            figures[name](project, options.rounds)


def speed(project: Path, rounds: int) -> None:
    """Tokens per second of `lm`, of a bare DDP loop and of the Trainer over the same tokens."""
    settings = ["model=model", f"seq_len={SEQ}", f"micro_batch_size={MICRO}", f"lr={LR}", "eval_every=0"]
    settings += ["eval_samples=16", f"log_every={EVERY}"]
    ours(project, "prepares", ["task", "lm", *settings, "steps=1"])
    file = prepared(project)
    tokens = load_file(file)["train"]
    rows = (len(tokens) - 1) // SEQ
    flat = tokens[: rows * SEQ]
    write_rows(project / "text.safetensors", flat, flat, [SEQ] * rows)
    steps = SLICED_STEPS * rounds // 5
    common = peer_options(project, MICRO, steps)
    bare = [*common, "--tokens", str(file), "--seq-len", str(SEQ), "--out", "bare.json"]
    arguments = {
        "lm": ["task", "lm", *settings, f"steps={steps}"],
        "bare": ["script", "--", str(PEERS / "bare_ddp.py"), *bare],
        "trainer": ["script", "--", str(PEERS / "hf_trainer.py"), *common, "--rows", "text.safetensors", "--out",
                    "trainer.json"],
    }  # fmt: skip
    ran: dict[str, Ran] = {}

    def run(name: str) -> None:
        ran[name] = ours(project, name, arguments[name])

    taken = slices.take_slices({name: partial(run, name) for name in arguments}, SLICE_S)
    found = {name: read_peer(project, name, 0) for name in ("bare", "trainer")}
    found["lm"] = {"times": {step: row["time"] for step, row in ran["lm"].rows().items()}, "loss": mean_loss(ran["lm"])}
    per_slice = (slices.speeds(taken[name], found[name]["times"]) for name in arguments)
    per_turn = [speeds for speeds in zip(*per_slice, strict=False) if all(speeds)]  # no start, no end
    samples = [
        [Sample([speed * RANKS * MICRO * SEQ], found[name]["loss"]) for speed in speeds]
        for name, speeds in zip(arguments, zip(*per_turn, strict=True), strict=True)
    ]
    names = ("clusterrun's lm", "a bare DDP loop", "transformers' Trainer")
    show("speed, tokens/s", "tokens/s", names, samples, {1: "at least 0.99", 2: "at least 1.05"})


def start(project: Path, rounds: int) -> None:
    """Seconds from the start of the launcher to the end of the first optimizer step, the data being prepared."""
    work = ["task", "lm", "model=model", f"seq_len={SEQ}", f"micro_batch_size={MICRO}", "steps=1", "eval_samples=16"]
    ours(project, "prepares-start", work)

    def timed(launch: Callable[..., Ran]) -> Way:
        def run(name: str) -> Sample:
            ran = launch(project, name, work)
            return Sample([ran.rows()[1]["time"] - ran.began])

        return run

    ways = {"clusterrun's launch": timed(ours), "torchrun": timed(torchrun)}
    show("start, seconds to the end of step 1", "s", ways, take_turns(ways, rounds), {1: "at most 0.8"})


def packing(project: Path, rounds: int) -> None:
    """Print useful tokens per second on chats: our packed rows, and the Trainer's padded ones.

    Both have as many positions in a micro batch: the Trainer's holds as many chats as take PACKED_SEQ x PACKED_MICRO
    positions on average, padding included.
    """
    settings = ["model=model", f"seq_len={PACKED_SEQ}", f"micro_batch_size={PACKED_MICRO}", f"lr={LR}", "eval_every=0"]
    settings += ["eval_samples=8", f"log_every={EVERY}", "sample_prompts=[]"]
    ours(project, "prepares-padded", ["task", "sft", *settings, "steps=1", "packing=false"])
    chats = load_file(prepared(project))
    lengths = chats["train.lengths"].tolist()
    write_rows(project / "chats.safetensors", chats["train.tokens"], as_trainer(chats), lengths)
    budget = PACKED_SEQ * PACKED_MICRO
    micro = next(n for n in range(1, len(lengths)) if positions(lengths, n + 1) > budget)
    common = peer_options(project, micro)
    print(
        f"chats: {len(lengths)}; tokens of one: mean {statistics.mean(lengths):.0f},"
        f" median {statistics.median(lengths):.0f}, most {max(lengths)};"
        f" a micro batch of {budget} positions holds {micro} of them padded"
    )

    def sft(name: str) -> Sample:
        ran = ours(project, name, ["task", "sft", *settings, f"steps={STEPS}"])
        rows = ran.rows()
        tokens = {s: rows[s + EVERY]["tokens_per_second"] * rows[s + EVERY]["step_s"] * EVERY for s in WINDOWS}
        return Sample(speeds({step: row["time"] for step, row in rows.items()}, tokens), mean_loss(ran))

    def padded(*own: str) -> Way:
        def run(name: str) -> Sample:
            script = [str(PEERS / "hf_trainer.py"), *common, "--rows", "chats.safetensors", "--out", f"{name}.json"]
            ours(project, name, ["script", "--", *script, *own])
            found = [read_peer(project, name, rank) for rank in range(RANKS)]
            tokens = {s: sum(sum(rank["useful"][s : s + EVERY]) for rank in found) for s in WINDOWS}
            return Sample(speeds(found[0]["times"], tokens), found[0]["loss"])

        return run

    ways = {
        "clusterrun's sft, packed": sft,
        "Trainer, padded": padded(),
        "Trainer, grouped by length": padded("--group-by-length"),
    }
    show("packing, useful tokens/s", "useful tokens/s", ways, take_turns(ways, rounds), {1: "at least 1.5"})


def take_turns(ways: dict[str, Way], rounds: int) -> list[list[Sample]]:
    """Run all ways one after the other, `rounds` times, another one first each time; a list of samples for each way."""
    taken: list[list[Sample]] = [[] for _ in ways]
    turns = list(zip(taken, ways.items(), strict=True))
    for i in range(rounds):
        for samples, (name, way) in turns[i % len(turns) :] + turns[: i % len(turns)]:
            samples.append(way(f"{'-'.join(name.split())}-{i}"))
            found = statistics.median(samples[-1].values)
            print(f"  {i + 1}/{rounds} {name}: {found:,.1f}", file=sys.stderr, flush=True)
    return taken


def show(title: str, unit: str, ways: Iterable[str], taken: list[list[Sample]], aims: dict[int, str]) -> None:
    """Print each way's median and the middle half of its figures, and what the first way's are over it, by rounds."""
    print(f"{title} (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, {len(taken[0])} rounds)")
    for i, (name, samples) in enumerate(zip(ways, taken, strict=True)):
        values = [value for sample in samples for value in sample.values]
        line = f"{name:26} {statistics.median(values):8,.1f} {unit} (half of them {middle_half(values, ',.1f')})"
        losses = statistics.median(sample.loss for sample in samples)
        line += "" if math.isnan(losses) else f"  loss {losses:.3f}"
        if i:
            rounds = [
                statistics.median(mine.values) / statistics.median(other.values)
                for mine, other in zip(taken[0], samples, strict=True)
            ]
            line += f"  ours: {statistics.median(rounds):.3f} x it (half of the rounds {middle_half(rounds, '.3f')})"
            line += f"; aim: {aims[i]}" if i in aims else ""
        print(line, flush=True)


def middle_half(values: list[float], form: str) -> str:
    """Return the bounds of the middle half of some values, formatted."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{low:{form}} to {high:{form}}"


def speeds(times: dict[int, float], tokens: dict[int, float]) -> list[float]:
    """Tokens per second over the EVERY steps after each of WINDOWS; `times` is when a step was over."""
    return [tokens[step] / (times[step + EVERY] - times[step]) for step in WINDOWS]


def read_peer(project: Path, name: str, rank: int) -> dict[str, Any]:
    """Read what a rank of a peer wrote."""
    found: dict[str, Any] = json.loads((project / f"{name}.{rank}.json").read_text())
    return found | {"times": {int(step): moment for step, moment in found["times"].items()}}


def mean_loss(ran: Ran) -> float:
    """Return the mean training loss of all steps: each row has the mean since the row before."""
    rows, before, total = ran.rows(), 0, 0.0
    for step in sorted(rows):
        if step:
            total += rows[step]["loss"] * (step - before)
            before = step
    return total / before


def peer_options(project: Path, micro: int, steps: int = STEPS) -> list[str]:
    """Return the options of both peers."""
    values = {"model": project / "model", "steps": steps, "micro": micro, "lr": LR, "every": EVERY}
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def prepared(project: Path) -> Path:
    """Return the tensors that a task prepared last in this project."""
    files = (project / ".clusterrun" / "cache").glob("*/tensors.safetensors")
    return max(files, key=lambda file: file.stat().st_mtime)


def write_rows(file: Path, tokens: Any, labels: Any, lengths: list[int]) -> None:
    """Write what peers/hf_trainer.py reads."""
    columns = {"input_ids": tokens.clone(), "labels": labels.clone(), "lengths": torch.tensor(lengths)}
    save_file(columns, file)


def as_trainer(chats: dict[str, Any]) -> Any:
    """Labels as the Trainer's models take them, unshifted: ours stand one position before the token they name."""
    ours = chats["train.labels"]
    return torch.cat([torch.full((1,), -100, dtype=ours.dtype), ours[:-1]])


def positions(lengths: list[int], count: int) -> float:
    """How many positions `count` chats drawn at random take on average, padded to the longest of them."""
    draw = random.Random(1)
    return statistics.mean(count * max(draw.choices(lengths, k=count)) for _ in range(1000))


if __name__ == "__main__":
    main()
