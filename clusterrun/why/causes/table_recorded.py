"""The causes that the job itself recorded: a sentence, the advice and the command for each kind of a record.

The worker writes kind and values (``base/errors.py``). Kinds that are missing here are those of exceptions, which the
other tables explain by their text, as in a log.
"""

# ruff: noqa: E501 (a table: a sentence stays in one piece)

from __future__ import annotations

from dataclasses import replace

from clusterrun.why.causes.model import CauseRow, Strength, texts
from clusterrun.why.causes.table_launch import NOT_PYTHON, SENT_KILL
from clusterrun.why.causes.table_peers import PEER, PORT
from clusterrun.why.causes.table_python import EXIT, NAN_ADVICE

_GROUP = (
    "turn on the script's distributed mode (call torch.distributed.init_process_group, or use your framework's setting"
    " for distributed training), then submit the script again"
)
_RANK_LOGS = "clusterrun logs JOB[ --rank {rank}] -n 50"

#: for a run that may succeed without a process group; no-process-group below is for a run that must have one
SEPARATE = texts(
    "no-process-group", "{what}", f"{_GROUP} with --require-group, which makes the job fail if no rank uses a process group; if you want separate programs, submit it with --independent instead",
    "clusterrun/worker/rank/worlds.py", "clusterrun submit … --require-group",
)  # fmt: skip
STOPPED = texts(
    "stopped", "the run stopped at step {step} because of {reason} ({saved})", "submit the job again with the same checkpoint_dir to resume from the last checkpoint",
    "clusterrun/worker/training/checkpointing.py", "clusterrun submit …",
)  # fmt: skip
DUPLICATE = texts(
    "duplicate", "this job exited because it is a duplicate of job {other}", "no action is needed: the other job is doing the work", "clusterrun/worker/claim.py", "clusterrun status {other}",
)  # fmt: skip
#: a rank or node that disappeared: the root cause only if nothing else failed
RANK_LOST = texts(
    "rank-lost", "a node or rank disappeared without an error message: only {ended} of {all} ranks reported that they exited",
    "check which rank's output stops first; with --requeue, Slurm restarts the job after a node failure", "clusterrun/worker/job/supervisor.py", "clusterrun submit … --requeue", Strength.HANG,
)  # fmt: skip
#: the text of the record says all
OWN = texts("worker", "{error}", "", "clusterrun/worker/rank/exit.py", _RANK_LOGS)
RECORDED: dict[str, CauseRow] = {
    "worker": OWN,
    "refused": replace(OWN, kind="refused"),
    "exited": EXIT,
    "command-exited": EXIT,
    "command-killed": texts("killed", "{error}", SENT_KILL, "clusterrun/worker/rank/user_code.py", "clusterrun submit … --mem SIZE"),
    "command-crashed": texts("crashed", "{error}", NOT_PYTHON, "clusterrun/worker/rank/user_code.py", _RANK_LOGS),
    "command-interrupted": texts("interrupted", "{error}", "usually someone sent this signal, or a launcher did; look for an earlier error in the log", "clusterrun/worker/rank/user_code.py", _RANK_LOGS),
    "killed": texts("killed", "rank {rank} on {node} was killed (SIGKILL)",
        "usually the kernel's OOM killer or a user sent SIGKILL; if it was the OOM killer, dmesg shows its message", "clusterrun/worker/node/local_launcher.py", "dmesg | grep -i oom"),
    "crashed": texts("crashed", "rank {rank} on {node} was killed by a signal (exit status {status})",
        "if the exit status is 138, the signal was SIGUSR1, usually the warning before the time limit; otherwise, native code probably crashed: read the rank's last log lines",
        "clusterrun/worker/node/local_launcher.py", _RANK_LOGS),
    "task-ended": texts("task-ended", "rank {rank} on {node} exited with status {status}", "", "clusterrun/worker/node/local_launcher.py", "", Strength.ECHO),
    "import-error": texts("import-error", "{python} cannot import torch: {why}", "submit with --python to use another Python, or install torch into this one", "clusterrun/worker/entry.py", "{python} -m pip install torch"),
    "file-missing": texts("file-missing", "file not found: {path}",
        "check that the path exists on the compute nodes (a relative path starts in the folder where you ran clusterrun submit); if the name is that of a program, such as 'nvcc', add the program's folder to PATH",
        "clusterrun/worker/entry.py", "srun ls -ld {quoted}"),
    "nan-loss": texts("nan-loss", "{what} is not finite {where}", NAN_ADVICE, "clusterrun/worker/training/finite.py", "clusterrun submit … --set lr=LOWER"),
    "cuda-memory": texts("cuda-memory", "GPU memory ran out with a micro batch of {micro_batch} on {where}", "{advice}", "clusterrun/worker/training/memory.py", "clusterrun submit … --set auto_micro_batch=true"),
    "host-memory": texts("host-memory", "host memory ran out ({where}) with a micro batch of {micro_batch}", "{advice}", "clusterrun/worker/training/memory.py", "clusterrun submit … --set auto_micro_batch=true"),
    "no-process-group": texts("no-process-group", "{what}", _GROUP, "clusterrun/worker/rank/worlds.py", "clusterrun submit …"),
    "ranks-missing": texts("ranks-missing", "{absent} of {all} ranks did not join the run: {names}",
        "read the last log lines of these ranks; they may have spent minutes importing modules, hung in a --setup line, or been unable to reach the first node",
        "clusterrun/worker/rank/barriers.py", "clusterrun logs JOB -n 50"),
    "network": texts("network", "{error}", "check that the batch script was still running, and that no firewall blocks this port on the first node", "clusterrun/worker/rank/barriers.py", "clusterrun logs JOB -n 50", Strength.HINT),
    "peer-lost": texts("peer-lost", "a connection to another process failed: {error}", PEER, "clusterrun/worker/entry.py", "clusterrun logs JOB --errors", Strength.CONSEQUENCE),
    "address-in-use": texts("address-in-use", "port {port} on {node} is in use[ {holder}]", PORT, "clusterrun/worker/rank/rendezvous.py", "clusterrun submit … (without --master-port)"),
    "no-free-port": texts("address-in-use", "the port to listen on is already in use", PORT, "clusterrun/worker/rank/rendezvous.py", "clusterrun submit … (without --master-port)"),
    "name-resolution": texts("name-resolution", "a node's name does not resolve to a usable address: {name}",
        "if the name is wrong, correct it; otherwise, ask your administrators to make it resolve on every node; to test a name, look it up on two nodes", "clusterrun/worker/rank/rendezvous.py", "srun -N 2 getent hosts NAME"),
    "setup": texts("setup", "setup line {number} failed with status {status}: {command}", "read the setup line's output, which is in the log before this error; to reproduce the failure, run the line by hand on a compute node",
        "clusterrun/templates/sbatch.j2", "clusterrun logs JOB --stream err -n 30"),
    "launch-failed": texts("launch-failed", "the job could not start: {error}", "on the compute nodes, the project's folder must be writable, and bash, scontrol and srun must be in PATH", "clusterrun/worker/job/supervisor.py", "srun ls -ld .clusterrun"),
}  # fmt: skip
