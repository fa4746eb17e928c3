"""The launchers that clusterrun knows: what starts each, its options, and how it would run on several nodes. No I/O.

The options follow torch 2.13 (``torch/distributed/run.py``), accelerate 1.15 (``commands/launch.py``), DeepSpeed 0.19
(``launcher/runner.py``), Lightning 2.6 (``fabric/cli.py``) and Slurm 22.05 to 26.05. After a name, ``=`` means one
value, and ``=?`` an optional value that is joined to the name. ``|`` separates alternative names. The kinds:

nodes, ranks, total   the shape: nodes, ranks per node, ranks of the job
own                   clusterrun has its own: dropped, and named in the notice
env NAME              the launcher passes it to the script in this variable
field                 an option of clusterrun with the same name
sbatch                an option of sbatch that clusterrun passes on
output, torchrun, accelerate, none    cannot be translated; the last three name the ``--launcher`` that can do it; an
                      argument is the value without effect
unsupported           cannot be translated, and no ``--launcher`` can do it
others                handled by name in ``launchers.py``
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from clusterrun.base.errors import RequestError, nearest
from clusterrun.jobspec.fields import is_own_variable
from clusterrun.submit.python_line import is_python, split_python

DEVICES = "CUDA_VISIBLE_DEVICES"
#: Launchers that start the ranks of all nodes from one of them.
OF_ALL_NODES = ("srun", "mpirun", "horovodrun")
#: Variables that --launcher none sets, and the option that each stands for before a program.
STARTER_NUMBERS = {"NNODES": "nodes", "NPROC_PER_NODE": "gpus-per-node"}
_PREFIXES = ("env", "nohup", "time", "exec")
_RENDEZVOUS = {"standalone", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "same-network"}


class Option(NamedTuple):
    """An option of a launcher: its name with hyphens, its kind and the kind's argument, and the number of values.

    Of an option that was typed, ``spelled`` is the name as it stood there; its ``value`` is empty for a switch.
    """

    name: str
    kind: str
    target: str = ""
    values: int = 0
    """0 or 1; -1 for an optional value."""
    spelled: str = ""
    value: str = ""


class Launcher(NamedTuple):
    """A launcher: the words that start it, as a program or after ``-m``, and its options if its line is translated.

    ``anywhere``: options are recognised after the script too, unknown ones belong to the script. ``beginnings``: as
    getopt and argparse do, a long name may be cut where it can mean one option only. ``on_nodes`` are the options that
    make the ranks of several nodes one group if the launcher runs once per node (with ``--launcher none``, whose
    variables they name). They are empty if it reads those variables itself, and None if there are no such options;
    variables come before the launcher. ``env`` are the variables that make it start ranks. ``needless`` is whether its
    program runs under clusterrun without it.
    """

    title: str
    starts: tuple[str, ...]
    options: Mapping[str, Option] = MappingProxyType({})
    anywhere: bool = False
    beginnings: bool = False
    on_nodes: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    needless: bool = False


_VALUES = {"": 0, "=": 1, "=?": -1}


def _options(kinds: Mapping[str, str]) -> dict[str, Option]:
    options: dict[str, Option] = {}
    for kind, text in kinds.items():
        name, _, target = kind.partition(" ")
        for entry in text.split():
            names, equals, optional = entry.partition("=")
            first, *others = names.split("|")
            option = Option(first, name, target, _VALUES[equals + optional])
            options |= dict.fromkeys((first, *others), option)
    return options


_TORCHRUN = _options({
    "nodes": "nnodes=",
    "ranks": "nproc-per-node=",
    "module": "module|m",
    "own": "rdzv-backend= rdzv-endpoint= rdzv-id= rdzv-conf= standalone node-rank= master-addr= master-port="
    " local-addr= monitor-interval= start-method= event-log-handler= role= signals-to-handle= shutdown-timeout="
    " run-path no-python",
    "output": "log-dir= local-ranks-filter= duplicate-stdout-filters= duplicate-stderr-filters=",
    "output 0": "redirects|r= tee|t=",
    "torchrun 0": "max-restarts=",
    "none": "numa-binding= virtual-local-rank logs-specs=",
    "use-env": "use-env",  # of torch.distributed.launch
})  # fmt: skip
_ACCELERATE = _options({
    "nodes": "num-machines=",
    "total": "num-processes=",
    "module": "module|m",
    "cpu": "cpu use-cpu",
    "config": "config-file=",
    "multi-gpu": "multi-gpu",
    # options of DeepSpeed, FSDP and TPUs have no effect without the switch that is refused below
    "own": "machine-rank= main-process-ip= main-process-port= rdzv-backend= rdzv-conf= same-network monitor-interval="
    " role= quiet|q gpu-ids= no-python tpu-cluster no-tpu-cluster tpu-use-sudo vm= env= main-training-function="
    " downcast-bf16 deepspeed-*= zero-stage= zero3-*= offload-*= gradient-*= fsdp-*= megatron-lm-*= aws-*="
    " parallelism-config-*= fp8-use-autocast-during-eval fp8-*=",
    "env ACCELERATE_MIXED_PRECISION": "mixed-precision=",
    "env OMP_NUM_THREADS": "num-cpu-threads-per-process=",
    "env ACCELERATE_CPU_AFFINITY": "enable-cpu-affinity",
    "env ACCELERATE_DEBUG_MODE": "debug",
    "env ACCELERATE_DYNAMO_BACKEND": "dynamo-backend=",
    "env ACCELERATE_DYNAMO_MODE": "dynamo-mode=",
    "env ACCELERATE_DYNAMO_USE_FULLGRAPH": "dynamo-use-fullgraph",
    "env ACCELERATE_DYNAMO_USE_DYNAMIC": "dynamo-use-dynamic",
    "env ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "dynamo-use-regional-compilation",
    "output": "log-dir=",
    "output 0": "tee|t=",
    "torchrun 0": "max-restarts=",
    "accelerate": "use-deepspeed use-fsdp use-megatron-lm use-parallelism-config tpu",
    "none": "mpirun-hostfile=",
})  # fmt: skip
_DEEPSPEED = _options({
    "nodes": "num-nodes=",
    "ranks": "num-gpus|num-accelerators=",
    "module": "module",
    "include": "include|i=",
    "hostfile": "hostfile|H=",
    "no-local-rank": "no-local-rank",
    "own": "master-port= master-addr= node-rank= launcher= launcher-args= no-ssh no-ssh-check force-multi save-pid"
    " ssh-port= log-level= quiet|q no-python",
    "output": "enable-each-rank-log=",
    "none": "exclude|e= min-elastic-nodes= max-elastic-nodes= elastic-training autotuning= bind-cores-to-rank"
    " bind-core-list= venv-script=",
})  # fmt: skip
_FABRIC = _options({
    "nodes": "num-nodes=",
    "ranks": "devices=",
    "own": "node-rank= main-address= main-port=",
    "env LT_ACCELERATOR": "accelerator=",
    "env LT_STRATEGY": "strategy=",
    "env LT_PRECISION": "precision=",
})  # fmt: skip
_SLURM = {
    "nodes": "nodes|N=",
    "total": "ntasks|n=",
    "ranks": "ntasks-per-node|tasks-per-node=",
    "gpus-per-node": "gpus-per-node=",
    "gpus": "gpus|G=",
    "gpus-per-task": "gpus-per-task=",
    "ranks-per-gpu": "ntasks-per-gpu=",
    "jobid": "jobid=",
    "gres": "gres=",
    "export": "export=",
    "requeue": "requeue=? no-requeue",
    "field": "cpus-per-task|c= mem= time|t= partition|p= account|A= qos|q= constraint|C= reservation= exclude|x="
    " nodelist|w= dependency|d= job-name|J= mail-type= comment= container-image= container-mounts=",
    "own": "label|l unbuffered|u output|o= error|e= input|i= open-mode= kill-on-bad-exit|K=? mpi= cpu-bind="
    " accel-bind= distribution|m= quiet|Q verbose|v disable-status|X exact overlap resv-ports=? parsable whole"
    " extra= treewidth= external-launcher ignore-signals= wait-for-children"
    " get-user-env=? immediate|I=?"
    " compress=? bcast-exclude= msg-timeout= quit-on-interrupt send-libs=? slurmd-debug= preserve-env|E threads|T=",
    "sbatch": "begin|b= mail-user= licenses|L= exclusive=? hint= switches= mem-per-cpu= mem-per-gpu= cpus-per-gpu="
    " nice=? priority= tmp= wckey= signal= deadline= gpu-bind= gpu-freq= gres-flags= threads-per-core="
    " sockets-per-node= cores-per-socket= cpu-freq= contiguous spread-job use-min-nodes core-spec|S="
    " thread-spec= mincpus= hold|H propagate=? prefer= profile= acctg-freq= time-min= network= mem-bind="
    " bb= bbf= container= reboot extra-node-info|B= oversubscribe|s overcommit|O nodefile|F= no-kill|k=?"
    " cluster-constraint= power= delay-boot= context= segment= oom-kill-step=? tres-bind= stepmgr"
    " consolidate-segments spread-segments mem-update= container-id= container-type="
    " kill-on-invalid-dep= mcs-label= batch= wait-all-nodes= ignore-pbs uid= gid=",
    "folder": "chdir|D=",
    "unsupported": "array|a= pty multi-prog relative|r= het-group|pack-group= clusters|cluster|M= ntasks-per-core="
    " ntasks-per-socket= ntasks-per-tres= gpus-per-socket= export-file= prolog= epilog= task-prolog= task-epilog="
    " bcast=? no-allocate|Z x11=? test-only tres-per-task= help|h usage version|V interactive debugger-test async"
    " autocomplete= external resources=",
}  # fmt: skip
_TORCHRUN_ON_NODES = (
    "--nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node $NPROC_PER_NODE"
    " --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)
_ACCELERATE_ON_NODES = (
    "--num_machines $NNODES --machine_rank $NODE_RANK --num_processes $((NNODES * NPROC_PER_NODE))"
    " --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
)
TORCHRUN = Launcher(
    "torchrun", ("torchrun", "torch.distributed.run"), _TORCHRUN, beginnings=True, on_nodes=_TORCHRUN_ON_NODES
)
ACCELERATE = Launcher(
    "accelerate launch",
    ("accelerate launch", "accelerate-launch", "accelerate.commands.launch",
     "accelerate.commands.accelerate_cli launch"),
    _ACCELERATE,
    # its default would start DeepSpeed on all nodes from each
    on_nodes=f"{_ACCELERATE_ON_NODES} --deepspeed_multinode_launcher standard",
)  # fmt: skip
SRUN = Launcher("srun", ("srun",), _options(_SLURM | {"own": f"{_SLURM['own']} wait|W="}), beginnings=True)
#: The lines of a batch script, and the options of sbatch itself.
SBATCH = Launcher(
    "#SBATCH", (), _options(_SLURM | {"own": f"{_SLURM['own']} wait|W", "wrap": "wrap="}), beginnings=True
)
#: Those without options are refused; ``own_ranks.line_instead`` says what to type.
_ALL = (
    TORCHRUN,
    TORCHRUN._replace(title="torch.distributed.launch", starts=("torch.distributed.launch",)),
    ACCELERATE,
    Launcher("deepspeed", ("deepspeed", "deepspeed.launcher.runner"), _DEEPSPEED, beginnings=True),
    Launcher("fabric run", ("fabric run model", "fabric run", "lightning run model"), _FABRIC, anywhere=True),
    SRUN,
    SBATCH,
    Launcher("mpirun", ("mpirun", "mpiexec", "mpiexec.hydra", "orterun"), needless=True),
    Launcher("composer", ("composer", "composer.cli.launcher"), needless=True),
    Launcher("horovodrun", ("horovodrun",)),
    Launcher("tune run", ("tune run",), on_nodes=_TORCHRUN_ON_NODES),
    Launcher(
        "llamafactory-cli train", ("llamafactory-cli train", "lmf train"), on_nodes="", env=(("FORCE_TORCHRUN", "1"),)
    ),
    Launcher("swift", ("swift sft", "swift pt", "swift rlhf", "swift dpo"), on_nodes=""),
    Launcher("xtuner train", ("xtuner train",), on_nodes="ADDR=$MASTER_ADDR PORT=$MASTER_PORT"),
    Launcher(
        "trl", ("trl sft", "trl dpo", "trl grpo", "trl kto", "trl reward", "trl rloo", "trl ppo"),
        on_nodes=_ACCELERATE_ON_NODES,
    ),
    Launcher("axolotl train", ("axolotl train",)),
    Launcher("torchpack dist-run", ("torchpack dist-run",)),
    Launcher("fastai.launch", ("fastai.launch",)),
)  # fmt: skip
LAUNCHERS = {launcher.title: launcher for launcher in _ALL}
#: What starts a program of the user's own, which is expected to read the variables of ``--launcher none``.
NO_LAUNCHER = Launcher("", (), on_nodes="")


# --- which launcher a line starts ---


def split_launcher(words: Sequence[str]) -> tuple[Launcher, list[str]]:
    """Return the launcher that a command without variables before it starts, and the words after it.

    That is ``NO_LAUNCHER`` and all words if it starts none.
    """
    rest = split_python(words)[1]
    if not rest or is_own_program(rest[0]):
        return NO_LAUNCHER, list(words)
    rest = rest[1:] if rest[0] == "-m" else [Path(rest[0]).name, *rest[1:]]
    for launcher in _ALL:
        for start in launcher.starts:
            length = len(start.split())
            if rest[:length] == start.split():
                return launcher, rest[length:]
    return NO_LAUNCHER, list(words)


def launcher_of(words: Sequence[str]) -> Launcher:
    """Return the launcher that a command starts, ``NO_LAUNCHER`` if it starts none."""
    return split_launcher(words[prefix_length(words) :])[0]


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
    has_options = "".join(words[at + 1 : at + 2]).startswith("-")
    return words[at] in _PREFIXES and not has_options


def assignments(words: Sequence[str]) -> dict[str, str]:
    """Return the variables before a command: ``NCCL_DEBUG=INFO torchrun`` has one."""
    before = filter(_is_assignment, words[: prefix_length(words)])
    return dict(word.split("=", 1) for word in before)


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


def program_in(words: Sequence[str]) -> list[str]:
    """Return the Python program in a launcher's line whose options are not known; a placeholder if there is none."""
    for at, word in enumerate(words):
        if word.endswith(".py") or is_python(word):
            return list(words[at:])
    return ["train.py"]


# --- its options ---


def parse_options(launcher: Launcher, words: Sequence[str]) -> tuple[list[Option], list[str]]:
    """Return a launcher's options and the rest: the program and its arguments. Raises RequestError if unknown."""
    typed: list[Option] = []
    program: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        options = _options_of(launcher, word, rest)
        typed += options
        if options:
            continue
        if _is_option(word) and not (launcher.anywhere and program):
            raise _unknown(launcher, word)
        program.append(word)
        if not launcher.anywhere:
            break
    return typed, [*program, *rest]


def _is_option(word: str) -> bool:
    """Return whether a word is an option; ``-`` alone is an argument."""
    return word.startswith("-") and word != "-"


def _unknown(launcher: Launcher, word: str) -> RequestError:
    spelled = word.partition("=")[0]
    hint = ""
    if spelled.startswith("--"):
        hint = nearest(spelled, [f"--{name}" for name in launcher.options if _is_full_name(name)])
    hint = hint or "remove the option, or use --launcher none if the program starts its own ranks"
    return RequestError(f"{launcher.title}: option not recognized: {spelled}", hint=hint)


def _is_full_name(name: str) -> bool:
    """Return whether a name of a table is neither a letter nor the beginning of several names (``fsdp-*``)."""
    return len(name) > 1 and not name.endswith("*")


def _options_of(launcher: Launcher, word: str, rest: Iterator[str]) -> list[Option]:
    """Return the options of a word (``-lu`` has two), with the value from ``rest``; none if one is unknown."""
    if not _is_option(word):
        return []
    if not word.startswith("--"):
        return _letters_of(launcher.options, word, rest)
    spelled, equals, value = word.partition("=")
    option = _long_option(launcher, spelled.lstrip("-").replace("_", "-"))
    if option is None:
        return []
    return [_with_value(option, spelled, value if equals else None, rest)]


def _long_option(launcher: Launcher, name: str) -> Option | None:
    """Return the option with this name, or the only one whose name begins with it. Raises RequestError for several."""
    options = launcher.options
    if len(name) == 1:
        return None
    if name in options:
        return options[name]
    if not launcher.beginnings:
        return _family_of(options, name)
    meant = _beginning_with(options, name)
    if len(meant) > 1:
        names = " or ".join(f"--{option.name}" for option in meant)
        raise RequestError(f"--{name} may mean {names}", hint="type the option in full")
    return next(iter(meant), None)


def _family_of(options: Mapping[str, Option], name: str) -> Option | None:
    """Return the option that stands for all names with its beginning (``fsdp-*``)."""
    for key, option in options.items():
        if key.endswith("*") and name.startswith(key[:-1]):
            return option
    return None


def _beginning_with(options: Mapping[str, Option], name: str) -> list[Option]:
    """Return the options with a name that begins so; two names of one option count once."""
    meant: dict[Option, None] = {}
    for key, option in options.items():
        if key.startswith(name):
            meant[option] = None
    return list(meant)


def _letters_of(options: Mapping[str, Option], word: str, rest: Iterator[str]) -> list[Option]:
    """Return the options of ``-N2``, ``-t=3`` or ``-lu``; none if one is unknown."""
    option = options.get(word[1])
    if option is None:
        return []
    spelled, more = word[:2], word[2:]
    if not more:
        return [_with_value(option, spelled, None, rest)]
    if option.values:
        return [_with_value(option, spelled, more.removeprefix("="), rest)]
    others = _letters_of(options, f"-{more}", rest)
    return [option._replace(spelled=spelled), *others] if others else []


def _with_value(option: Option, spelled: str, joined: str | None, rest: Iterator[str]) -> Option:
    """Return an option with the value that is joined to it, else with the next word if it needs one."""
    if option.values == 1 and joined is None:
        joined = next(rest, None)
        if joined is None:
            raise RequestError(f"{spelled} needs a value")
    return option._replace(spelled=spelled, value=joined or "")


# --- the line that starts it on each of several nodes ---


def on_each_node(line: Sequence[str], nodes: int) -> list[str] | None:
    """Return the program for ``--launcher none`` that starts a launcher's line on each node, as one group of ranks.

    None if the launcher cannot do that; a program of the user's own is expected to read the variables.
    """
    if nodes == 1 or launcher_of(line).on_nodes == "":
        return list(line)
    command = in_shell(line)
    return ["bash", "-c", command] if command else None


def in_shell(line: Sequence[str]) -> str:
    """Return a launcher's line as a shell command that makes the ranks of all nodes one group; empty if there is none.

    Its variables are those of ``--launcher none``.
    """
    launcher, rest = split_launcher(line)
    if not launcher.on_nodes:
        return ""
    start = shlex.join(line[: len(line) - len(rest)])
    parts = [launcher.on_nodes, start] if "=" in launcher.on_nodes else [start, launcher.on_nodes]  # variables first
    return " ".join([*parts, *map(shlex.quote, _without_shape(launcher, rest))])


def _without_shape(launcher: Launcher, words: list[str]) -> list[str]:
    """Return a launcher's words without the options that its ``on_nodes`` gives."""
    if not launcher.options:
        return words
    replaced = {name.replace("_", "-") for name in re.findall(r"--([\w-]+)", launcher.on_nodes or "")} | _RENDEZVOUS
    typed, program = parse_options(launcher, words)
    kept: list[str] = []
    for option in typed:
        if option.name not in replaced:
            kept += _as_typed(option)
    return [*kept, *program]


def _as_typed(option: Option) -> list[str]:
    if option.values == 1:
        return [option.spelled, option.value]
    return [f"{option.spelled}={option.value}" if option.value else option.spelled]
