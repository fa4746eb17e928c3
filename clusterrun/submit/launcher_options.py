"""The options of other launchers, and a parser that reads them as each launcher does. No I/O.

The tables follow torch 2.13 (``torch/distributed/run.py``), accelerate 1.15 (``commands/launch.py``), DeepSpeed 0.19
(``launcher/runner.py``), Lightning 2.6 (``fabric/cli.py``) and the options of Slurm 22.05 to 26.05. After a name, ``=``
means one value, and ``=?`` an optional value that is joined to the name. ``|`` separates alternative names. The kinds:

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

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clusterrun.base.errors import RequestError, nearest


class Option(NamedTuple):
    """An option of a launcher: its name with hyphens, its kind and the kind's argument, and the number of values."""

    name: str
    kind: str
    target: str
    values: int
    """0 or 1; -1 for an optional value."""


class Table(NamedTuple):
    """The options of one launcher, and how it parses them.

    ``anywhere``: options are recognised after the script too, unknown ones belong to the script. ``beginnings``: as
    getopt and argparse do, a long name may be cut where it can mean one option only.
    """

    options: Mapping[str, Option]
    anywhere: bool = False
    beginnings: bool = False


class Typed(NamedTuple):
    """An option as it was typed: ``spelled`` is its name, ``value`` is empty for a switch."""

    option: Option
    spelled: str
    value: str = ""


def parse_options(launcher: str, table: Table, words: Sequence[str]) -> tuple[list[Typed], list[str]]:
    """Return a launcher's options and the rest: the program and its arguments. Raises RequestError if unknown."""
    typed: list[Typed] = []
    program: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return typed, [*program, *rest]
        if not is_option(word):
            program.append(word)
            if not table.anywhere:
                return typed, [*program, *rest]
            continue
        options = _options_of(table, word, rest)
        if options:
            typed += options
        elif table.anywhere and program:
            program.append(word)
        else:
            raise _unknown(launcher, table, word)
    return typed, program


def is_option(word: str) -> bool:
    """Return whether a word is an option; ``-`` alone is an argument."""
    return word.startswith("-") and word != "-"


def _unknown(launcher: str, table: Table, word: str) -> RequestError:
    spelled = word.partition("=")[0]
    hint = ""
    if spelled.startswith("--"):
        hint = nearest(spelled, [f"--{name}" for name in table.options if _is_full_name(name)])
    hint = hint or "remove the option, or use --launcher none if the program starts its own ranks"
    return RequestError(f"{launcher}: option not recognized: {spelled}", hint=hint)


def _is_full_name(name: str) -> bool:
    """Return whether a name of a table is neither a letter nor the beginning of several names (``fsdp-*``)."""
    return len(name) > 1 and not name.endswith("*")


def _options_of(table: Table, word: str, rest: Iterator[str]) -> list[Typed]:
    """Return the options of a word (``-lu`` has two), with the value from ``rest``; none if one is unknown."""
    if not word.startswith("--"):
        return _letters_of(table, word, rest)
    spelled, equals, value = word.partition("=")
    option = _long_option(table, spelled.lstrip("-").replace("_", "-"))
    if option is None:
        return []
    return [_with_value(option, spelled, value if equals else None, rest)]


def _long_option(table: Table, name: str) -> Option | None:
    """Return the option with this name, or the only one whose name begins with it. Raises RequestError for several."""
    if len(name) == 1:
        return None
    if name in table.options:
        return table.options[name]
    if not table.beginnings:
        return _family_of(table, name)
    meant = _beginning_with(table, name)
    if len(meant) > 1:
        names = " or ".join(f"--{option.name}" for option in meant)
        raise RequestError(f"--{name} may mean {names}", hint="type the option in full")
    return next(iter(meant), None)


def _family_of(table: Table, name: str) -> Option | None:
    """Return the option that stands for all names with its beginning (``fsdp-*``)."""
    for key, option in table.options.items():
        if key.endswith("*") and name.startswith(key[:-1]):
            return option
    return None


def _beginning_with(table: Table, name: str) -> list[Option]:
    """Return the options with a name that begins so; two names of one option count once."""
    meant: dict[Option, None] = {}
    for key, option in table.options.items():
        if len(key) > 1 and key.startswith(name):
            meant[option] = None
    return list(meant)


def _letters_of(table: Table, word: str, rest: Iterator[str]) -> list[Typed]:
    """Return the options of ``-N2``, ``-t=3`` or ``-lu``; none if one is unknown."""
    option = table.options.get(word[1])
    if option is None:
        return []
    spelled, more = word[:2], word[2:]
    if not more:
        return [_with_value(option, spelled, None, rest)]
    if option.values:
        return [_with_value(option, spelled, more.removeprefix("="), rest)]
    others = _letters_of(table, f"-{more}", rest)
    return [Typed(option, spelled), *others] if others else []


def _with_value(option: Option, spelled: str, joined: str | None, rest: Iterator[str]) -> Typed:
    """Return an option with the value that is joined to it, else with the next word if it needs one."""
    if not option.values:
        return Typed(option, spelled)
    if joined is None and option.values == 1:
        joined = next(rest, None)
        if joined is None:
            raise RequestError(f"{spelled} needs a value")
    return Typed(option, spelled, joined or "")


def _table(kinds: Mapping[str, str], **how: bool) -> Table:
    options: dict[str, Option] = {}
    for kind, text in kinds.items():
        for entry in text.split():
            names, equals, optional = entry.partition("=")
            values = 1 if equals else 0
            if optional:
                values = -1
            first, *others = names.split("|")
            option = Option(first, kind.partition(" ")[0], kind.partition(" ")[2], values)
            options |= dict.fromkeys((first, *others), option)
    return Table(options, **how)


TORCHRUN = _table({
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
}, beginnings=True)  # fmt: skip
ACCELERATE = _table({
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
DEEPSPEED = _table({
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
}, beginnings=True)  # fmt: skip
FABRIC = _table({
    "nodes": "num-nodes=",
    "ranks": "devices=",
    "own": "node-rank= main-address= main-port=",
    "env LT_ACCELERATOR": "accelerator=",
    "env LT_STRATEGY": "strategy=",
    "env LT_PRECISION": "precision=",
}, anywhere=True)  # fmt: skip
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
    "requeue": "requeue no-requeue",
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
SRUN = _table(_SLURM | {"own": f"{_SLURM['own']} wait|W="}, beginnings=True)
SBATCH = _table(_SLURM | {"own": f"{_SLURM['own']} wait|W", "wrap": "wrap="}, beginnings=True)
