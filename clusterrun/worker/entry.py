"""The entry point of one rank."""

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

from . import distenv, launched, user_code
from .distenv import DistEnv, RunEnv
from .end_records import describe_error
from .errors import WorkerError, nearest
from .exit import RankExit
from .progress import Recorder, here

if TYPE_CHECKING:
    import torch

USAGE = "task NAME [KEY=VALUE …] | script -- FILE [ARGS…] | module -- MODULE [ARGS…] | command -- EXE [ARGS…] | check"
PEER_LOST = (
    "lost the connection to another rank, which ended without an error message: killed, or out of memory? See the log"
)
CONNECTION_LOST = re.compile(
    "closed by peer|reset by peer|Broken pipe|remote process exited"
)  # messages of gloo and NCCL
MODES = ("task", "script", "module", "command", "check")


@dataclass(frozen=True)
class Request:
    """What to run: the mode, its target, and the target's arguments."""

    mode: str
    target: str
    arguments: list[str]


def parse(argv: Sequence[str]) -> Request:
    """Parse the worker's command line; raises WorkerError (status 2)."""
    mode, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if mode not in MODES:
        raise WorkerError(f"unknown mode {mode!r}{nearest(mode, MODES)}; usage: {USAGE}", status=2)
    if mode != "task" and rest[:1] == ["--"]:
        rest = rest[1:]
    if not rest and mode != "check":
        raise WorkerError(f"{mode}: nothing to run; usage: {USAGE}", status=2)
    return Request(mode, (rest or [""])[0], rest[1:])


def main(argv: Sequence[str]) -> int:
    """Run one rank, write its records into the attempt's folder, and return its exit status."""
    argv = launched.adopt(argv)
    faulthandler.enable()
    gc.disable()  # imports create many objects that stay: collecting garbage meanwhile takes time for nothing
    try:
        dist, run = distenv.resolve(), RunEnv.resolve(os.environ)
    except WorkerError as error:
        print(f"clusterrun: {error}", file=sys.stderr)
        return error.status
    rank_exit = RankExit(dist, run)
    rank_exit.install()
    if run.attempt_dir is not None:
        Recorder(here, dist, run.attempt_dir, run.progress_interval).start()
    try:
        outcome = _work(parse(argv), dist, run, rank_exit)
    except WorkerError as error:
        return rank_exit.fail_with_message(error.status, str(error))
    except BaseException as error:  # an error of torch while opening the process group, or a bug in the worker
        if dist.world_size > 1 and isinstance(error, RuntimeError) and CONNECTION_LOST.search(str(error)):
            return rank_exit.fail_with_message(1, PEER_LOST, even_second=False)
        traceback.print_exc()
        return rank_exit.fail(
            130 if isinstance(error, KeyboardInterrupt) else 1, describe_error(error), error.__traceback__
        )
    if outcome.status == 0:
        here.enter("ending")  # a rank that failed keeps its phase
        return rank_exit.succeed()
    return rank_exit.fail(outcome.status, outcome.error, outcome.trace)


def _work(request: Request, dist: DistEnv, run: RunEnv, rank_exit: RankExit) -> user_code.Outcome:
    # check the request before the slow start-up
    if request.mode == "script" and not os.path.exists(request.target):
        raise WorkerError(f"no such script: {request.target} (in {os.getcwd()})", status=2)
    if request.mode == "task":
        # a path or a prompt outside the log's encoding must not end the training
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        from . import tasks
        from .training import stopping

        stopping.expect()
        task = tasks.prepare(request.target, request.arguments, dist.world_size)
    _need_torch()
    if request.mode == "check" or run.check_gpus is not None:
        from . import checks

        here.enter("checking")
        checks.check(dist, run, before_training=request.mode != "check")
    if request.mode == "check":
        return user_code.Outcome(0)
    from . import group, worlds

    rank_exit.watch = watch = worlds.GroupWatch(dist)
    here.enter("joining")
    device = group.start(dist, run, cuda_check=request.mode != "command")
    rank_exit.joined = dist.master is not None
    _watch_gpu(device, run, request.mode)
    if request.mode == "task":
        here.enter("loading")
        if rank_exit.joined:
            watch.set_joined()  # the group that is open already
        task(dist, run, device)
        group.stop()
        return user_code.Outcome(0)
    # the user's script opens its own process group; torch refuses a second one
    group.stop()
    gc.freeze()
    gc.enable()
    group.set_default_timeout(run.pg_timeout)
    launched.set_variables(dist, run.run_id)
    here.enter("script")
    watch.start(in_process=request.mode != "command")
    arguments = distenv.fill_placeholders(request.arguments, dist)
    if request.mode == "script":
        return user_code.run_script(request.target, arguments)
    if request.mode == "module":
        return user_code.run_module(request.target, arguments)
    return user_code.run_command([request.target, *arguments])


def _watch_gpu(device: torch.device, run: RunEnv, mode: str) -> None:
    """Add this rank's GPU, if any, to its progress record."""
    if device.type != "cuda" or device.index is None or run.attempt_dir is None:
        return
    import torch

    from .nvml import GpuSampler

    # asking torch opens CUDA, which a user's command needs for itself
    properties = torch.cuda.get_device_properties(device) if mode != "command" else None
    sampler = GpuSampler(device.index, str(getattr(properties, "uuid", "")), run.progress_interval)
    sampler.start()
    here.gpu = sampler.figures


def _need_torch() -> None:
    try:
        import torch.distributed  # noqa: F401
    except ImportError as error:
        raise WorkerError(f"{sys.executable} cannot import torch ({error}): pip install torch") from None
