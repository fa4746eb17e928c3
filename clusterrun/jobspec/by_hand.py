"""Render a job for use without clusterrun: torchrun's lines for each node, and accelerate's YAML. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.render import work_argv
from clusterrun.jobspec.spec import Command, Function, JobSpec, Module, Task

PORT = 29500
"""The rendezvous port if the job sets none: torchrun's own default."""
_ADDRESS = "ADDRESS_OF_NODE_0"
_FILLED_IN = re.compile(r"\{(local_rank|rank|node_rank|world_size)\}")
_VARIABLES = {"node_rank": "GROUP_RANK"}  # torchrun's name, where it is another


def node_commands(spec: JobSpec, workdir: Path, worker: Path) -> str:
    """Return the lines that start the job with torchrun, to type on each node; ``worker`` is the worker's file.

    Raises RequestError for a job that torchrun cannot start.
    """
    if spec.launcher not in ("srun", "torchrun"):
        raise RequestError(
            f"--per-node-commands prints torchrun commands and does not support --launcher {spec.launcher}",
            hint="remove --launcher",
        )
    if spec.container_image:
        hint = "remove --container-image, and run the commands inside the container"
        raise RequestError("--per-node-commands does not support --container-image", hint=hint)
    return "".join(f"{line}\n" for line in _lines(spec, workdir, _program(spec, worker)))


def accelerate_yaml(spec: JobSpec) -> str:
    """Return the YAML with which ``accelerate launch --config_file`` starts a job of this shape."""
    lines = [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {_distributed_type(spec)}",
        f"num_machines: {spec.nodes}",
        f"num_processes: {spec.world_size}",
    ]
    if spec.nodes > 1:
        lines += [
            "machine_rank: 0  # on the other nodes: 1, 2 and so on",
            f"main_process_ip: {_ADDRESS}",
            f"main_process_port: {spec.master_port or PORT}",
            "rdzv_backend: static",
            "same_network: true",
        ]
    else:
        lines += ["machine_rank: 0", f"main_process_port: {spec.master_port or PORT}"]
    lines += [
        "main_training_function: main",
        f"mixed_precision: '{_mixed_precision(spec)}'",
        f"use_cpu: {'false' if _uses_gpus(spec) else 'true'}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _uses_gpus(spec: JobSpec) -> bool:
    return spec.gpus_per_node != 0  # None: --gres requests them


def _distributed_type(spec: JobSpec) -> str:
    if spec.world_size == 1:
        return "'NO'"
    return "MULTI_GPU" if _uses_gpus(spec) else "MULTI_CPU"


def _mixed_precision(spec: JobSpec) -> str:
    """Return the precision as accelerate names it: the task's setting, else the value of accelerate's variable."""
    if not isinstance(spec.work, Task):
        return dict(spec.env).get("ACCELERATE_MIXED_PRECISION", "no")
    precision = str(dict(spec.work.settings).get("precision", "auto"))
    if precision == "auto":
        precision = "bf16" if _uses_gpus(spec) else "fp32"
    return "no" if precision == "fp32" else precision


def _lines(spec: JobSpec, workdir: Path, program: list[str]) -> Iterator[str]:
    """Yield the lines: those for every node, then one for each node."""
    if spec.nodes > 1:
        yield "# on every node; set MASTER_ADDR to an address where all nodes can reach node 0"
        yield f"export MASTER_ADDR={_ADDRESS}"
    yield f"cd {shlex.quote(str(workdir))}"
    yield from (f"export {name}={shlex.quote(text)}" for name, text in spec.env)
    yield from spec.setup
    start = [spec.python, "-m", "torch.distributed.run"]
    if spec.max_restarts:
        program = ["--max-restarts", str(spec.max_restarts), *program]
    if spec.nodes == 1:
        yield shlex.join([*start, "--standalone", "--nproc-per-node", str(spec.tasks_per_node), *program])
        return
    for rank in range(spec.nodes):
        shape = ["--nnodes", str(spec.nodes), "--nproc-per-node", str(spec.tasks_per_node), "--node-rank", str(rank)]
        yield f"# on node {rank}"
        yield (
            f'{shlex.join([*start, *shape])} --master-addr "$MASTER_ADDR" --master-port {spec.master_port or PORT}'
            f" {shlex.join(program)}"
        )


def _program(spec: JobSpec, worker: Path) -> list[str]:
    """Return what torchrun runs, with its arguments."""
    kind, *words = work_argv(spec)
    if isinstance(spec.work, Function):
        raise RequestError("--per-node-commands cannot print a command for a Python function", hint="use a script")
    if isinstance(spec.work, Task):
        return [str(worker), kind, *words]
    program = words[1:]  # after --
    if match := next(filter(None, map(_FILLED_IN.search, program)), None):
        raise RequestError(
            f"--per-node-commands: torchrun does not replace {match[0]} in arguments",
            hint=f"in the script, read {_VARIABLES.get(match[1], match[1].upper())} from the environment",
        )
    before = {Module: ["-m"], Command: ["--no-python"]}.get(type(spec.work), [])
    return [*before, *program]
