"""The model under DDP, and its optimizer."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as torch_dist
from torch.nn.parallel import DistributedDataParallel

from ...base.units import plural
from . import memory
from .consensus import Consensus
from .feed import prepared
from .precision import Precision
from .sizes import BatchSizes
from .work import Tensors, Work


class ModelWithLoss(torch.nn.Module):
    """The model and its loss as one forward pass, so that DDP, FSDP and the compiler see all of it."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.model = work.model
        self._loss = work.loss

    def forward(
        self, tensors: Tensors, function: Callable[[torch.nn.Module, Tensors], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return the sum of losses of a micro batch, or what another function of the model returns for it."""
        return (function or self._loss)(self.model, tensors)

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which this rank can run the model without the others."""
        return contextlib.nullcontext()

    def free(self) -> None:
        """Free the weights that a forward pass without a backward pass gathered."""


def wrap_ddp(model: torch.nn.Module, world_size: int, device: torch.device) -> torch.nn.Module:
    """Wrap a module in DDP if there is more than one rank."""
    if world_size == 1:
        return model
    # no buffer of our models changes in training; torch 2.13 renamed the option for that
    parameters = inspect.signature(DistributedDataParallel).parameters
    sync_buffers: dict[str, Any] = {
        "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers": False
    }
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,  # saves one copy of the gradients
        **sync_buffers,
    )


def warn_of_batch_norm(model: torch.nn.Module, sizes: BatchSizes) -> str:
    """Return a line about BatchNorm layers that see the samples of one rank only; empty if there are none."""
    batch_norm = torch.nn.modules.batchnorm._BatchNorm  # of any number of dimensions
    layers = [m for m in model.modules() if isinstance(m, batch_norm) and not isinstance(m, torch.nn.SyncBatchNorm)]
    if not layers or sizes.world_size == 1:
        return ""
    return (
        f"warning: the model has {plural(len(layers), 'BatchNorm layer')}, normalizing over one rank's micro batch"
        f" ({plural(sizes.micro_batch_size, 'sample')}), so results differ from one GPU's: use SyncBatchNorm"
        " (torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)) or GroupNorm"
    )


def make_optimizer(model: torch.nn.Module, config: Any) -> torch.optim.Optimizer:
    """Return AdamW, fused where the device supports it, with weight decay on matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    try:
        return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), fused=True)
    except RuntimeError:  # a device without the fused kernel
        return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))


def clip_gradients(model: torch.nn.Module, most: float) -> torch.Tensor:
    """Scale the gradients down to a norm of `most` (0: leave them); return the norm that they had, on every rank."""
    parameters = list(model.parameters())
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if hasattr(norm, "full_tensor"):  # of gradients in parts
        norm = norm.full_tensor()
    torch.nn.utils.clip_grads_with_norm_(parameters, most or math.inf, norm)
    return norm


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that FSDP shards; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def accumulating(ddp_model: torch.nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return the context for a micro batch that is not the last of its step: gradients are not averaged yet."""
    return ddp_model.no_sync() if isinstance(ddp_model, DistributedDataParallel) else contextlib.nullcontext()


def try_step(
    ddp_model: torch.nn.Module,
    work: Work,
    rows: int,
    precision: Precision,
    device: torch.device,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Run the passes of a micro batch that changes nothing, with memory for the optimizer's state reserved.

    It does not communicate.
    """
    reserved = [torch.empty_like(p) for g in optimizer.param_groups for p in g["params"] for _ in (1, 2)]
    batch = work.train.batch([i % len(work.train) for i in range(rows)])
    try:
        with accumulating(ddp_model):
            with precision.autocast():
                loss = ddp_model(prepared(work, batch, device, rows=rows))
            (loss * 0).backward()
    finally:
        optimizer.zero_grad(set_to_none=True)
        del reserved


def fit_memory(
    sizes: BatchSizes, attempt: Callable[[int], None], consensus: Consensus, device: torch.device, precision: Precision
) -> BatchSizes:
    """Halve the micro batch until `attempt`, a step of so many rows, fits on every rank."""
    fits = memory.fit_micro_batch(sizes, lambda sizes: attempt(sizes.micro_batch_size), consensus)
    if fits is None:
        raise memory.explain(device, BatchSizes(sizes.global_batch_size, 1, 1, sizes.world_size), precision.name)
    return fits


def settle_buckets(
    ddp_model: torch.nn.Module, work: Work, device: torch.device, optimizer: torch.optim.Optimizer, rows: int
) -> None:
    """Let DDP rebuild its buckets before the first step.

    DDP does so once, in the order in which gradients arrive, which changes the order of additions in the all-reduce.
    With three ranks or more the first step of a resumed run would otherwise differ in the last bits.
    """
    if not isinstance(ddp_model, DistributedDataParallel) or torch_dist.get_world_size() < 3:  # a + b = b + a
        return
    for _ in range(2):
        (ddp_model(prepared(work, work.train.batch([0]), device, rows=rows)) * 0).backward()
        optimizer.zero_grad(set_to_none=True)
