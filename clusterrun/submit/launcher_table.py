"""The launchers that clusterrun knows: what starts each, and how it would run on several nodes. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clusterrun.jobspec.fields import is_own_variable
from clusterrun.submit.launcher_options import (
    ACCELERATE,
    DEEPSPEED,
    FABRIC,
    SBATCH,
    SRUN,
    TORCHRUN,
    Table,
    Typed,
    parse_options,
)
from clusterrun.submit.python_line import is_python, split_python

DEVICES = "CUDA_VISIBLE_DEVICES"
#: Launchers that start the ranks of all nodes from one of them.
OF_ALL_NODES = ("srun", "mpirun", "horovodrun")
#: Variables that --launcher none sets, and the option that each stands for before a program.
STARTER_NUMBERS = {"NNODES": "nodes", "NPROC_PER_NODE": "gpus-per-node"}
_PREFIXES = ("env", "nohup", "time", "exec")
_RENDEZVOUS = {"standalone", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "same-network"}


class Launcher(NamedTuple):
    """A launcher: the words that start it, as a program or after ``-m``, and its options if its line is translated.

    ``on_nodes`` are the options that make the ranks of several nodes one group if the launcher runs once per node (with
    ``--launcher none``, whose variables they name). They are empty if it reads those variables itself, and None if
    there are no such options; variables come before the launcher. ``env`` are the variables that make it start ranks.
    ``needless`` is whether its program runs under clusterrun without it.
    """

    starts: tuple[str, ...]
    options: Table | None = None
    on_nodes: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    needless: bool = False


_TORCHRUN_ON_NODES = (
    "--nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node $NPROC_PER_NODE"
    " --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)
_ACCELERATE_ON_NODES = (
    "--num_machines $NNODES --machine_rank $NODE_RANK --num_processes $((NNODES * NPROC_PER_NODE))"
    " --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
)
#: Launchers whose lines become options of clusterrun.
_TRANSLATED = {
    "torchrun": Launcher(("torchrun", "torch.distributed.run"), TORCHRUN, _TORCHRUN_ON_NODES),
    "torch.distributed.launch": Launcher(("torch.distributed.launch",), TORCHRUN, _TORCHRUN_ON_NODES),
    "accelerate launch": Launcher(
        ("accelerate launch", "accelerate-launch", "accelerate.commands.launch",
         "accelerate.commands.accelerate_cli launch"),
        ACCELERATE,
        # its default would start DeepSpeed on all nodes from each
        f"{_ACCELERATE_ON_NODES} --deepspeed_multinode_launcher standard",
    ),
    "deepspeed": Launcher(("deepspeed", "deepspeed.launcher.runner"), DEEPSPEED),
    "fabric run": Launcher(("fabric run model", "fabric run", "lightning run model"), FABRIC),
    "srun": Launcher(("srun",), SRUN),
    "#SBATCH": Launcher((), SBATCH),
}  # fmt: skip
#: Launchers whose lines are refused; ``own_ranks.line_instead`` says what to type.
_REFUSED = {
    "mpirun": Launcher(("mpirun", "mpiexec", "mpiexec.hydra", "orterun"), needless=True),
    "composer": Launcher(("composer", "composer.cli.launcher"), needless=True),
    "horovodrun": Launcher(("horovodrun",)),
    "tune run": Launcher(("tune run",), on_nodes=_TORCHRUN_ON_NODES),
    "llamafactory-cli train": Launcher(
        ("llamafactory-cli train", "lmf train"), on_nodes="", env=(("FORCE_TORCHRUN", "1"),)
    ),
    "swift": Launcher(("swift sft", "swift pt", "swift rlhf", "swift dpo"), on_nodes=""),
    "xtuner train": Launcher(("xtuner train",), on_nodes="ADDR=$MASTER_ADDR PORT=$MASTER_PORT"),
    "trl": Launcher(
        ("trl sft", "trl dpo", "trl grpo", "trl kto", "trl reward", "trl rloo", "trl ppo"),
        on_nodes=_ACCELERATE_ON_NODES,
    ),
    "axolotl train": Launcher(("axolotl train",)),
    "torchpack dist-run": Launcher(("torchpack dist-run",)),
    "fastai.launch": Launcher(("fastai.launch",)),
}
LAUNCHERS = _TRANSLATED | _REFUSED


class Started(NamedTuple):
    """The launcher that a line starts: its name in ``LAUNCHERS``, and the words after it."""

    title: str
    words: list[str]

    @property
    def launcher(self) -> Launcher:
        return LAUNCHERS[self.title]


def launcher_of(words: Sequence[str]) -> Started | None:
    """Return the launcher that a command without variables before it starts; None if it starts none."""
    rest = split_python(words)[1]
    if not rest or is_own_program(rest[0]):
        return None
    rest = rest[1:] if rest[0] == "-m" else [Path(rest[0]).name, *rest[1:]]
    for title, launcher in LAUNCHERS.items():
        for start in launcher.starts:
            length = len(start.split())
            if rest[:length] == start.split():
                return Started(title, rest[length:])
    return None


def is_own_program(word: str) -> bool:
    """Return whether a program is the user's own, even if its file is named as a launcher is."""
    return word.endswith(".py") or word.startswith(("./", "../"))


def prefix_length(words: Sequence[str]) -> int:
    """Return the number of words before a launcher's name: ``NCCL_DEBUG=INFO nohup torchrun`` has 2.

    A prefix with options of its own (``env -i torchrun``) is a program.
    """
    start = 0
    while start < len(words) and (_is_assignment(words[start]) or _is_prefix(words, start)):
        start += 1
    return start


def _is_assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word, re.ASCII) is not None


def _is_prefix(words: Sequence[str], at: int) -> bool:
    has_options = at + 1 < len(words) and words[at + 1].startswith("-")
    return words[at] in _PREFIXES and not has_options


def assignments(words: Sequence[str]) -> dict[str, str]:
    """Return the variables before a command: ``NCCL_DEBUG=INFO torchrun`` has one."""
    before = words[: prefix_length(words)]
    return dict(word.split("=", 1) for word in before if "=" in word)


def variables_before(words: Sequence[str]) -> dict[str, str]:
    """Return the variables before a command that neither clusterrun nor the scheduler sets."""
    return {name: text for name, text in assignments(words).items() if not is_set_here(name)}


def has_starter_variable(words: Sequence[str]) -> bool:
    """Return whether variables before a command tell it to start the ranks of its node."""
    starters = {"FORCE_TORCHRUN", *STARTER_NUMBERS}
    return not starters.isdisjoint(assignments(words))


def is_set_here(name: str) -> bool:
    """Return whether the scheduler or clusterrun sets a variable for each rank."""
    return name == DEVICES or is_own_variable(name)


def on_each_node(line: Sequence[str], nodes: int) -> list[str] | None:
    """Return the program for ``--launcher none`` that starts a launcher's line on each node, as one group of ranks.

    None if the launcher cannot do that; a program of the user's own is expected to read the variables.
    """
    started = launcher_of(line)
    if nodes == 1 or started is None or started.launcher.on_nodes == "":
        return list(line)
    command = in_shell(line)
    return ["bash", "-c", command] if command else None


def in_shell(line: Sequence[str]) -> str:
    """Return a launcher's line as a shell command that makes the ranks of all nodes one group; empty if there is none.

    Its variables are those of ``--launcher none``.
    """
    started = launcher_of(line)
    if started is None or not started.launcher.on_nodes:
        return ""
    options = started.launcher.on_nodes
    start = shlex.join(line[: len(line) - len(started.words)])
    parts = [options, start] if "=" in options else [start, options]  # variables come first
    return " ".join([*parts, *map(shlex.quote, _without_shape(started, options))])


def _without_shape(started: Started, on_nodes: str) -> list[str]:
    """Return a launcher's words without the options that ``on_nodes`` gives."""
    table = started.launcher.options
    if table is None:
        return started.words
    replaced = {name.replace("_", "-") for name in re.findall(r"--([\w-]+)", on_nodes)} | _RENDEZVOUS
    typed, program = parse_options(started.title, table, started.words)
    words: list[str] = []
    for option in typed:
        if option.option.name not in replaced:
            words += _as_typed(option)
    return [*words, *program]


def _as_typed(typed: Typed) -> list[str]:
    if typed.option.values == 1:
        return [typed.spelled, typed.value]
    return [f"{typed.spelled}={typed.value}" if typed.value else typed.spelled]


def program_in(words: Sequence[str]) -> list[str]:
    """Return the Python program in a launcher's line whose options are not known; a placeholder if there is none."""
    for at, word in enumerate(words):
        if word.endswith(".py") or is_python(word):
            return list(words[at:])
    return ["train.py"]
