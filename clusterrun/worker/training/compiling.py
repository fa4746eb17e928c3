"""The compiled forward and backward pass: when there is one, where it is kept, and the way back to the plain one."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...base.units import plural
from ..rank.first_of_node import first_of_node
from ..rank.progress import here
from . import memory
from .consensus import Consensus
from .work import Work


def is_wanted(config: Any, work: Work, device: torch.device) -> bool:
    """Return whether to compile: compile=auto does on a GPU, for batches of one shape."""
    if config.compile != "auto":
        return bool(config.compile == "true")
    return device.type == "cuda" and work.one_shape and not config.deterministic and config.parallel == "ddp"


def compile_model(model: torch.nn.Module, work: Work, attempt: Callable[[], None], consensus: Consensus) -> str:
    """Compile a model in place by `attempt`, a forward and a backward pass without communication; return what to print.

    If that fails on any rank, no rank uses the compiled model.
    """
    use_own_cache()
    began = time.monotonic()
    with here.during("compiling"):
        model.compile(dynamic=False if work.one_shape else None)
        _compile_loss(work, True)
        with first_of_node.stage("compile"):
            problem = _problem(attempt)
        failed = int(consensus.sum([float(bool(problem))])[0])
    if not failed:
        return f"compiled in {time.monotonic() - began:.0f} s"
    model._compiled_call_impl = None
    _compile_loss(work, False)
    where = f" on {failed} of {plural(consensus.world_size, 'rank')}" if consensus.world_size > 1 else ""
    return f"cannot compile the model{where}{f' ({problem})' if problem else ''}: training goes on without that"


@contextlib.contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Run a compiled model as it is written meanwhile: other shapes than those of training are not worth compiling."""
    compiled, model._compiled_call_impl = model._compiled_call_impl, None
    try:
        yield
    finally:
        model._compiled_call_impl = compiled


def use_own_cache() -> None:
    """Let torch keep what it compiles, for restarts too, in a folder that no other user can write to.

    torch's default is a fixed name in /tmp, and torch unpickles and runs what it finds there.
    """
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return
    folder = os.path.join(tempfile.gettempdir(), f"clusterrun-compiled-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        folder = tempfile.mkdtemp(prefix="clusterrun-compiled-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder


def _compile_loss(work: Work, wanted: bool) -> None:
    if hasattr(work.loss, "compile"):  # what it keeps out of the compiled model
        work.loss.compile(wanted)


def _problem(attempt: Callable[[], None]) -> str:
    """Return why compiling failed; empty if it succeeded. Memory errors are left to the first step."""
    try:
        attempt()
    except Exception as error:  # the compiler calls other compilers, and raises what it likes
        if memory.is_oom(error):
            return ""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if not line.endswith(":")), "")
        return f"{type(error).__name__}: {reason}"[:200]
    return ""
