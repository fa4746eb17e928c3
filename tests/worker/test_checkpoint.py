"""The format on disk: what goes in comes out bit for bit, and what is damaged is found out."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from clusterrun.worker.training import checkpoint, resume
from clusterrun.worker.training.checkpoint import BadCheckpoint, Snapshot

FILES = ["config.json", "manifest.json", "model.safetensors", "state.json", "trainer.pt"]


def tiny_llama(tied: bool = True, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=tied,
        )
    )


def trained(model: LlamaForCausalLM, steps: int = 2) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.arange(12).reshape(2, 6)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return optimizer


def numbered(step: int, size: int = 8) -> Snapshot:
    """A small state in which every number is the step."""
    weights = torch.full((size,), float(step))
    return Snapshot(step, {"w": weights}, {"optimizer": {"m": weights.clone()}, "scaler": None}, {"step": step}, "{}")


def same(first: object, second: object) -> bool:
    """Equal, tensors bit for bit and with their types."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    return bool(first == second)


def test_a_tied_model_and_its_adamw_come_back_bit_for_bit(tmp_path: Path) -> None:
    model = tiny_llama()
    optimizer = trained(model)
    scaler = torch.amp.GradScaler("cpu")
    path = checkpoint.write(tmp_path, checkpoint.take(model, optimizer, scaler, {"seed": 3}, step=10))
    loaded = resume.load(path)

    other = tiny_llama(seed=1)
    resume.load_weights(other, loaded.tensors, path)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1.0)
    assert loaded.trainer is not None
    other_optimizer.load_state_dict(loaded.trainer["optimizer"])
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(other_optimizer.state_dict(), optimizer.state_dict())
    assert loaded.trainer["scaler"] == scaler.state_dict()
    assert (loaded.step, loaded.state) == (10, {"seed": 3, "step": 10})


def test_the_folder_has_its_files_and_latest_names_it(tmp_path: Path) -> None:
    model = tiny_llama()
    path = checkpoint.write(tmp_path, checkpoint.take(model, trained(model), None, {}, step=10))
    assert path == tmp_path / "step-00000010"
    assert sorted(os.listdir(path)) == FILES
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-00000010"]
    assert (tmp_path / "latest").read_text() == "step-00000010\n" and not (tmp_path / "latest").is_symlink()
    checkpoint.verify(path)


@pytest.mark.parametrize("tied", [True, False])
def test_from_pretrained_loads_the_folder(tmp_path: Path, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = tiny_llama(tied)
    path = checkpoint.write(tmp_path, checkpoint.take(model, trained(model), None, {}, step=1))
    with safe_open(path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert ("lm_head.weight" in file.keys()) is not tied
    again = AutoModelForCausalLM.from_pretrained(path)
    assert same(dict(again.state_dict()), dict(model.state_dict()))


def test_the_config_tells_the_precision_of_the_weights_in_the_file() -> None:
    model = tiny_llama()
    model.config.dtype = torch.bfloat16  # as that of a model downloaded in bf16 and trained in fp32
    document = json.loads(checkpoint.take(model, trained(model), None, {}, step=1).config_json)
    assert (document["dtype"], document["architectures"]) == ("float32", ["LlamaForCausalLM"])


@settings(max_examples=settings().max_examples, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
            st.lists(st.integers(0, 3), max_size=3),
        ),
        max_size=5,
    )
)
def test_tensors_of_every_type_and_shape_come_back(specs: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    tensors = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in specs.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.write(Path(folder), dataclasses.replace(numbered(1), tensors=tensors))
        assert same(resume.load(path).tensors, tensors)


def test_a_snapshot_shares_nothing_with_the_run() -> None:
    model = tiny_llama()
    optimizer = trained(model)
    state = {"best": {"loss": 2.0}}
    snapshot = checkpoint.take(model, optimizer, None, state, step=2)
    before = (
        {name: tensor.clone() for name, tensor in snapshot.tensors.items()},
        snapshot.trainer["optimizer"]["state"][0]["exp_avg"].clone(),
    )
    for group in optimizer.param_groups:
        group["lr"] = 5.0
    model(input_ids=torch.ones(1, 4, dtype=torch.int64)).logits.sum().backward()
    optimizer.step()
    state["best"]["loss"] = 1.0
    assert same(snapshot.tensors, before[0])
    assert torch.equal(snapshot.trainer["optimizer"]["state"][0]["exp_avg"], before[1])
    assert snapshot.trainer["optimizer"]["param_groups"][0]["lr"] == 1e-2
    assert snapshot.state == {"best": {"loss": 2.0}}


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.sampled_from(FILES[2:]), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_one_flipped_byte_is_found(name: str, where: float, mask: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.write(Path(folder), numbered(1))
        content = bytearray((path / name).read_bytes())
        content[int(where * len(content))] ^= mask
        (path / name).write_bytes(content)
        with pytest.raises(BadCheckpoint, match=f"^{name} does not match the sha256 in its manifest$"):
            checkpoint.verify(path)


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.one_of(st.binary(max_size=40), st.recursive(st.integers() | st.text(), st.lists).map(json.dumps)))
def test_whatever_stands_in_the_manifest_is_a_bad_checkpoint_and_no_crash(content: bytes | str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.write(Path(folder), numbered(1))
        for text in (content, json.dumps({"files": content.decode("latin-1") if isinstance(content, bytes) else {}})):
            (path / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
            with pytest.raises(BadCheckpoint, match=r"^manifest\.json"):
                checkpoint.verify(path)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda p: flip(p / "model.safetensors"), "model.safetensors does not match the sha256 in its manifest"),
        (lambda p: os.truncate(p / "trainer.pt", 7), r"trainer.pt has 7 bytes, but the manifest says \d+"),
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda p: (p / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda p: (p / "manifest.json").write_text('{"files": {}}'), "manifest.json does not list model.safetensors"),
    ],
)
def test_the_walk_back_says_what_it_skips_and_why(tmp_path: Path, damage, sentence: str) -> None:
    for step in (10, 20):
        checkpoint.write(tmp_path, numbered(step))
    damage(tmp_path / "step-00000020")
    path, skipped = checkpoint.newest_valid(tmp_path)
    assert path == tmp_path / "step-00000010"
    assert [re.fullmatch(f"step-00000020: {sentence}", line) is not None for line in skipped] == [True]


def test_a_wrong_latest_changes_nothing(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):  # by number and not by letter
        checkpoint.write(tmp_path, numbered(step))
    (tmp_path / "latest").write_text("step-99999999\n")
    assert checkpoint.newest_valid(tmp_path) == (tmp_path / "step-100000000", [])


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / ".tmp-step-00000001-node-1").mkdir()
    assert checkpoint.newest_valid(tmp_path) == (None, [])
    assert checkpoint.newest_valid(tmp_path / "absent") == (None, [])


def test_the_same_step_again_replaces_the_first(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, numbered(10))
    checkpoint.write(tmp_path, dataclasses.replace(numbered(10), state={"second": True}))
    assert resume.load(tmp_path / "step-00000010").state == {"second": True, "step": 10}
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-00000010"]
