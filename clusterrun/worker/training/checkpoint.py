"""The checkpoint on disk: a folder per step that appears atomically and can be verified later.

A folder `step-00000010` holds model.safetensors, config.json, trainer.pt, state.json and manifest.json, which has the
sha256 of the others; and `best_weights`, in the format of safetensors, if an earlier step had the lowest held-out loss.
Under FSDP a file of each rank (`shards.py`) takes the place of model.safetensors, trainer.pt and best_weights.
The file `latest` names the newest one: a hint, not needed to resume.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...base.decode import parse_object
from ...run_folder import atomic, attempt_number
from ...run_folder.atomic import Check
from . import atomic_files

WEIGHTS, TRAINER, STATE, CONFIG = "model.safetensors", "trainer.pt", "state.json", "config.json"
MANIFEST, LATEST = "manifest.json", "latest"
BEST = "best_weights"  # without a suffix: a reader of all safetensors in the folder must not take it for the model

_NAME = re.compile(r"step-(?P<step>\d{8,})(?P<aside>\.replaced)?")


class BadCheckpoint(Exception):
    """A damaged checkpoint; the message says what is wrong, without the folder's name."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of the training state in host memory, to be written while training continues.

    `tensors` are contiguous, by their names in the model's state_dict, tied ones once. `trainer` holds
    "optimizer" and "scaler" (or None). `state` is JSON. `config_json` is empty for a model without a config.
    `best` are the weights of an earlier step that had the lowest held-out loss, if there is one.
    `offsets` say where each tensor begins in the whole one if this is a rank's shard; None: it is all of the state.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    trainer: dict[str, Any]
    state: dict[str, Any]
    config_json: str
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    offsets: dict[str, list[int]] | None = None


def take(model: torch.nn.Module, optimizer: Any, scaler: Any, state: dict[str, Any], step: int) -> Snapshot:
    """Copy the unwrapped model, the optimizer and the scaler (or None) to host memory; only this blocks training."""
    first: dict[Any, str] = {}
    kept = {k: v for k, v in trained_state(model).items() if first.setdefault(memory_key(v) or k, k) == k}
    trainer = {"optimizer": optimizer.state_dict(), "scaler": None if scaler is None else scaler.state_dict()}
    return copied(model, kept, trainer, state, step)


def copied(
    model: torch.nn.Module,
    tensors: dict[str, torch.Tensor],
    trainer: dict[str, Any],
    state: dict[str, Any],
    step: int,
    offsets: dict[str, list[int]] | None = None,
) -> Snapshot:
    """Copy tensors, the trainer's and other state to host memory, and return them once they are there."""
    plain = json.loads(json.dumps(state))
    snapshot = Snapshot(step, _copy(tensors), _copy(trainer), plain, _config(model), offsets=offsets)
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.current_stream().synchronize()
    return snapshot


def trained_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what training changes of a model: its state without frozen weights; all of it if none is frozen."""
    frozen = {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in frozen}


def memory_key(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return a key of a tensor's memory: equal for tied tensors, None for an empty one."""
    if not tensor.numel():
        return None
    start = tensor.untyped_storage().data_ptr()
    return start, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def write(
    folder: Path,
    snapshot: Snapshot,
    check: Check = attempt_number.check,
    collect: Callable[[Path], dict[str, Any]] | None = None,
) -> Path:
    """Write a checkpoint into `folder` and return its path once it is on disk.

    `collect(folder)` writes the shards, and returns their entries of the manifest.
    Raises OSError, and Superseded from `check`, which runs before each rename. An error leaves nothing behind, and the
    other checkpoints and `latest` unchanged.
    """
    check()
    folder.mkdir(parents=True, exist_ok=True)
    atomic_files.sweep(folder)
    target = folder / f"step-{snapshot.step:08d}"
    temporary, pointer = atomic_files.temporary(target), atomic_files.temporary(folder / LATEST)
    try:
        temporary.mkdir()
        shards = collect(temporary) if collect else {}
        parts = _parts(snapshot)
        files = shards | {name: atomic_files.write_file(temporary / name, part) for name, part in parts.items()}
        manifest = json.dumps({"files": files})
        atomic_files.write_file(temporary / MANIFEST, lambda out: out.write(manifest.encode()))
        atomic.sync(temporary)
        # write everything that takes disk space before the first rename
        atomic_files.write_file(pointer, lambda out: out.write(f"{target.name}\n".encode()))
        _put_in_place(temporary, target, check)
        atomic_files.publish(pointer, folder / LATEST, check)
        atomic.sync(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        pointer.unlink(missing_ok=True)
        raise
    return target


def _parts(snapshot: Snapshot) -> dict[str, Callable[[atomic_files.Hashed], Any]]:
    """Return what writes each file of a checkpoint but its shards and the manifest, by name."""
    parts: dict[str, Callable[[atomic_files.Hashed], Any]] = {
        STATE: lambda out: out.write(json.dumps(snapshot.state | {"step": snapshot.step}).encode()),
    }
    if snapshot.offsets is None:
        parts[WEIGHTS] = lambda out: atomic_files.write_safetensors(snapshot.tensors, out)
        parts[TRAINER] = lambda out: torch.save(snapshot.trainer, out)  # type: ignore[arg-type]  # it needs write(), flush()
        if snapshot.best:
            parts[BEST] = lambda out: atomic_files.write_safetensors(snapshot.best, out)
    if snapshot.config_json:
        parts[CONFIG] = lambda out: out.write(snapshot.config_json.encode())
    return parts


def shard_name(rank: int) -> str:
    """Return the name of a rank's shard."""
    return f"shard-{rank:05d}.safetensors"


def is_in_shards(path: Path) -> bool:
    """Return whether a checkpoint has a shard of each rank."""
    return (path / shard_name(0)).exists()


def verify(path: Path) -> None:
    """Read every file of a checkpoint and compare it with the manifest; raises BadCheckpoint."""
    for name, (size, digest) in listed(path).items():
        file = path / name
        try:
            if not file.is_file():
                raise BadCheckpoint(f"{name} is missing")
            if file.stat().st_size != size:
                raise BadCheckpoint(f"{name} has {file.stat().st_size} bytes, but the manifest says {size}")
            with open(file, "rb") as content:
                same = hashlib.file_digest(content, "sha256").hexdigest() == digest
        except OSError as error:
            raise BadCheckpoint(f"{name} cannot be read ({error.strerror})") from None
        if not same:
            raise BadCheckpoint(f"{name} does not match the sha256 in its manifest")


def newest_valid(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the valid checkpoint with the highest step, and a line for each newer one that was skipped.

    A missing folder has none; one that cannot be read raises OSError.
    """
    skipped: list[str] = []
    for _, path in found(folder):
        try:
            verify(path)
        except BadCheckpoint as bad:
            skipped.append(f"{path.name}: {bad}")
        else:
            return path, skipped
    return None, skipped


def found(folder: Path) -> list[tuple[int, Path]]:
    """List the checkpoints in a folder with their steps, newest first, valid or not; raises OSError."""
    try:
        names = [_NAME.fullmatch(name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    ordered = sorted((match for match in names if match), key=lambda m: (-int(m["step"]), m["aside"] or ""))
    return [(int(match["step"]), folder / match[0]) for match in ordered]


def run_of(path: Path) -> str | None:
    """Return the id of the run that wrote a checkpoint, None if unknown."""
    try:
        return str(parse_object(atomic_files.read_small(path / STATE))["run_id"])
    except (OSError, ValueError, KeyError):
        return None


def prune(
    folder: Path,
    keep_last: int,
    best: int | None = None,
    in_use: Path | None = None,
    run_id: str | None = None,
    check: Check = attempt_number.check,
) -> None:
    """Delete all but the newest `keep_last` checkpoints, step `best` and `in_use`; raises OSError and Superseded.

    With `run_id`, checkpoints of other runs are neither counted nor deleted, nor are those newer than `latest`, which
    were not valid.
    """
    there = _of_run(folder, run_id)
    kept = _kept_steps({step for step, _ in there}, _latest(folder), keep_last) | {best}
    superseded = {path.with_suffix(".replaced") for _, path in there if path.suffix != ".replaced"}
    for step, path in there:
        if (path in superseded or step not in kept) and not _is_same(path, in_use):
            atomic_files.discard(path, check)


def _of_run(folder: Path, run_id: str | None) -> list[tuple[int, Path]]:
    return [(step, path) for step, path in found(folder) if run_id is None or run_of(path) == run_id]


def _kept_steps(steps: set[int], written: int | None, keep_last: int) -> set[int | None]:
    newer = {step for step in steps if written is not None and step > written}
    return {*newer, *sorted(steps - newer, reverse=True)[:keep_last]}


def _is_same(path: Path, other: Path | None) -> bool:
    return other is not None and path.resolve() == other.resolve()


def _put_in_place(temporary: Path, target: Path, check: Check) -> None:
    aside = target.with_suffix(".replaced")  # found() knows this name: one of the two exists at any moment
    if target.exists():
        check()
        shutil.rmtree(aside, ignore_errors=True)
        atomic_files.publish(target, aside, check)
    atomic_files.publish(temporary, target, check)
    atomic.sync(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def listed(path: Path) -> dict[str, tuple[int, str]]:
    """Return the size and sha256 of the files of a checkpoint by its manifest; raises BadCheckpoint."""
    try:
        entries = parse_object(atomic_files.read_small(path / MANIFEST))["files"]
        files = {str(name): (entry["size"], entry["sha256"]) for name, entry in entries.items()}
    except FileNotFoundError:
        raise BadCheckpoint(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise BadCheckpoint(f"{MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadCheckpoint(f"{MANIFEST} is damaged") from None
    for name in (STATE,) if shard_name(0) in files else (WEIGHTS, TRAINER, STATE):
        if name not in files:
            raise BadCheckpoint(f"{MANIFEST} does not list {name}")
    return files


def _latest(folder: Path) -> int | None:
    try:
        match = _NAME.fullmatch(atomic_files.read_small(folder / LATEST).decode(errors="replace").strip())
    except OSError:
        return None
    return int(match["step"]) if match else None


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if not value.is_cuda:
            return value.clone(memory_format=torch.contiguous_format)
        return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(inner) for inner in value)
    return value


def _config(model: torch.nn.Module) -> str:
    """Return the model's config as save_pretrained writes it: with the class, and the weights' precision."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_json_string"):
        return ""
    document = json.loads(config.to_json_string())
    precision = next((str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()), None)
    return json.dumps(document | {"architectures": [type(model).__name__], "dtype": precision}, indent=2) + "\n"
