"""LoRA by the peft package: adapters of linear layers are trained in place of the weights, and merged at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError
from ..training import atomic_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

NAME = "default"  # peft's, in the names of the adapters' weights
FOLDER = "adapter"  # in the finished model's, for PeftModel.from_pretrained


def add(model: PreTrainedModel, rank: int, base: str, seed: int) -> None:
    """Add adapters of a rank to all linear layers but the last, and freeze all else but a classifier's head.

    They begin as no change. `base` names the model for who loads the adapters later. Raises WorkerError without peft.
    """
    import torch

    try:
        from peft import LoraConfig, LoraModel, TaskType
    except ImportError:
        raise WorkerError(f"lora={rank} needs the peft package: pip install peft") from None
    kind = None if model.get_output_embeddings() else TaskType.SEQ_CLS
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type=kind, base_model_name_or_path=base
    )
    torch.manual_seed(seed)
    LoraModel(model, config, NAME)
    if kind is not None:
        for name, weight in model.named_parameters():
            if not name.startswith(f"{model.base_model_prefix}."):
                weight.requires_grad = True


def has_adapters(model: torch.nn.Module) -> bool:
    """Return whether adapters were added to a model."""
    return hasattr(model, "peft_config")


def merge(plain: PreTrainedModel, adapted: Any, weights: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """Return a model without adapters that computes what the adapted one does with these weights."""
    from peft import LoraModel

    tuner = LoraModel(plain, adapted.peft_config[NAME], NAME)
    plain.load_state_dict(
        {name: weight.clone() for name, weight in weights.items()}, assign=True
    )  # merging adds to them
    merged: PreTrainedModel = tuner.merge_and_unload()
    return merged


def write_adapter(folder: Path, adapted: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Write what was trained as peft does it, into a folder of its own; raises OSError."""
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    tensors = {f"base_model.model.{name.replace(f'.{NAME}.', '.')}": weights[name] for name in sorted(trained)}
    (folder / FOLDER).mkdir()
    adapted.peft_config[NAME].save_pretrained(folder / FOLDER)
    atomic_files.write_file(
        folder / FOLDER / "adapter_model.safetensors", lambda out: atomic_files.write_safetensors(tensors, out)
    )
