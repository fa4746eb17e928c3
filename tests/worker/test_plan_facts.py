"""What `plan` counts about a task: the data and the model that a run would train with."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch

from clusterrun.base.errors import WorkerError
from clusterrun.sizing.memory import ModelSize, estimate_memory
from clusterrun.worker.models import count, load
from clusterrun.worker.rank.progress import here
from clusterrun.worker.tasks import finish, plan_facts
from clusterrun.worker.training import loop as train
from tests.worker.small_training import Config, go, rows, run_env


def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("a long story about nothing in particular, repeated many times. " * 300)
    return file


def test_text_is_counted_in_rows_of_seq_len(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_facts.main(["lm", f"data={text(tmp_path)}", "seq_len=32", "vocab=300"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["samples"] > 10 and facts["tokens"] == 32 * facts["samples"]
    longer = plan_facts.find_facts(["lm", f"data={text(tmp_path)}", "seq_len=64", "vocab=300"])
    assert abs(facts["samples"] - 2 * longer["samples"]) <= 1


@pytest.mark.parametrize("packing", ["true", "false"])
def test_conversations_are_counted(tmp_path: Path, packing: str) -> None:
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "It is a stone."}]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(40)))
    facts = plan_facts.find_facts(["sft", f"data={file}", "seq_len=64", "vocab=300", f"packing={packing}"])
    kept = 36  # a tenth is held out
    assert facts["samples"] == kept if packing == "false" else 0 < facts["samples"] < kept
    assert facts["tokens"] % kept == 0


def test_rows_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,kind\n" + "a stone,grey\na leaf,green\nthe sea,blue\n" * 20)
    facts = plan_facts.find_facts(["classify", f"data={file}", "target_cols=kind", "vocab=300", "held_out=0.5"])
    assert facts["samples"] == 30 and facts["settings"]["micro_batch_size"] == 0


def test_a_decoder_and_numbers_count_as_parameters(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,kind,n\n" + "a stone,grey,1\na leaf,green,2\nthe sea,blue,3\n" * 20)
    words = ["classify", f"data={file}", "target_cols=kind", "vocab=300"]
    plain = plan_facts.find_facts(words)["model"]["parameters"]
    with_numbers = plan_facts.find_facts([*words, "number_cols=n"])["model"]["parameters"]
    mixed = plan_facts.find_facts([*words, "objective=mixed"])["model"]["parameters"]
    assert plain < with_numbers < plain + 128 * 140 < mixed


def test_given_samples_leave_the_data_alone() -> None:
    facts = plan_facts.find_facts(["diffusion", "--samples", "77", "data=/nowhere/*.txt", "seq_len=128"])
    assert (facts["samples"], facts["tokens"]) == (77, 77 * 128)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["lmm"], 2, "did you mean 'lm'?"),
        (["lm", "stepz=1"], 2, "did you mean 'steps'?"),
        (["lm", "model=smollm"], 2, "unknown model 'smollm'"),
        (["lm", "micro_batch_size=-1"], 2, "micro_batch_size must be at least 0"),
        (["lm", "data=/nowhere/x.txt"], 2, "/nowhere/x.txt"),
    ],
)
def test_mistakes_in_one_line(words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_facts.main(words) == status
    said = capsys.readouterr()
    assert said.out == "" and message in said.err and said.err.count("\n") == 1


def test_all_three_batch_sizes_decide_the_ranks() -> None:
    sizes = ["global_batch_size=32", "micro_batch_size=2", "grad_accum_steps=2"]
    assert plan_facts.find_facts(["lm", "--samples", "99", *sizes])["settings"]["grad_accum_steps"] == 2
    with pytest.raises(WorkerError, match="cannot be split evenly"):
        plan_facts.find_facts(["lm", "--samples", "99", "global_batch_size=33", *sizes[1:]])


@pytest.mark.parametrize("head", ["causal", "classify"])
def test_the_model_counted_is_the_model_built(head: str) -> None:
    source = load.resolve("tiny")
    found = count.count(source, head=head, vocab_size=500, num_labels=3)
    built = load.build(source, head=head, vocab_size=500, num_labels=3, seq_len=64, pad_id=0, seed=1)
    assert found["parameters"] == sum(p.numel() for p in built.parameters())
    assert (found["layers"], found["width"]) == (2, 128)


@pytest.mark.parametrize(
    ("name", "parameters"), [("smollm2-135m", 134_515_008), ("smollm2-1.7b", 1_711_376_384), ("gpt2-124m", 124_439_808)]
)
def test_large_models_are_counted_without_memory(name: str, parameters: int) -> None:
    assert count.count(load.resolve(name), head="causal", vocab_size=1024)["parameters"] == parameters


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_forward_pass_keeps_is_within_the_estimate(precision: str) -> None:
    source, rows, length = load.resolve("tiny"), 4, 256
    size = count.count(source, head="causal", vocab_size=1024)
    model = load.build(source, head="causal", vocab_size=1024, seq_len=length, pad_id=0, seed=1)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    ids = torch.randint(1024, (rows, length))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(input_ids=ids).logits
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    estimate = estimate_memory(ModelSize(*size.values()), rows, length, precision)
    assert 0.6 * estimate.activations[0] < measured < estimate.activations[1], "without the gradients of the logits"


def test_a_measuring_run_stops_averaging_gradients_and_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsynced: list[int] = []

    def accumulating(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        unsynced.append(here.step or 0)
        return contextlib.nullcontext()

    monkeypatch.setattr(train, "accumulating", accumulating)
    done, _ = go(tmp_path, steps=8, measure=4, log_every=1, eval_every=0)
    assert done and unsynced == [4, 5, 6, 7], "the last four of eight steps, by the step before each"
    assert not list(tmp_path.glob("checkpoints/step-*"))
    assert [row["step"] for row in rows(tmp_path)] == list(range(9))
    assert finish.output_folder(Config(measure=4, save_path="x"), run_env(tmp_path)) is None
