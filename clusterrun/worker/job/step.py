"""One step, the ranks of one launch: its nodes, the environment of the ranks, the held port, and the command of it."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ...base.errors import WorkerError
from ...base.fields import OF_JOB
from ...base.job import step_name
from ...run_folder.files import write_text
from ..node import batch_host
from ..rank import saved_code
from . import spares
from .job import Job
from .watchdog import progress_interval

RENDEZVOUS_S = 60.0
NAMED = 32  # nodes in a line of the log
WORKER = Path(__file__).parents[1]


def find_nodes(job: Job) -> tuple[list[str], str]:
    """Return the nodes' names and the first one's address; local nodes are groups of processes on this machine."""
    if job.options.local:
        return [f"local{i}" for i in range(job.options.nodes)], "127.0.0.1"
    nodes = spares.choose_nodes(job, batch_host.node_names())
    return nodes, batch_host.head_address(nodes[0], len(nodes))


def describe(ranks: int, nodes: Sequence[str]) -> str:
    """Return a start in words: `4 ranks on n1 n2`; of many nodes, their number, the first and the last."""
    where = " ".join(nodes) if len(nodes) <= NAMED else f"{len(nodes)} nodes, {nodes[0]} to {nodes[-1]}"
    return f"{ranks} rank{'s' * (ranks != 1)} on {where}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the supervisor's options for how the ranks' Python runs in a container."""
    parser.add_argument(
        "--rank-python", default=sys.executable, help="Python that runs the ranks; in a container, the image's Python"
    )
    parser.add_argument(
        "--rank-prefix", action="append", default=[], help="word to put before each rank's command (repeatable)"
    )
    parser.add_argument("--srun-arg", action="append", default=[], help="extra srun option for the ranks (repeatable)")


def environment(job: Job, nodes: list[str], address: str, end_time: str) -> dict[str, str]:
    """Return the environment of the ranks; what the user has set for NCCL, torch and OpenMP stays.

    `end_time` is the end of a Slurm job's time limit, in seconds since 1970: built-in tasks save and stop before it.
    """
    options, environ = job.options, dict(os.environ)
    per_node = options.workers_per_node
    environ |= {
        "MASTER_ADDR": address,
        "WORLD_SIZE": str(len(nodes) * per_node),
        "CLUSTERRUN_RUN_DIR": str(job.run_dir),
        "CLUSTERRUN_JOB_ID": job.name,
        "CLUSTERRUN_RESTART": str(job.earlier_starts),
        "CLUSTERRUN_CHECKPOINT_DIR": str(job.checkpoints),
        "CLUSTERRUN_ATTEMPT_DIR": str(job.attempt_dir),
        "CLUSTERRUN_WORLD_SIZE": str(options.nodes * per_node),
        # any process can connect to the rendezvous port, so each launch has a new secret
        "CLUSTERRUN_SECRET": os.urandom(16).hex(),
        "CLUSTERRUN_PROCESS_GROUP": options.process_group,
        **_option_variables(options),
        **saved_code.variables(job.run_dir, options.shown_late),
    }
    if options.rank_python == sys.executable:  # a module must not replace the job's Python; an image has its own PATH
        environ["PATH"] = f"{Path(job.staged.python).parent}:{environ.get('PATH', '')}"
        environ |= job.staged.variables()
    if options.max_restarts or options.total_time or options.requeue:
        environ["CLUSTERRUN_CONTINUES"] = "1"
    if options.check_gpus is not None:
        environ["CLUSTERRUN_CHECK_GPUS"] = options.check_gpus
    environ["CLUSTERRUN_END_TIME"] = _local_end(options) if options.local else end_time
    if not options.local:
        _prepare_srun(environ, options.tasks_per_node // _tasks_of_node(job))
    if _has_own_order(job):
        environ["SLURM_HOSTFILE"] = str(_write_hostfile(job, nodes))
    return _with_defaults(job, environ)


def _prepare_srun(environ: dict[str, str], ranks_per_task: int) -> None:
    """Let srun pass on the environment, and give each of its tasks the cores of its ranks."""
    environ.pop("SLURM_EXPORT_ENV", None)  # a site's --export=NONE would remove the ranks' environment
    if cores := environ.get("SLURM_CPUS_PER_TASK"):
        # since 22.05 srun does not inherit --cpus-per-task from sbatch: each rank would get one core
        environ["SRUN_CPUS_PER_TASK"] = str(int(cores) * ranks_per_task)


def _has_own_order(job: Job) -> bool:
    """Return whether srun gets the order of the nodes; inside another job the nodes are named (--nodelist)."""
    return batch_host.has_segments() and not job.options.in_job


def _write_hostfile(job: Job, nodes: list[str]) -> Path:
    """Write the node of each of srun's tasks, for an order of the nodes that is not Slurm's own; raises WorkerError."""
    path = job.attempt_dir / "hostfile"
    try:
        write_text(path, "".join(f"{node}\n" * _tasks_of_node(job) for node in nodes))
    except OSError as error:
        raise WorkerError(f"cannot write {path}: {error.strerror}", kind="launch-failed") from None
    return path


def _tasks_of_node(job: Job) -> int:
    """Return how many tasks srun starts on each node: one per rank, or a single one that starts the node's ranks."""
    return job.options.tasks_per_node if job.options.launcher == "srun" else 1


def _local_end(options: argparse.Namespace) -> str:
    """Return the end of a local job's time limit in seconds since 1970; empty if it has none."""
    return str(int(time.time() - options.elapsed + options.time_limit)) if options.time_limit else ""


def _with_defaults(job: Job, environ: dict[str, str]) -> dict[str, str]:
    """Return the environment with what the user has not set for NCCL, torch and OpenMP."""
    options = job.options
    cores = int(environ.get("SLURM_CPUS_PER_TASK") or 1)
    if options.local:
        cores = (os.cpu_count() or 1) // (options.nodes * options.tasks_per_node)
    recorder = environ.get("TORCH_FR_DUMP_TEMP_FILE") or f"{job.attempt_dir}/flight_recorder_"
    defaults = {
        # the heartbeat monitors NCCL's thread; its timeout must not be shorter than the process group's, or it kills a
        # collective that is allowed to take long. On a timeout, the flight recorder is dumped into the attempt's folder
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(options.pg_timeout),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": recorder,
        "NCCL_DEBUG": "WARN",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "CLUSTERRUN_PROGRESS_INTERVAL": str(progress_interval(options.progress_interval, options.hang_timeout)),
        # one thread per core of a rank: with more, the ranks of a node compete for cores
        "OMP_NUM_THREADS": str(max(1, cores)),
    }
    environ |= {name: value for name, value in defaults.items() if not environ.get(name)}
    return environ | {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": recorder}  # its name before torch 2.9


def _option_variables(options: argparse.Namespace) -> dict[str, str]:
    """Return the variables in which the ranks find the options that they read."""
    values = {option.variable: getattr(options, option.attribute) for option in OF_JOB}
    return {variable: str(value) for variable, value in values.items() if variable and value}


def hold_port(job: Job, address: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start the helper that holds the rendezvous port until the step ends; return it and the port.

    So no other job can take the port, and rank 0 may exit first.
    """
    options = ["--host", address, "--parent", str(os.getpid()), "--clients", str(job.workers)]
    options += ["--nodes", str(job.options.nodes)]
    if job.options.master_port:
        options += ["--port", str(job.options.master_port)]
    holder = subprocess.Popen(
        [sys.executable, "-u", str(WORKER / "rank" / "rendezvous.py"), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | {"CLUSTERRUN_ATTEMPT_DIR": str(job.attempt_dir)},
    )
    assert holder.stdout is not None
    line = b""
    if select.select([holder.stdout], [], [], RENDEZVOUS_S)[0]:
        line = holder.stdout.readline().strip()
    if not line.isdigit():
        holder.kill()
        raise _unopened(address, line)
    return holder, line.decode()


def _unopened(address: str, answer: bytes) -> WorkerError:
    """Return the error for a port that the helper could not open, from what it printed in place of the port."""
    text = f"could not start the rendezvous server on {address}"
    try:
        found = json.loads(answer)
        why = found["text"].removeprefix("rendezvous: ")
        return WorkerError(f"{text}: {why}", kind=found["kind"], line=found["text"], **found["values"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return WorkerError(f"{text}: see the lines above")


def command(job: Job, nodes: list[str], work: Sequence[str]) -> list[str]:
    """Return the command that starts the ranks: srun, or its replacement on this machine."""
    options = job.options
    by_rank = options.launcher == "srun"
    is_labelled = options.launcher in ("srun", "none")  # else the task labels the lines of its ranks
    python = job.staged.python if options.rank_python == sys.executable else options.rank_python
    work = [python if word == sys.executable else word for word in work]
    rank = [*options.rank_prefix, python, "-u", str(WORKER / "__main__.py"), *work]
    tasks = _tasks_of_node(job)
    if options.local:
        shape = ["--nodes", str(options.nodes), "--tasks-per-node", str(tasks)]
        if not by_rank:
            shape += ["--devices-per-task", str(options.tasks_per_node)]
        shape += [] if is_labelled else ["--no-label"]
        devices = os.environ.get("CLUSTERRUN_LOCAL_DEVICES") or "cpu"
        launcher = [sys.executable, "-u", str(WORKER / "node" / "local_launcher.py")]
        return [*launcher, *shape, "--devices", devices, "--", *rank]
    # If a task fails, the others are killed at once (--kill-on-bad-exit). Ranks that have ended wait for the last one
    # (--wait=0: with a limit, a rank that is still saving would be killed). Not --unbuffered: it splits lines; without
    # it, complete lines are sent at once.
    order = ["--distribution=block", f"--nodes={len(nodes)}"]
    if _has_own_order(job):
        order = ["--distribution=arbitrary"]  # by SLURM_HOSTFILE; srun refuses --nodes beside it
    return [
        "srun", *order, f"--ntasks={len(nodes) * tasks}", f"--ntasks-per-node={tasks}",
        # the step of a lost node may still hold its resources; --overlap does not share memory (seen on 22.05)
        *["--overlap", "--mem=0"] * bool(job.launch and not options.in_job),
        # with --overlap this step could get the GPUs of another run; by its name `cancel` finds it (ADR 41)
        *[f"--nodelist={','.join(nodes)}", f"--job-name={step_name(job.token)}"] * bool(options.in_job),
        # the ranks of the other nodes outlive the first node, so that one of them can end the allocation (orphans.py)
        *["--no-kill"] * bool(options.spare_nodes),
        *spares.exclusion(job, nodes),
        *options.srun_arg,
        *["--label"] * is_labelled, "--kill-on-bad-exit=1", "--wait=0", "--export=ALL",
        *rank,
    ]  # fmt: skip
