"""LoRA: only adapters are trained and saved, and the finished model has them merged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from clusterrun.base.errors import WorkerError
from clusterrun.worker import tasks
from clusterrun.worker.rank import distenv
from clusterrun.worker.tasks import check_settings, finish, lm
from clusterrun.worker.training import stopping
from clusterrun.worker.training.work import Work
from tests.worker.small_training import Counting, loss, run_env

pytest.importorskip("peft", reason="pip install -c constraints.txt '.[dev]'")
pytestmark = pytest.mark.usefixtures("signals_as_before")
IDS = torch.arange(8)[None]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model folder with random weights."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=16, num_attention_heads=2, num_key_value_heads=2, **shape)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture(params=["ddp", "fsdp"])
def parallel(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


def train(base: Path, folder: Path, parallel: str) -> None:
    stopping._received.clear()  # a run is a process of its own
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    work = Work(model, Counting(64), Counting(10), loss, fingerprint="counting")
    config = lm.Config(model=str(base), lora=4, steps=8, save_every=4, lr=0.05, parallel=parallel, keep="last")
    finish.train_and_save(work, config, distenv.resolve({}), run_env(folder), torch.device("cpu"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(IDS).logits
    return found


def test_the_finished_model_has_the_adapters_merged_and_peft_loads_them_too(
    tmp_path: Path, base: Path, parallel: str
) -> None:
    from peft import PeftModel

    train(base, tmp_path / "run", parallel)
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model"))
    plain: Any = AutoModelForCausalLM.from_pretrained(base)
    assert not torch.allclose(merged, logits(plain), atol=1e-2)
    adapted = PeftModel.from_pretrained(plain, tmp_path / "run" / "model" / "adapter")
    torch.testing.assert_close(logits(adapted), merged, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_has_the_adapters_alone_and_a_resumed_run_ends_bitwise_the_same(
    tmp_path: Path, base: Path, parallel: str
) -> None:
    train(base, tmp_path / "run", parallel)
    file = "shard-00000.safetensors" if parallel == "fsdp" else "model.safetensors"
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-00000008" / file)
    assert saved and all(".lora_" in name for name in saved)
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
    shutil.copytree(tmp_path / "run/checkpoints/step-00000004", tmp_path / "cut/checkpoints/step-00000004")
    train(base, tmp_path / "cut", parallel)
    adapter = Path("model") / "adapter" / "adapter_model.safetensors"
    assert (tmp_path / "cut" / adapter).read_bytes() == (tmp_path / "run" / adapter).read_bytes()


def test_adapters_of_an_untrained_model_are_refused() -> None:
    with pytest.raises(WorkerError, match="lora=8 needs a trained model, and model=tiny is untrained: set model=") as e:
        check_settings.examine(tasks.load("sft", ["lora=8"], 1)[1])
    assert e.value.status == 2
