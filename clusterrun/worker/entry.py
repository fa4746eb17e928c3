"""The entry point of one rank."""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..base.errors import WorkerError, suggestion
from ..run_folder.ends import Outcome
from .node.log import say
from .rank import child_signals, distenv, joining, launched, saved_code, user_code, worlds
from .rank.distenv import DistEnv, RunEnv
from .rank.exit import RankExit
from .rank.failures import describe_error, exception_kind, is_lost_connection, locate
from .rank.first_of_node import first_of_node
from .rank.nvml import GpuSampler
from .rank.progress import Recorder, here
from .rank.rendezvous import load_stores, port_range

if TYPE_CHECKING:
    import torch

USAGE = "task NAME [KEY=VALUE …] | script -- FILE [ARGS…] | module -- MODULE [ARGS…] | command -- EXE [ARGS…] | check"
PEER_LOST = "lost the connection to another rank (killed, or out of memory?): see the last log lines of the other ranks"
WHOLE_TORCH = "CLUSTERRUN_WHOLE_TORCH"  # set where torch's stores cannot be loaded alone
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, AMD, and WSL; without them torch sees no GPU
START = "start the script"  # of first_of_node
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
        raise WorkerError(f"unknown mode {mode!r}{suggestion(mode, MODES)}; usage: {USAGE}", status=2)
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
        say(str(error))
        return error.status
    rank_exit = RankExit(dist, run)
    rank_exit.install()
    if run.attempt_dir is not None:
        Recorder(here, dist, run.attempt_dir, run.progress_interval).start()
    try:
        outcome = _work(parse(argv), dist, run, rank_exit)
    except WorkerError as error:
        return rank_exit.fail_with_message(error)
    except BaseException as error:  # an error of torch while opening the process group, or a bug in the worker
        if dist.world_size > 1 and isinstance(error, RuntimeError) and is_lost_connection(str(error)):
            return rank_exit.fail_with_message(WorkerError(PEER_LOST, kind="peer-lost"), even_second=False)
        traceback.print_exc()
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
        return rank_exit.fail(
            Outcome(status, describe_error(error), locate(error.__traceback__), exception_kind(error))
        )
    if outcome.status == 0:
        first_of_node.passed(START)  # it joined nobody: the others have not started yet
        here.enter("ending")  # a rank that failed keeps its phase
        return rank_exit.succeed()
    return rank_exit.fail(outcome)


def _work(request: Request, dist: DistEnv, run: RunEnv, rank_exit: RankExit) -> Outcome:
    request = _find_files(request)
    # check the request before the slow start-up
    task = _prepare_task(request, dist) if request.mode == "task" else None
    rank_exit.runs_own_code = request.mode in ("task", "check")
    checks_first, alone = request.mode == "check" or run.check_gpus is not None, dist.world_size == 1
    _look_around(dist, checks_first)
    first_of_node.open(dist, run)
    with first_of_node.stage("import torch"):
        _load_torch(request, alone, checks_first)
    if checks_first:
        from . import checks

        here.enter("checking")
        checks.check(dist, run, before_training=request.mode != "check")
    if request.mode == "check":
        return Outcome(0)
    rank_exit.watch = watch = None if alone else worlds.GroupWatch(dist)
    here.enter("joining")
    if request.mode == "command":
        _join_command(dist, run)
        rank_exit.joined = not alone
        first_of_node.wait(START)
        _prepare_user_code(dist, run, watch, in_process=False)
        return user_code.run_command([request.target, *distenv.fill_placeholders(request.arguments, dist)])
    from .rank import group

    device = group.start(dist, run)
    rank_exit.joined = not alone
    _watch_gpu(device, run)
    if task is None:
        group.stop()  # the user's script opens its own process group; torch refuses a second one
        group.set_default_timeout(run.pg_timeout)
        first_of_node.wait(START)
        return _run_python(request, dist, run, rank_exit)
    here.enter("loading")
    if watch is not None:
        watch.set_joined()  # the group that is open already
    task(dist, run, device)
    group.stop()
    return Outcome(0)


def _look_around(dist: DistEnv, checks_first: bool) -> None:
    """Let the first rank of a node look for what others left there, while it loads; the checks look themselves."""
    if dist.local_rank == 0 and not checks_first:
        from .node import left_behind

        left_behind.Search(dist.node, port_range(), left_behind.tell)


def _find_files(request: Request) -> Request:
    """Return the request with the run's saved code in place of the project's files; raises WorkerError."""
    if request.mode in ("task", "check"):
        return request
    target = saved_code.find_saved(request.target) if request.mode != "module" else ""
    target = target or request.target
    if request.mode == "script" and not os.path.exists(target):
        text = f"no such script: {target} (in {os.getcwd()})"
        raise WorkerError(text, status=2, kind="file-missing", path=os.path.join(os.getcwd(), target))
    return Request(request.mode, target, saved_code.replace_files(request.arguments))


def _prepare_task(request: Request, dist: DistEnv) -> Callable[[DistEnv, RunEnv, torch.device], None]:
    """Return the task to run; raises WorkerError (status 2) for settings that are not possible."""
    # a path or a prompt outside the log's encoding must not end the training
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    from . import tasks
    from .training import stopping

    stopping.expect()
    return tasks.prepare(request.target, request.arguments, dist.world_size)


def _load_torch(request: Request, alone: bool, checks_first: bool) -> None:
    """Import torch, or what this rank needs of it: a command's ranks only meet, and a single one needs nothing."""
    has_gpus = any(map(os.path.exists, GPU_DEVICES))
    stores_only = request.mode == "command" and not has_gpus and not checks_first
    if not (stores_only and alone):
        _need_torch(stores_only)


def _run_python(request: Request, dist: DistEnv, run: RunEnv, rank_exit: RankExit) -> Outcome:
    _prepare_user_code(dist, run, rank_exit.watch, in_process=True)
    child_signals.install()
    rank_exit.hide_handler()
    saved_code.extend_path()
    arguments = distenv.fill_placeholders(request.arguments, dist)
    start = user_code.run_script if request.mode == "script" else user_code.run_module
    return start(request.target, arguments)


def _join_command(dist: DistEnv, run: RunEnv) -> None:
    """Bring the ranks of a command together; neither CUDA nor a process group is opened."""
    facts = joining.rank_facts(dist)
    if "torch.cuda" in sys.modules:  # there are GPUs to count
        from .rank import group

        facts = group.find_facts(dist, ask_uuid=False)
    plan, _ = joining.meet(dist, run, facts)
    if dist.rank == 0:
        joining.announce(plan, run)
    joining.choose_gloo_interface(dist, run)
    if plan["device_type"] == "cuda":
        _sample_gpu(facts["device"], "", run)


def _prepare_user_code(dist: DistEnv, run: RunEnv, watch: worlds.GroupWatch | None, in_process: bool) -> None:
    gc.freeze()
    gc.enable()
    launched.set_variables(dist, run.run_id)
    if in_process:
        launched.limit_store_to_its_port(dist)
    here.enter("script")
    if watch is not None:
        watch.starts_to_join = partial(first_of_node.passed, START)
        watch.start(in_process)
        here.own_world = watch.own_world


def _watch_gpu(device: torch.device, run: RunEnv) -> None:
    if device.type == "cuda" and device.index is not None:
        import torch

        _sample_gpu(device.index, str(getattr(torch.cuda.get_device_properties(device), "uuid", "")), run)


def _sample_gpu(index: int, uuid: str, run: RunEnv) -> None:
    if run.attempt_dir is not None:
        sampler = GpuSampler(index, uuid, run.progress_interval)
        sampler.start()
        here.gpu = sampler.figures


def _reason(error: ImportError) -> str:
    """Return why an import failed, on one line: numpy writes a page around the original error."""
    _, original, reason = str(error).partition("Original error was: ")
    lines = (reason if original else str(error)).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _need_torch(stores_only: bool) -> None:
    """Import torch, or its stores alone: a rank of a command needs the rest only to count GPUs."""
    whole = os.environ.pop(WHOLE_TORCH, None)
    if not stores_only or whole or importlib.util.find_spec("torch") is None:
        try:
            import torch.distributed  # noqa: F401
        except ImportError as error:
            hint = f"; run: {sys.executable} -m pip install torch" if isinstance(error, ModuleNotFoundError) else ""
            text, why = f"{sys.executable} cannot import torch", _reason(error)
            raise WorkerError(f"{text} ({why}){hint}", kind="import-error", python=sys.executable, why=why) from None
        return
    try:
        load_stores()
    except Exception:  # another layout of torch: start again, with all of it
        os.environ[WHOLE_TORCH] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
