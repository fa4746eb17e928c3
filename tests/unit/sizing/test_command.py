"""``clusterrun plan`` as it is typed: the guides' tables, a job's facts, and mistakes."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from clusterrun.sizing.job_facts import parse_facts
from clusterrun.sizing.scaling import Measured
from tests.support.command_desk import Desk, refused

GUIDE = ("plan", "--samples", "29500", "--micro-batch", "4", "--lr", "1.25e-6")
SETTINGS = {
    "global_batch_size": 0, "micro_batch_size": 2, "grad_accum_steps": 0, "epochs": 2.0, "steps": 0, "lr": 1e-3,
    "base_batch_size": 0, "warmup": 10, "drop_last": False, "precision": "auto", "seq_len": 64, "lr_scaling": "none",
    "parallel": "ddp",
}  # fmt: skip
MODEL = {"parameters": 524_928, "layers": 2, "width": 128, "vocabulary": 1024}
FACTS = {"task": "lm", "settings": SETTINGS, "default_global_batch": 16, "samples": 100, "tokens": 6400, "model": MODEL}


def python_that(desk: Desk, body: str) -> str:
    """An executable in place of the job's Python, which writes its arguments to ``asked``."""
    path = desk.project.parent / "python"
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {shlex.quote(str(path.with_name("asked")))}\n{body}\n')
    path.chmod(0o755)
    return str(path)


def asked(desk: Desk) -> list[str]:
    return (desk.project.parent / "asked").read_text().splitlines()[1:]


def test_the_guides_table(desk: Desk) -> None:
    said = desk.type(*GUIDE)
    lines = [line.split("\t") for line in said.out.splitlines() if "\t" in line]
    columns = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    assert [row["DROP_LAST"] for row in columns] == ["7,375", "3,687", "1,843", "921"]
    assert [row["STEPS/EPOCH"] for row in columns] == ["7,375", "3,688", "1,844", "922"]
    assert [row["LR LINEAR"] for row in columns[:3]] == ["1.25e-6", "2.5e-6", "5.0e-6"]
    assert said.status == 0 and said.err.count("\n") == 1 and "below 256" in said.err
    assert desk.files().keys() == {"train.py"} and desk.slurm.calls == [], "it writes nothing and needs no Slurm"


def test_the_guides_table_as_json(desk: Desk) -> None:
    data = desk.type(*GUIDE, "--json").data
    assert [row["steps_drop_last"] for row in data["plans"]] == [7375, 3687, 1843, 921]
    assert data["plans"][0]["memory"] is None and data["plans"][0]["prediction"] is None


def test_memory_and_speed_of_a_model_by_its_size(desk: Desk) -> None:
    words = ["--samples", "1000000", "--micro-batch", "1", "--parameters", "8B", "--seq-len", "2048"]
    said = desk.type("plan", *words, "--device", "A100-80GB", "--json")
    first, *_ = said.data["plans"]
    assert first["memory"]["fits"] == "never" and first["prediction"]["efficiency"] == 1.0
    assert first["memory"]["total"][0] > 128e9 and "too much for A100-80GB" in said.data["notes"][0]
    out = desk.type("plan", *words, "--device", "A100-80GB").out
    assert (
        "Predicted, not measured. Assumptions: 40% of 312 TFLOP/s" in out and "230 GB/s within a node of 8 GPUs" in out
    )


def test_a_job_is_counted_by_its_own_python(desk: Desk) -> None:
    python = python_that(desk, f"echo notice >&2; echo {shlex.quote(json.dumps(FACTS))}")
    said = desk.type("plan", "lm", "--python", python, "--set", "data=x.txt", "--lr", "0.01", "--epochs", "2", "--json")
    assert asked(desk) == ["plan-facts", "lm", "data=x.txt", "epochs=2.0", "lr=0.01", "steps=0"]
    assert [row["total_steps"] for row in said.data["plans"]] == [100, 50, 26, 14]
    assert said.data["parameters"] == 524_928


def test_without_anything_it_is_the_default_job(desk: Desk) -> None:
    python = python_that(desk, f"echo {shlex.quote(json.dumps(FACTS))}")
    said = desk.type("plan", "--python", python)
    assert asked(desk) == ["plan-facts", "lm"]
    assert said.out.startswith("lm: 100 samples of 64 tokens, 524.9 k parameters, 2 epochs, learning rate 1.0e-3\n")
    assert "the same learning rate for every number of GPUs" in said.err


def test_samples_for_a_job_skip_its_data(desk: Desk) -> None:
    python = python_that(desk, f"echo {shlex.quote(json.dumps(FACTS))}")
    assert desk.type("plan", "sft", "--samples", "77", "--python", python).status == 0
    assert asked(desk) == ["plan-facts", "sft", "--samples", "77"]


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        ("sleep 20", "counting the samples of lm took longer than 0.5 s", "--samples N"),
        ("echo 'clusterrun: no such file: x.txt' >&2; exit 1", "of lm: no such file: x.txt", "--samples N"),
        ("echo \"clusterrun: unknown model 'x'\" >&2; exit 2", "lm: unknown model 'x'", "docs/settings.md"),
        ("echo hello", "printed 'hello'", ""),
        ("exit 7", "of lm: exit 7", "--python"),
        ('echo \'{"settings": {}, "model": {}}\'', "instead of the sizes of the data and the model", ""),
    ],
)
def test_counting_that_fails(desk: Desk, monkeypatch: pytest.MonkeyPatch, body: str, message: str, hint: str) -> None:
    monkeypatch.setattr("clusterrun.sizing.job_facts.TIMEOUT", 0.5 if body.startswith("sleep") else 60)
    line, hint_line = refused(desk, "plan", "lm", "--python", python_that(desk, body))
    assert message in line and hint in hint_line


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--gpus", "0"], "each number must be between 1 and", "--gpus 1,2,4,8"),
        (["--gpus", "1,x"], "--gpus: 'x' is not a valid number of GPUs", "--gpus 1,2,4,8"),
        (["--samples", "0"], "--samples must be between 1 and 1e+12, not 0", ""),
        (["--samples", "3", "--micro-batch", "4"], "3 samples cannot fill one global batch of 4", "fewer GPUs"),
        (["--samples", "9"], "the batch size is not set", "--micro-batch 4"),
        (["--samples", "99", "--global-batch", "30"], "30 cannot be split evenly over 4 GPUs", "28 or 32"),
        (["--samples", "99", "--micro-batch", "4", "--device", "Z80"], "unknown GPU 'Z80'", "known GPUs: B200"),
        (["--samples", "99", "--micro-batch", "4", "--device", "H100"], "need the model size", "--parameters 135M"),
        (["--samples", "99", "--micro-batch", "4", "--parameters", "1B"], "also need --seq-len", "--seq-len 2048"),
        (
            ["--samples", "99", "--micro-batch", "4", "--parameters", "1G"],
            "is not a valid number of parameters",
            "1.7B",
        ),
        (["--samples", "99", "--micro-batch", "4", "--set", "lr=1"], "--set needs a JOB", "clusterrun plan lm --set"),
        (["--samples", "99", "--measure"], "--measure needs a JOB", "clusterrun plan lm --measure"),
        (["lm", "--parameters", "1B"], "--parameters and a JOB cannot be combined", "--set model="),
        (["--parameters", "1B"], "--parameters needs --samples", "clusterrun plan --samples 29500"),
        (["sfft"], "no job file 'sfft'", "did you mean sft?"),
        (["lm", "--lr", "0"], "--lr must be above 0 and at most 1e+12, not 0", ""),
        (["lm", "--network", "nan"], "--network must be above 0", ""),
        (["lm", "--measure-steps", "4"], "--measure-steps must be between 8 and", ""),
        (["lm", "--epochs", "few"], "'few' is not a valid float", "clusterrun plan --help"),
    ],
)
def test_mistakes_get_one_line(desk: Desk, words: list[str], message: str, hint: str) -> None:
    line, hint_line = refused(desk, "plan", *words)
    assert message in line and hint in hint_line


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ("gpus-per-node = 2", 4),
        ('gres = "gpu:a100:4"', 2),
        ("gpus-per-node = 0\ntasks-per-node = 1", 8),
        ("", 1),
    ],
)
def test_the_nodes_are_those_of_the_job(desk: Desk, options: str, nodes: int) -> None:
    python = python_that(desk, f"echo {shlex.quote(json.dumps(FACTS))}")
    desk.write("jobs/mine.toml", f'task = "lm"\n{options}\n')
    assert desk.type("plan", "mine", "--python", python, "--json").data["plans"][-1]["nodes"] == nodes


def test_a_job_with_wrong_options(desk: Desk) -> None:
    python = python_that(desk, f"echo {shlex.quote(json.dumps(FACTS))}")
    line, _ = refused(desk, "plan", "lm", "--python", python, "--gpus-per-node", "-1")
    assert line == "--gpus-per-node must be at least 0, not -1"
    desk.write("jobs/mine.toml", 'task = "lm"\ngpus-per-node = "x"\n')
    line, _ = refused(desk, "plan", "mine", "--python", python)
    assert "gpus-per-node" in line


def test_a_job_with_a_script_cannot_be_counted(desk: Desk) -> None:
    desk.write("jobs/mine.toml", 'script = "train.py"\n')
    line, hint_line = refused(desk, "plan", "mine")
    assert "so the data and the model are unknown" in line and "--samples 29500" in hint_line


def test_what_was_measured_is_shown_beside_the_prediction(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_that(desk, f"echo {shlex.quote(json.dumps(FACTS))}")
    measured: list[dict[str, Any]] = []

    def measure(args: Any, plans: Any, run: Any, **options: Any) -> list[Measured]:
        measured.append(options)
        return [Measured(1, 1, 80.0, 80.0, 0.0, 0.0), Measured(2, 1, 120.0, 160.0, 0.0, 0.0)]

    monkeypatch.setattr("clusterrun.cli.plan.measure", measure)
    words = ("plan", "lm", "--measure", "--gpus", "1,2", "--measure-steps", "30", "--python", python)
    said = desk.type(*words)
    assert measured[0]["steps"] == 32, "a multiple of four"
    assert "Measured over 32 steps with a micro batch of 2 and 1 accumulation step" in said.out
    last = next(line for line in said.out.splitlines() if line.startswith("2\t1\t120\t"))
    assert last.split("\t")[3:6] == ["1.50x", "75%", "25%"] and last.endswith("\tgradient sync within the node")
    assert "speed-up" in said.out and "measured" in said.out
    monkeypatch.setattr("clusterrun.cli.plan.can_plot", lambda: False)
    assert "pip install 'plotext" in desk.type(*words).err
    assert [row["gpus"] for row in desk.type(*words, "--json").data["measured"]] == [1, 2]


def test_an_architecture_with_other_names_gets_a_usual_shape() -> None:
    model = {**MODEL, "parameters": 8 * 10**9, "layers": 0, "width": 0}
    found = parse_facts(json.dumps({**FACTS, "model": model})).model
    assert found.layers > 20 and found.width > 2000 and found.vocabulary == 1024


def test_measuring_runs_that_cannot_be(desk: Desk) -> None:
    python = python_that(desk, f"echo {shlex.quote(json.dumps(FACTS))}")
    words = ("plan", "lm", "--measure", "--python", python)
    line, hint_line = refused(desk, *words, "--gpus", "1,3", "--gpus-per-node", "2")
    assert line == "the number of GPUs (3) is not a multiple of the GPUs per node (2)" and "--gpus 2" in hint_line
    line, hint_line = refused(desk, *words, "--gpus", "1,64", "--gpus-per-node", "64")
    assert line == "the data does not fill one global batch of 128" and "--micro-batch" in hint_line
