"""Launchers that start a node's ranks from one task per node: torchrun and others, or the user's own program (none).

The batch script starts `__main__.py launch torchrun --ranks 4 -- WORK…` on each node. The launcher runs in this
process, and each rank that it starts is a worker again. Ranks meet on the run's held store. Output lines get the
label of their rank, signals reach the ranks, and the exit status is that of the rank that failed first.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ...base.errors import WorkerError
from ...run_folder import ends
from ..node.local_launcher import Labeler, write_all
from ..node.log import say
from ..node.probe import children
from . import distenv
from .distenv import DistEnv, RunEnv
from .launched import OUTPUTS, RANKS, find_free_port, unset

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "none")
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
TERMINATED = 128 + signal.SIGTERM
READ = 3000  # bytes; labelled lines of usual length then fit into one atomic write to a pipe (4096)

Finish = Callable[[int], NoReturn]


def main(argv: Sequence[str]) -> int:
    """Start the ranks of this node and return the exit status; with none, become the worker that runs the program."""
    split = argv.index("--")
    parser = argparse.ArgumentParser(description="Start the ranks of a node.")
    parser.add_argument("launcher", choices=LAUNCHERS)
    parser.add_argument("--ranks", type=int, required=True, help="ranks per node")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--config", default="", help="accelerate's YAML configuration file")
    options, work = parser.parse_args(argv[:split]), list(argv[split + 1 :])
    worker = str(Path(__file__).parents[1] / "__main__.py")
    if options.launcher == "none":
        os.environ[RANKS] = str(options.ranks)
        os.execv(sys.executable, [sys.executable, "-u", worker, *work])
    try:
        node, run = distenv.resolve(), RunEnv.resolve(os.environ)
    except WorkerError as error:
        say(str(error))
        return error.status
    assert node.master is not None
    os.environ.update(rendezvous_variables(node, run, os.environ.get("CLUSTERRUN_JOB_ID", "0")))
    # of this task; accelerate would pass them to a single rank
    unset(distenv.torch_variables(node, "").keys() - {"MASTER_ADDR", "MASTER_PORT"})
    outputs = Outputs(node.rank * options.ranks, options.ranks, node.world_size * options.ranks)

    def finish(status: int) -> NoReturn:
        outputs.close()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)  # the launcher's threads may wait for nodes that are gone

    register = forward_signals(finish, run.attempt_dir)
    module, arguments = launch_command(node, run, options)
    single = options.launcher == "accelerate" and node.world_size * options.ranks == 1 and not options.config
    if options.launcher != "deepspeed" and not single:  # torchrun replaces $ in the ranks' arguments
        work = [word.replace("$", "$$") for word in work]
    status = run_launcher(module, [*arguments, worker, *work])
    if node.world_size > 1:
        register(signal.SIGTERM, lambda *_: finish(status))  # srun's, when another node has failed
        time.sleep(pause_before_exit(status, node.rank, options.ranks, run.attempt_dir))
    return finish(status)


def launch_command(node: DistEnv, run: RunEnv, options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the launcher's module and its arguments; set the variables of torchrun that it does not set itself."""
    if options.launcher == "torchrun":
        return "torch.distributed.run", torchrun_arguments(node, options.ranks, options.max_restarts)
    if options.launcher == "accelerate":
        return "accelerate.commands.launch", accelerate_arguments(node, options.ranks, options.config)
    os.environ |= {"TORCHELASTIC_RUN_ID": run.run_id, "GROUP_RANK": str(node.rank)}
    os.environ["LOCAL_WORLD_SIZE"] = str(options.ranks)
    return "deepspeed.launcher.launch", deepspeed_arguments(node, options.ranks)


def rendezvous_variables(node: DistEnv, run: RunEnv, job: str) -> dict[str, str]:
    """Return the variables that let torchrun's agents meet on the run's store, in the order of the nodes.

    torchrun takes a PET_ variable where an option is not given; accelerate has no options for these. torchrun numbers
    the nodes in the order of their addresses. So each gets its number as its address; nothing connects to it, as the
    ranks take no store from torchrun.
    """
    assert node.master is not None
    host, port = node.master
    launch = hashlib.sha256(run.secret.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return {
        "PET_RDZV_ENDPOINT": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "PET_RDZV_ID": f"{job}.{launch}",
        "PET_LOCAL_ADDR": f"{node.rank:06d}",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        distenv.STORE: f"{host}:{port}",
    }


def torchrun_arguments(node: DistEnv, ranks: int, restarts: int) -> list[str]:
    """Return the arguments of `python -m torch.distributed.run`."""
    return [
        *("--nnodes", str(node.world_size), "--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d", "--rdzv-conf", "is_host=0"),
        *("--max-restarts", str(restarts)),
    ]


def accelerate_arguments(node: DistEnv, ranks: int, config: str) -> list[str]:
    """Return the arguments of `accelerate launch`: the shape of the job, over what the YAML says of it."""
    assert node.master is not None
    world = node.world_size * ranks
    return [
        *(("--config_file", config) if config else ()),
        *(("--multi_gpu",) if world > 1 and not own_engine(config) else ()),
        *("--num_machines", str(node.world_size), "--num_processes", str(world), "--machine_rank", str(node.rank)),
        # accelerate refuses a port that is in use, as the held one is; with --same_network it passes on neither
        *("--same_network", "--main_process_ip", node.master[0], "--main_process_port", str(find_free_port())),
        *("--rdzv_backend", "c10d", "--rdzv_conf", "is_host=0"),
        # its default, pdsh, would start DeepSpeed on all nodes from each, and write the environment to a file
        *("--deepspeed_multinode_launcher", "standard"),
    ]


def deepspeed_arguments(node: DistEnv, ranks: int) -> list[str]:
    """Return the arguments of deepspeed's launcher of one node, which `deepspeed --no_ssh` starts.

    It sets CUDA_VISIBLE_DEVICES to the devices listed for the node: those that the node's task may use.
    """
    assert node.master is not None
    visible = [d.strip() for d in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if d.strip()]
    devices = visible[:ranks] if len(visible) >= ranks else [str(i) for i in range(ranks)]
    world = {f"node{number}": devices for number in range(node.world_size)}
    return [
        *("--world_info", base64.urlsafe_b64encode(json.dumps(world).encode()).decode()),
        *("--node_rank", str(node.rank), "--master_addr", node.master[0], "--master_port", str(node.master[1])),
    ]


def own_engine(config: str) -> bool:
    """Return whether accelerate's YAML names FSDP, DeepSpeed or Megatron, which --multi_gpu would switch off.

    Without a YAML accelerate reads the user's default file, if there is one.
    """
    config_args = importlib.import_module("accelerate.commands.config.config_args")
    path = config or config_args.default_config_file
    if not os.path.isfile(path):
        return False
    kind = config_args.load_config_from_file(path).distributed_type
    return getattr(kind, "value", kind) in ("FSDP", "DEEPSPEED", "MEGATRON_LM")


def run_launcher(module: str, arguments: Sequence[str]) -> int:
    """Run a launcher's `main` in this process; return the exit status of the rank that failed first, else its own."""
    sys.argv = [module, *arguments]
    try:
        importlib.import_module(module).main()
    except SystemExit as error:
        return exit_status(error.code) if isinstance(error.code, int) else int(error.code is not None)
    except subprocess.CalledProcessError as error:  # of accelerate, which starts a single rank itself
        return exit_status(error.returncode)
    except Exception as error:
        if not hasattr(error, "get_first_failure"):
            traceback.print_exc()
            return 1
        print(error, file=sys.stderr, flush=True)  # torchrun's summary of the ranks that failed
        return exit_status(error.get_first_failure()[1].exitcode) or 1
    return 0


def pause_before_exit(status: int, node: int, ranks: int, attempt: Path | None) -> float:
    """Return the seconds to wait, so that the node whose rank failed first ends first: the step gets its status.

    The ranks of the other nodes lose their connections, and may fail before that node's launcher has ended its ranks.
    """
    if status == 0 or status > 128:  # a rank was ended by a signal: no lost connection does that
        return 0.0
    first = ends.find_failure(attempt) if attempt is not None else None
    return 2.0 if first is not None and first.rank is not None and first.rank // ranks == node else 4.0


def exit_status(code: int) -> int:
    """Return a shell's exit status, 128+n after signal n, for Python's, which is -n."""
    return code if code >= 0 else 128 - code


def forward_signals(finish: Finish, attempt: Path | None) -> Callable[[int, Any], Any]:
    """Send this task's signals to its ranks, in place of the launcher's handlers; return the true `signal.signal`.

    After SIGTERM, torchrun would kill ranks that still save after 30 s, restart those that have ended, and exit with 1.
    So this process waits for the ranks and ends with their status. It is 1 if they were ended because a rank of another
    node failed: the step's status is the highest of its tasks, and must not be that of the SIGTERM.
    """
    register = signal.signal

    def forward(signum: int, frame: FrameType | None) -> None:
        ranks = children()
        for pid in ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
        if signum in (signal.SIGTERM, signal.SIGINT):
            status = wait_for(ranks) if ranks else TERMINATED
            finish(1 if status == TERMINATED and attempt is not None and ends.has_failed(attempt) else status)

    def keep(signum: int, handler: Any) -> Any:
        return forward if signum in FORWARDED else register(signum, handler)

    for signum in FORWARDED:
        register(signum, forward)
    signal.signal = keep  # type: ignore[assignment]
    return register


def wait_for(pids: Sequence[int]) -> int:
    """Wait for these children and return the first failure's status, SIGTERM's only if there is no other; 0 if none."""
    failures = []
    for pid in pids:
        with suppress(ChildProcessError):  # the launcher has waited for it already
            failures.append(exit_status(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    return min((status for status in failures if status), key=lambda status: status == TERMINATED, default=0)


class Outputs:
    """Labels the output of this node's ranks with their numbers, in a thread.

    Each rank writes into two pipes, which outlive it: what a rank has written before a `kill -9` is not lost.
    """

    def __init__(self, first: int, ranks: int, world: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_in = os.pipe()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        pipes = []
        for rank in range(first, first + ranks):
            for target in (1, 2):
                reading, writing = os.pipe()
                self._selector.register(reading, selectors.EVENT_READ, (Labeler(rank, world), target))
                pipes.append(writing)
        os.environ[OUTPUTS] = " ".join(map(str, [os.getpid(), *pipes]))
        self._thread = threading.Thread(target=self._copy, name="clusterrun-outputs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what the ranks have written, and stop. Ranks must have ended."""
        os.write(self._wakeup_in, b"x")
        self._thread.join()

    def _copy(self) -> None:
        closing = False
        while ready := self._selector.select(0 if closing else None):
            for key, _ in ready:
                if key.data is None:
                    self._selector.unregister(key.fileobj)
                    closing = True
                    continue
                labeler, target = key.data
                write_all(target, labeler.feed(os.read(key.fd, READ)))
        for key in self._selector.get_map().values():
            labeler, target = key.data
            write_all(target, labeler.close())
