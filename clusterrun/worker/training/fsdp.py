"""The model under FSDP2: each rank has a part of every weight, and whole weights only of the layer at work (ADR 36)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
import torch.distributed as torch_dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ...base.errors import WorkerError
from . import layers
from .ddp import ModelWithLoss
from .precision import Precision
from .work import Work

KEPT_SHARE = 0.25  # of a GPU's memory: layers that take no more together are kept until their backward pass


class ModelInParts(ModelWithLoss):
    """The model and its loss, with this rank's part of each weight between its steps."""

    frees_layers = True

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Keep the whole model on every rank."""
        parts = self._parts()
        for part in parts:
            if part is not self:
                part.set_reshard_after_forward(False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                if part is not self:
                    part.set_reshard_after_forward(self.frees_layers)
            self.free()

    def free(self) -> None:
        """Free the weights that a forward pass without a backward pass gathered, and forget in which order layers ran.

        In that order the next backward pass gathers ahead, and a rank that ran the model alone would wait for ever.
        """
        for part in self._parts():
            part.reshard()
            if (group := part._get_fsdp_state()._fsdp_param_group) is not None:
                group._post_forward_indices.clear()
        root: FSDPModule = self
        getattr(root._get_fsdp_state()._comm_ctx, "post_forward_order", []).clear()  # torch 2.13 has reset_iter_state()

    def _parts(self) -> list[FSDPModule]:
        return [module for module in self.modules() if isinstance(module, FSDPModule)]


def shard(work: Work, precision: Precision, device: torch.device) -> tuple[ModelInParts, Precision]:
    """Put this rank's part of each weight on the device; return the model with its loss, and its precision.

    In bf16 the weights are cast as they are gathered, in place of autocast; gradients are added in float32. The model
    comes from the CPU: as a whole it may not fit on the device. Raises WorkerError for fp16.
    """
    if precision.name == "fp16":
        raise WorkerError("parallel=fsdp needs a GPU with bf16: set precision=fp32, or parallel=ddp", status=2)
    if not torch_dist.is_initialized():  # one rank alone
        backend = "nccl" if device.type == "cuda" else "gloo"
        torch_dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (torch_dist.get_world_size(),))
    in_bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = in_bf16 if precision.name == "bf16" else MixedPrecisionPolicy()
    model = ModelInParts(work)
    model.frees_layers = not _fits_whole(model, precision, device)
    for layer in layers.outermost(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=model.frees_layers)
    # what is in no layer, such as the embedding, is needed first and last
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return model, dataclasses.replace(precision, has_autocast=False)


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the whole weights in host memory on rank 0, and nothing on the others. All ranks call it."""
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if torch_dist.get_rank() == 0:
            whole[name] = gathered.cpu()
    return whole


def _fits_whole(model: torch.nn.Module, precision: Precision, device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    width = 2 if precision.name == "bf16" else 4
    needed = width * sum(p.numel() for p in model.parameters())
    return needed <= KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory
