"""One rank from its first line to its exit status."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import distenv, user_code
from .distenv import DistEnv, RunEnv
from .end_records import describe_error
from .errors import WorkerError, nearest
from .exit import Ending
from .progress import Recorder, here

if TYPE_CHECKING:
    import torch

USAGE = "task NAME [KEY=VALUE …] | script -- FILE [ARGS…] | module -- MODULE [ARGS…] | command -- EXE [ARGS…]"
A_RANK_IS_GONE = (
    "lost the connection to another rank, which ended without a word: killed, or short of memory? The log says which"
)
LOST = re.compile("closed by peer|reset by peer|Broken pipe|remote process exited")  # gloo's words, and NCCL's
MODES = ("task", "script", "module", "command")


@dataclass(frozen=True)
class Request:
    """What to run: the mode, its target, and the target's own arguments, untouched."""

    mode: str
    target: str
    arguments: list[str]


def parse(argv: Sequence[str]) -> Request:
    """Read the worker's command line; raises WorkerError (status 2) in one line."""
    mode, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if mode not in MODES:
        raise WorkerError(f"unknown mode {mode!r}{nearest(mode, MODES)}; usage: {USAGE}", status=2)
    if mode != "task" and rest[:1] == ["--"]:
        rest = rest[1:]
    if not rest:
        raise WorkerError(f"{mode}: nothing to run; usage: {USAGE}", status=2)
    return Request(mode, rest[0], rest[1:])


def main(argv: Sequence[str]) -> int:
    """Run one rank; returns its exit status and leaves its markers in the attempt folder."""
    faulthandler.enable()
    gc.disable()  # imports make a great many objects that stay: looking through them again and again takes its time
    try:
        dist, run = distenv.resolve(), RunEnv.resolve(os.environ)
    except WorkerError as error:
        print(f"clusterrun: {error}", file=sys.stderr)
        return error.status
    ending = Ending(dist, run)
    ending.install()
    if run.attempt_dir is not None:
        Recorder(here, dist, run.attempt_dir, run.progress_interval).start()
    try:
        outcome = _work(parse(argv), dist, run, ending)
    except WorkerError as error:
        return ending.fail_saying(error.status, str(error))
    except BaseException as error:  # torch's errors while the group is opened, or a mistake of ours
        if dist.world_size > 1 and isinstance(error, RuntimeError) and LOST.search(str(error)):
            return ending.fail_saying(1, A_RANK_IS_GONE, even_second=False)
        traceback.print_exc()
        return ending.fail(
            130 if isinstance(error, KeyboardInterrupt) else 1, describe_error(error), error.__traceback__
        )
    if outcome.status == 0:
        here.enter("ending")  # a rank that failed stays where it was
        return ending.succeed()
    return ending.fail(outcome.status, outcome.error, outcome.trace)


def _work(request: Request, dist: DistEnv, run: RunEnv, ending: Ending) -> user_code.Outcome:
    # what is wrong with the request must not cost a start-up
    if request.mode == "script" and not os.path.exists(request.target):
        raise WorkerError(f"no such script: {request.target} (in {os.getcwd()})", status=2)
    if request.mode == "task":
        # a path or a prompt that the log's encoding lacks must not end the training
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        from . import tasks
        from .training import stopping

        stopping.expect()
        task = tasks.prepare(request.target, request.arguments, dist.world_size)
    _need_torch()
    from . import group

    here.enter("joining")
    device = group.start(dist, run, cuda_check=request.mode != "command")
    ending.joined = dist.master is not None
    _watch_gpu(device, run, request.mode)
    if request.mode == "task":
        here.enter("loading")
        task(dist, run, device)
        group.stop()
        return user_code.Outcome(0)
    # the user's script opens its own group, and a second one in the same process is refused
    group.stop()
    gc.freeze()
    gc.enable()
    group.set_default_timeout(run.pg_timeout)
    os.environ.update(distenv.torch_variables(dist, run.run_id))
    here.enter("script")
    if request.mode == "script":
        return user_code.run_script(request.target, request.arguments)
    if request.mode == "module":
        return user_code.run_module(request.target, request.arguments)
    return user_code.run_command([request.target, *request.arguments])


def _watch_gpu(device: torch.device, run: RunEnv, mode: str) -> None:
    """Have the figures of this rank's GPU told, where it has one."""
    if device.type != "cuda" or device.index is None or run.attempt_dir is None:
        return
    import torch

    from .nvml import Watcher

    # asking torch opens CUDA, which a command of the user's wants for itself
    properties = torch.cuda.get_device_properties(device) if mode != "command" else None
    watcher = Watcher(device.index, str(getattr(properties, "uuid", "")), run.progress_interval)
    watcher.start()
    here.gpu = watcher.figures


def _need_torch() -> None:
    try:
        import torch.distributed  # noqa: F401
    except ImportError as error:
        raise WorkerError(f"{sys.executable} cannot import torch ({error}): pip install torch") from None
