"""What a checkpoint or a .pt file holds, whether it fits this model, and whether it is of this run."""

from __future__ import annotations

import argparse
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from clusterrun.base.errors import WorkerError
from clusterrun.worker.training import checkpoint, resume

X = Path("runs/step-00000010")


def tiny(hidden: int = 16, vocab: int = 32, tied: bool = True, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=tied,
        )
    )


def equal(first: nn.Module, second: nn.Module) -> bool:
    mine, other = first.state_dict(), second.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[key], other[key]) for key in mine)


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(WorkerError) as caught:
        resume.load(path)
    message = str(caught.value)
    assert caught.value.status == 1 and len(message.splitlines()) == 1 and "\x1b" not in message
    return message


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("key", ["model_state_dict", "state_dict", "model", ""])
def test_the_weights_of_a_pt_file_whatever_wrapped_them(tmp_path: Path, prefix: str, key: str) -> None:
    model = tiny()
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    loaded = resume.load(saved(tmp_path / "x.pt", {key: weights, "epoch": 5} if key else weights))
    other = tiny(seed=1)
    resume.load_weights(other, loaded.tensors, tmp_path / "x.pt")
    assert equal(other, model)
    assert (loaded.step, loaded.state, loaded.trainer) == (0, {}, None)


def test_a_file_that_lacks_its_optimizer_or_its_epoch_says_what_is_not_taken(tmp_path: Path) -> None:
    weights = nn.DataParallel(tiny()).state_dict()
    path = saved(tmp_path / "checkpoint_epoch_5.pt", {"epoch": 5, "model_state_dict": weights, "loss": 2.5})
    assert resume.load(path).notes == (f"{path}: only the weights were loaded (epoch 5); starting at step 0",)
    for epoch in ("x", -1, None, 10**30):
        path = saved(tmp_path / "x.pt", {"epoch": epoch, "model_state_dict": weights, "optimizer_state_dict": {}})
        assert resume.load(path).epoch is None
        assert resume.load(path).notes[1] == f"{path}: its optimizer_state_dict is ignored"


def test_a_name_inside_the_model_is_no_prefix(tmp_path: Path) -> None:
    weights = {"module.w": torch.ones(1), "head": torch.ones(2)}
    assert resume.load(saved(tmp_path / "x.pth", weights)).tensors.keys() == weights.keys()


class Trap:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4")
@pytest.mark.parametrize("protocol", [None, 4])
def test_a_file_that_would_run_code_is_refused_and_does_not(tmp_path: Path, protocol: int | None) -> None:
    path, victim = tmp_path / "x.pt", tmp_path / "victim"
    content = {"model_state_dict": {}, "extra": Trap(victim)}
    saved(path, content) if protocol is None else path.write_bytes(pickle.dumps(content, protocol=protocol))
    message = refusal(path)
    assert message.startswith(f"refusing to load {path}: it contains more than tensors and numbers")
    assert not victim.exists()


def test_a_refusal_names_the_object(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pt", {"model_state_dict": {}, "args": argparse.Namespace(lr=1)})
    assert "tensors and numbers (argparse.Namespace), so loading it could run arbitrary code; save" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and no more", b"\n\n"])
def test_a_file_that_is_no_pytorch_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    assert refusal(tmp_path / "x.pt").removeprefix("refusing to load ").startswith(str(tmp_path / "x.pt"))


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        ({"weights": {"w": torch.ones(1)}, "epoch": 2}, ": it contains 2 tensors (weights, epoch)"),
        ({}, ""),
        ([torch.ones(1)], ""),
        ({"model_state_dict": {}}, ": it contains 1 tensor (model_state_dict)"),
        ({1: torch.ones(1)}, ": it contains 1 tensor (1)"),
    ],
)
def test_a_file_without_weights_says_what_it_has(tmp_path: Path, content: Any, holds: str) -> None:
    path = saved(tmp_path / "x.pt", content)
    assert refusal(path) == f"{path} has no model_state_dict{holds.replace('tensors', 'keys').replace('tensor', 'key')}"


@pytest.mark.parametrize("name", ["state.json", "trainer.pt", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{}", None])
def test_a_folder_that_cannot_be_read_is_one_line(tmp_path: Path, name: str, content: bytes | None) -> None:
    snapshot = checkpoint.Snapshot(1, {"w": torch.ones(1)}, {"optimizer": {}, "scaler": None}, {}, "")
    path = checkpoint.write(tmp_path, snapshot)
    (path / name).unlink() if content is None else (path / name).write_bytes(content)
    assert refusal(path).startswith(f"checkpoint {path} cannot be read: ")


def test_other_sizes_name_the_first_tensor_and_both_shapes() -> None:
    with pytest.raises(WorkerError) as caught:
        resume.load_weights(tiny(hidden=16, vocab=32), tiny(hidden=32, vocab=64).state_dict(), X)
    assert str(caught.value) == (
        f"checkpoint {X} belongs to a different model: model.embed_tokens.weight"
        " has shape (64, 32) in the checkpoint, but (32, 16) in the model"
    )
    assert caught.value.status == 1


def test_another_architecture_says_what_is_lacking_and_what_is_too_much() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    llama = tiny()
    before = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
    tensors = {name: tensor for name, tensor in gpt2.state_dict().items() if name != "lm_head.weight"}
    with pytest.raises(WorkerError) as caught:
        resume.load_weights(llama, tensors, X)
    assert str(caught.value) == (
        f"checkpoint {X} belongs to a different model: the checkpoint lacks 12 tensors (model.embed_tokens.weight,"
        " model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.k_proj.weight, …) and has 16 extra tensors"
        " (transformer.wte.weight, transformer.wpe.weight, transformer.h.0.ln_1.weight, …)"
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in llama.state_dict().items()), "nothing was loaded"


@pytest.mark.parametrize("stored", ["model.embed_tokens.weight", "lm_head.weight"])
def test_tied_weights_may_be_stored_under_either_name(stored: str) -> None:
    model, other = tiny(), tiny(seed=1)
    twin = {"model.embed_tokens.weight", "lm_head.weight"} - {stored}
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if name not in twin}
    resume.load_weights(other, tensors, X)
    assert equal(other, model)


def test_an_untied_checkpoint_does_not_fit_a_tied_model_and_the_other_way_round() -> None:
    with pytest.raises(
        WorkerError,
        match=r"lm_head\.weight and model\.embed_tokens\.weight are tied in the model, but differ in the checkpoint",
    ):
        resume.load_weights(tiny(), tiny(tied=False).state_dict(), X)
    tensors = {name: tensor for name, tensor in tiny().state_dict().items() if name != "lm_head.weight"}
    with pytest.raises(WorkerError, match=r"the checkpoint lacks 1 tensor \(lm_head.weight\)$"):
        resume.load_weights(tiny(tied=False), tensors, X)


SETTINGS = {"seed": 1, "global_batch_size": 8, "micro_batch_size": 2, "seq_len": 64, "data": "abc", "lr": 1e-3}


@pytest.mark.parametrize("key", ["seed", "global_batch_size", "micro_batch_size", "seq_len"])
def test_a_setting_that_changes_the_order_of_samples_is_refused_with_both_values(key: str) -> None:
    with pytest.raises(WorkerError) as caught:
        resume.check_same_order({"settings": SETTINGS}, SETTINGS | {key: 99})
    assert caught.value.status == 2
    assert (
        f"saved with {key}={SETTINGS[key]}, but this run has {key}=99; set {key}={SETTINGS[key]}, or start over with"
        in (str(caught.value))
    )


def test_other_data_are_refused() -> None:
    with pytest.raises(
        WorkerError, match=r"the checkpoint is from a run with different data; use the same data, or start"
    ):
        resume.check_same_order({"settings": SETTINGS}, SETTINGS | {"data": "def"})


@pytest.mark.parametrize("state", [{"settings": SETTINGS}, {"settings": {"seed": 1}}, {"settings": {}}, {}])
def test_what_is_the_same_or_unknown_is_no_matter(state: dict[str, Any]) -> None:
    resume.check_same_order(state, SETTINGS | {"lr": 5.0})
