"""The options of other launchers, and a parser that reads them as each launcher does. No I/O.

The tables follow torch 2.13 (``torch/distributed/run.py``), accelerate 1.15 (``commands/launch.py``), DeepSpeed 0.19
(``launcher/runner.py``), Lightning 2.6 (``fabric/cli.py``), the manual pages of Slurm 22.05, and mpirun of Open MPI 5,
MPICH and Intel MPI. After a name, ``=`` means one value, ``==`` two values, and ``=?`` an optional value that is joined
to the name. ``|`` separates alternative names. The kinds:

nodes, ranks, total   the shape: nodes, ranks per node, ranks of the job
own                   clusterrun has its own: dropped, and named in the notice
env NAME              the launcher passes it to the script in this variable
field                 an option of clusterrun with the same name
sbatch                an option of sbatch that clusterrun passes on
output, torchrun, accelerate, none    cannot be translated; the last three name the ``--launcher`` that can do it
others                handled by name in ``launchers.py``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clusterrun.base.errors import RequestError


class Option(NamedTuple):
    """An option of a launcher: its name with hyphens, its kind and the kind's argument, and the number of values."""

    name: str
    kind: str
    target: str
    values: int
    """0, 1 or 2; -1 for an optional value."""


class Table(NamedTuple):
    """The options of one launcher, and how it parses them.

    ``single_dash``: long names may follow one hyphen. ``anywhere``: options are recognised after the script too,
    unknown ones belong to the script. Beginnings of names and several letters in one word (``-lu``) are unknown.
    """

    options: Mapping[str, Option]
    single_dash: bool = False
    anywhere: bool = False


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
            program += rest
        elif not word.startswith("-") or word == "-":
            program += [word] if table.anywhere else [word, *rest]
        elif found := _option_of(table, word, rest):
            typed.append(found)
        elif table.anywhere and program:
            program.append(word)
        else:
            raise RequestError(
                f"{launcher}: option not recognized: {word.partition('=')[0]}",
                hint="remove the option, or use --launcher none if the program starts its own ranks",
            )
    return typed, program


def _option_of(table: Table, word: str, rest: Iterator[str]) -> Typed | None:
    """Return the option of a word, with its value from ``rest``; None if it is unknown."""
    spelled, equals, value = word.partition("=")
    joined = value if equals else None
    name = spelled.lstrip("-").replace("_", "-")
    option = table.options.get(name) if table.single_dash or (word.startswith("--") and len(name) > 1) else None
    if option is None and word.startswith("--"):
        families = (o for key, o in table.options.items() if key.endswith("*") and name.startswith(key[:-1]))
        option = next(families, None)
    elif option is None and (option := table.options.get(word[1])) is not None:
        spelled, joined = word[:2], word[2:].removeprefix("=") or None
    if option is None or (joined and not option.values and len(spelled) == 2):  # several letters in one word
        return None
    values = [joined] if joined is not None else []
    values += [word for _, word in zip(range(option.values - len(values)), rest, strict=False)]
    if len(values) < option.values:
        raise RequestError(f"{spelled} needs a value")
    return Typed(option, spelled, "=".join(values) if option.values else "")


def _table(kinds: Mapping[str, str], **how: bool) -> Table:
    options: dict[str, Option] = {}
    for kind, text in kinds.items():
        for entry in text.split():
            names, equals, more = entry.partition("=")
            first, *others = names.split("|")
            values = {"": 1, "=": 2, "?": -1}[more] if equals else 0
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
    "output": "log-dir= redirects|r= tee|t= local-ranks-filter= duplicate-stdout-filters= duplicate-stderr-filters=",
    "torchrun": "max-restarts=",
    "none": "numa-binding= virtual-local-rank logs-specs=",
    "use-env": "use-env",  # of torch.distributed.launch
})  # fmt: skip
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
    "output": "tee|t= log-dir=",
    "torchrun": "max-restarts=",
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
})  # fmt: skip
FABRIC = _table({
    "nodes": "num-nodes=",
    "ranks": "devices=",
    "own": "node-rank= main-address= main-port=",
    "env LT_ACCELERATOR": "accelerator=",
    "env LT_STRATEGY": "strategy=",
    "env LT_PRECISION": "precision=",
}, anywhere=True)  # fmt: skip
MPI = _table({
    "total": "np|n|c=",
    "ranks": "npernode|N|ppn|perhost=",
    "hosts": "host|hosts|H=",
    "hostfile": "hostfile|machinefile|f=",
    "mpi-env": "x= genv|env==",
    "own": "mca|gmca|prtemca|pmixmca== allow-run-as-root oversubscribe nooversubscribe bind-to= bind-to-none rank-by="
    " report-bindings display-map tag-output|l prepend-rank verbose|v quiet|q genvall envall launcher|bootstrap="
    " iface= ssh-port|p= network-interfaces= start-timeout= gloo mpi",
    "output": "output-filename= output= merge-stderr-to-stdout",
    "none": "map-by=",
}, single_dash=True)  # fmt: skip
_SLURM = {
    "nodes": "nodes|N=",
    "total": "ntasks|n=",
    "ranks": "ntasks-per-node=",
    "gpus-per-node": "gpus-per-node=",
    "gpus": "gpus|G=",
    "gpus-per-task": "gpus-per-task=",
    "gres": "gres=",
    "export": "export=",
    "requeue": "requeue no-requeue",
    "field": "cpus-per-task|c= mem= time|t= partition|p= account|A= qos|q= constraint|C= reservation= exclude|x="
    " nodelist|w= dependency|d= job-name|J= mail-type= comment= container-image= container-mounts=",
    "own": "label|l unbuffered|u output|o= error|e= input|i= open-mode= kill-on-bad-exit|K=? mpi= cpu-bind="
    " accel-bind= distribution|m= quiet|Q verbose|v disable-status|X exact overlap resv-ports=? parsable"
    " get-user-env=? immediate|I=?"
    " compress=? bcast-exclude= msg-timeout= quit-on-interrupt send-libs=? slurmd-debug= preserve-env|E threads|T=",
    "sbatch": "begin|b= mail-user= licenses|L= exclusive=? hint= switches= mem-per-cpu= mem-per-gpu= cpus-per-gpu="
    " nice=? priority= tmp= wckey= signal= deadline= gpu-bind= gpu-freq= gres-flags= threads-per-core="
    " sockets-per-node= cores-per-socket= cpu-freq= contiguous spread-job use-min-nodes core-spec|S="
    " thread-spec= mincpus= hold|H propagate=? prefer= profile= acctg-freq= time-min= network= mem-bind="
    " bb= bbf= container= reboot extra-node-info|B= oversubscribe|s overcommit|O nodefile|F= no-kill|k=?"
    " cluster-constraint= power= delay-boot="
    " kill-on-invalid-dep= mcs-label= batch= wait-all-nodes= ignore-pbs uid= gid=",
    "folder": "chdir|D=",
    "none": "array|a= pty multi-prog jobid= relative|r= het-group= clusters|M= ntasks-per-core= ntasks-per-gpu="
    " ntasks-per-socket= gpus-per-socket= export-file= prolog= epilog= task-prolog= task-epilog= bcast=? no-allocate|Z"
    " x11=? test-only",
}  # fmt: skip
SRUN = _table(_SLURM | {"own": f"{_SLURM['own']} wait|W="})
SBATCH = _table(_SLURM | {"own": f"{_SLURM['own']} wait|W", "wrap": "wrap="})
#: Each launcher's options, and the words that start it, as a program or after -m.
LAUNCHERS: dict[str, tuple[Table, tuple[str, ...]]] = {
    "torchrun": (TORCHRUN, ("torchrun", "torch.distributed.run")),
    "torch.distributed.launch": (TORCHRUN, ("torch.distributed.launch",)),
    "accelerate launch": (ACCELERATE, ("accelerate launch", "accelerate-launch", "accelerate.commands.launch",
                                       "accelerate.commands.accelerate_cli launch")),
    "deepspeed": (DEEPSPEED, ("deepspeed", "deepspeed.launcher.runner")),
    "fabric run": (FABRIC, ("fabric run model", "fabric run", "lightning run model")),
    "srun": (SRUN, ("srun",)),
    "mpirun": (MPI, ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")),
    "horovodrun": (MPI, ("horovodrun",)),
    "#SBATCH": (SBATCH, ()),
}  # fmt: skip
