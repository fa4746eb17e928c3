"""A checkpoint in shards: each rank writes its parts of the weights and of AdamW's state; any number can load it.

The files are in the safetensors format of torch.distributed.checkpoint: each says where its tensors begin in the whole
ones, and nothing in them can run code, as its pickled format could. Its reader gives a rank the parts that it needs.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.tensor import DTensor

from ...base.errors import WorkerError
from ...run_folder.atomic import Check
from ..rank.distenv import DistEnv, RunEnv
from ..rank.failures import first_line
from . import atomic_files, best, checkpoint, resume
from .background_writer import BackgroundWriter, Write
from .checkpoint import Snapshot
from .checkpointing import Checkpointer, other_parallel
from .consensus import Consensus
from .ddp import own_part

BEST = "best."  # before the names of the best weights, if those are an earlier step's


class ShardCheckpointer(Checkpointer):
    """All ranks load their parts of a checkpoint, and write them together; rank 0 finds, verifies and publishes it."""

    def __init__(self, config: Any, dist: DistEnv, run: RunEnv, consensus: Consensus) -> None:
        self._writers = Consensus(dist, run)  # the threads that write have a group of their own
        super().__init__(config, dist, run, consensus)

    @property
    def saves(self) -> bool:
        return True

    def _read(self, path: Path) -> resume.Loaded:
        if not checkpoint.is_in_shards(path):
            raise other_parallel(path, "ddp")
        return resume.load_state(path)

    def _load_into(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        path: Path,
        loaded: resume.Loaded,
    ) -> None:
        load(path, model, optimizer)

    def _load_best(self, path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        return load_best(path, model)

    def _new_writer(self, folder: Path, write: Write | None = None) -> BackgroundWriter:
        return super()._new_writer(folder, functools.partial(write_together, group=self._writers))

    def _take(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        state: dict[str, Any],
        step: int,
    ) -> Snapshot:
        return take(model, optimizer, state, step)

    def _is_saved(self, step: int) -> bool:
        """Return what rank 0 knows: ranks that save together must agree."""
        return bool(self._writers.broadcast(super()._is_saved(step)))


def take(model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], step: int) -> Snapshot:
    """Copy this rank's parts of the model and of the optimizer's state to host memory."""
    parts: dict[str, torch.Tensor] = {}
    offsets: dict[str, list[int]] = {}
    rank = torch_dist.get_rank()
    for name, tensor in _tensors(model, optimizer).items():
        if isinstance(tensor, DTensor):
            (chunk,) = tensor.__create_chunk_list__()
            part, offset = tensor.to_local(), list(chunk.offsets)
        else:
            part, offset = tensor, [0] * tensor.dim()
        if part.numel() and (rank == 0 or isinstance(tensor, DTensor)):
            parts[name], offsets[name] = part, offset
    return checkpoint.copied(model, parts, {}, state, step, offsets)


def write_together(folder: Path, snapshot: Snapshot, check: Check, group: Consensus) -> Path | None:
    """Write a checkpoint with all ranks; return its path on rank 0, and None on the others.

    On rank 0 raises as `checkpoint.write` does, also for an error of another rank. An error of any rank leaves the
    other checkpoints unchanged.
    """
    if group.rank != 0:
        temporary = group.broadcast("")
        if temporary:
            group.gather(_write_shard(Path(temporary), snapshot, group.rank))
        return None
    asked = False

    def collect(temporary: Path) -> dict[str, Any]:
        nonlocal asked
        asked = True
        group.broadcast(str(temporary.absolute()))
        files: dict[str, Any] = {}
        for rank, (written, failure) in enumerate(group.gather(_write_shard(temporary, snapshot, 0))):
            if failure:
                raise OSError(0, f"rank {rank}: {failure}")
            files[checkpoint.shard_name(rank)] = written
        return files

    try:
        return checkpoint.write(folder, snapshot, check, collect)
    finally:
        if not asked:  # nor will it be: the other ranks wait for a folder
            group.broadcast("")


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load this rank's parts of the model and of the optimizer's state. Raises WorkerError."""
    _read(path, _tensors(model, optimizer), is_other=lambda name: name.startswith(BEST))


def load_best(path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return this rank's parts of the best weights that a checkpoint has beside its own. Raises WorkerError."""
    names = best.copy_weights(model)
    weights = model.state_dict()
    copies = {f"{BEST}{name}": torch.empty_like(weights[name]) for name in names}
    _read(path, copies, is_other=lambda name: not name.startswith(BEST))
    return {name: own_part(copies[f"{BEST}{name}"]).cpu() for name in names}


def _read(path: Path, wanted: dict[str, torch.Tensor], is_other: Callable[[str], bool]) -> None:
    """Read this rank's parts of tensors, which must be all that a checkpoint has but for the other ones."""
    try:
        _refuse_unlisted(path)
        reader = HuggingFaceStorageReader(str(path))
        entries = reader.read_metadata().state_dict_metadata.items()
        stored = {name: e.size for name, e in entries if isinstance(e, TensorStorageMetadata) and not is_other(name)}
        resume.compare({name: tensor.shape for name, tensor in wanted.items()}, stored, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no_dist: each rank reads what it needs, and asks no other rank
            load_checkpoint(dict(wanted), storage_reader=reader, no_dist=True)
    except WorkerError:
        raise
    except Exception as error:  # the errors of torch and safetensors have no common class
        raise WorkerError(f"checkpoint {path} cannot be read: {first_line(error)}") from None


def _write_shard(folder: Path, snapshot: Snapshot, rank: int) -> tuple[dict[str, Any], str]:
    """Write a rank's shard; return its entry of the manifest and why it failed (empty if it did not)."""
    try:
        offsets = snapshot.offsets or {}
        best_parts = {f"{BEST}{name}": tensor for name, tensor in snapshot.best.items() if name in offsets}
        tensors = snapshot.tensors | best_parts
        info = {name: {"saved_offsets": offsets[name.removeprefix(BEST)]} for name in tensors}
        metadata = {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(info)}
        fill = functools.partial(atomic_files.write_safetensors, tensors, metadata=metadata)
        return atomic_files.write_file(folder / checkpoint.shard_name(rank), fill), ""
    except Exception as error:  # whatever it is, the other ranks wait for an answer
        return {}, getattr(error, "strerror", None) or first_line(error)


def _tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the weights (tied ones once) and the optimizer's state by name; a new optimizer gets one to be loaded."""
    first: dict[int, str] = {}
    weights = checkpoint.trained_state(model)
    tensors = {name: tensor for name, tensor in weights.items() if first.setdefault(id(tensor), name) == name}
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    for name, value in get_optimizer_state_dict(model, optimizer, options=flat).items():
        if isinstance(value, torch.Tensor):  # and not a number that a setting gives
            tensors[name] = value if value.dim() else value.view(1)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _refuse_unlisted(path: Path) -> None:
    """Raise WorkerError for a file that the manifest does not list: the reader would take it for a shard."""
    listed = checkpoint.listed(path)
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors") and name not in listed:
            raise WorkerError(f"checkpoint {path} has {name}, which its {checkpoint.MANIFEST} does not list")
