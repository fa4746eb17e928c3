"""LLaDA-8B's layout: it loads as a Llama without its own code, trains, samples, and is exported with its own names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from safetensors.torch import load_file
from torch.nn.functional import embedding, linear, rms_norm, silu, softmax

from clusterrun.base.errors import WorkerError
from clusterrun.worker import tasks
from clusterrun.worker.models import load, masked
from clusterrun.worker.rank import distenv
from clusterrun.worker.tasks import diffusion
from clusterrun.worker.training import stopping
from tests.worker.small_llada import CONFIG, HEADS, LAYERS, WIDTH, make_llada
from tests.worker.small_training import rows, run_env

pytestmark = pytest.mark.usefixtures("signals_as_before")
IDS = torch.tensor([[3, 5, 8, 13, 21, 34]])


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """A folder of LLaDA's layout, with code that must not run."""
    folder = tmp_path / "llada"
    make_llada(folder)
    (folder / "theirs.py").write_text("raise SystemExit('code of the folder was run')")
    yield folder
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Heads by positions by dimensions, turned by the positions' angles: the halves of a head are its pairs."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * CONFIG["rope_theta"] ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def computed(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """The logits of one row by the definition of the architecture, from the files: attention in both directions."""
    weights = load_file(folder / "model.safetensors")

    def of(name: str) -> torch.Tensor:
        return weights[f"model.transformer.{name}.weight"].float()

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(0, 1)

    x = embedding(ids[0], of("wte"))
    for layer in range(LAYERS):
        block = f"blocks.{layer}."
        y = rms_norm(x, (WIDTH,), of(block + "attn_norm"), 1e-5)
        q, k, v = (heads(linear(y, of(f"{block}{name}_proj"))) for name in "qkv")
        scores = rotated(q) @ rotated(k).transpose(1, 2) / (WIDTH // HEADS) ** 0.5
        x = x + linear((softmax(scores, -1) @ v).transpose(0, 1).flatten(1), of(block + "attn_out"))
        y = rms_norm(x, (WIDTH,), of(block + "ff_norm"), 1e-5)
        x = x + linear(silu(linear(y, of(block + "ff_proj"))) * linear(y, of(block + "up_proj")), of(block + "ff_out"))
    return linear(rms_norm(x, (WIDTH,), of("ln_f"), 1e-5), of("ff_out"))[None]


def loaded(folder: Path) -> Any:
    source = load.resolve(str(folder))
    model = load.build(source, head="causal", vocab_size=None, seq_len=16, pad_id=None, seed=1).eval()
    masked.make_bidirectional(model)
    return model


def test_it_loads_without_its_own_code_and_computes_what_its_definition_says(model: Path) -> None:
    with torch.no_grad():
        logits = loaded(model)(input_ids=IDS).logits
    torch.testing.assert_close(logits, computed(model, IDS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"parallel": "fsdp"}, {"lora": 4}])
def test_it_trains_samples_and_is_exported_with_its_own_names(
    model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    if "lora" in settings:
        pytest.importorskip("peft")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    chosen = {"model": str(model), "data": str(tmp_path / "text.txt"), "steps": 4, "eval_every": 4, "seq_len": 16}
    prompts: dict[str, Any] = {"sample_prompts": ("the quick",), "sample_tokens": 4, "lr": 0.01}
    stopping._received.clear()  # a run is a process of its own
    config = diffusion.Config(**chosen, **prompts, **settings)
    diffusion.run(config, distenv.resolve({}), run_env(tmp_path / "run"), torch.device("cpu"))
    assert rows(tmp_path / "run", "samples.jsonl")[-1]["prompt"] == "the quick"

    exported = tmp_path / "run" / "model"
    before, after = load_file(model / "model.safetensors"), load_file(exported / "model.safetensors")
    assert before.keys() == after.keys()
    changed = "model.transformer.blocks.0.ff_out.weight"
    assert not torch.allclose(before[changed].float(), after[changed], atol=1e-3)
    document = json.loads((exported / "config.json").read_text())
    assert document == {**CONFIG, "torch_dtype": "float32"}
    with torch.no_grad():
        logits = loaded(exported)(input_ids=IDS).logits
    torch.testing.assert_close(logits, computed(exported, IDS), rtol=1e-4, atol=1e-4)


def test_what_a_llama_cannot_compute_is_refused_by_name(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "block_type": "sequential", "alibi": True}))
    with pytest.raises(WorkerError, match="a LLaDA model with block_type=sequential, alibi=True is not supported"):
        loaded(model)


def test_its_positions_are_known_before_the_job_is_queued(model: Path) -> None:
    from clusterrun.worker.tasks import check_settings

    _, config = tasks.load("diffusion", [f"model={model}", "seq_len=128"], 1)
    with pytest.raises(WorkerError, match="seq_len=128 is longer than the 64 positions of llada: use 64 or less"):
        check_settings.examine(config)
