"""Causes that Slurm reports: limits, preemption, nodes, memory, cancellation, and the end of a task."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.why.causes.model import CauseRow, Strength, row

SLURM_C = "https://github.com/SchedMD/slurm/blob/slurm-22.05/src/slurmd/slurmstepd/req.c"
_MEMORY = "request more memory (sacct -j JOB -o JobID,MaxRSS,ReqMem shows what the job used), or use less: start fewer data-loading workers and avoid copies of the data"
_MEMORY_COMMAND = "clusterrun submit … --mem SIZE"
_ECHO = "this line shows how a task ended, not why"
_SIGNALS = r"Segmentation fault|Bus error|Floating point exception|Illegal instruction|Aborted"

SLURM: tuple[CauseRow, ...] = (
    row("time-limit", "due to time limit", r"CANCELLED AT (?P<at>[\d:T-]+) DUE TO TIME LIMIT",
        "the job reached its time limit at {at}",
        "request more time, or save a checkpoint before the limit and resume in another job (clusterrun's tasks do both with --requeue)",
        SLURM_C, "clusterrun submit … --time LONGER"),
    row("preemption", "due to preemption", r"CANCELLED AT (?P<at>[\d:T-]+) DUE TO PREEMPTION",
        "the job was preempted at {at}: a higher-priority job took its nodes",
        "let Slurm restart the job with --requeue (clusterrun's tasks resume from their checkpoint), or use a partition or QOS whose jobs are not preempted",
        "https://github.com/SystemsGenetics/GEMmaker/issues/233", "clusterrun submit … --requeue"),
    row("preemption", "this job is preempted", r"Caught signal \w+ on \S+: this job is preempted", "submitit treated the signal as a preemption: a higher-priority job took the nodes, or someone requeued the job",
        "submitit requeues a job that has a checkpoint function; if this job has none, submit the job again", "https://github.com/facebookincubator/submitit/pull/1701",
        "clusterrun submit … --requeue"),
    row("time-limit", "this job is timed-out", r"Caught signal \w+ on \S+: this job is timed-out", "the job reached its time limit",
        "submitit requeues a job that has a checkpoint function; for a job without one, request more time", "https://github.com/facebookincubator/submitit/pull/1701",
        "clusterrun submit … --time LONGER"),
    row("node-failure", "due to node failure", r"CANCELLED AT (?P<at>[\d:T-]+) DUE TO NODE FAILURE",
        "Slurm lost a node of the job at {at}", "exclude the node until your administrators have checked it; with --requeue Slurm restarts the job",
        SLURM_C, "clusterrun submit … --exclude NODE --requeue"),
    row("node-failure", "node failure on", r"error: Node failure on (?P<node>\S+)", "Slurm lost node {node}",
        "exclude the node until your administrators have checked it; with --requeue Slurm restarts the job",
        "https://github.com/nebius/soperator/issues/854", "clusterrun submit … --exclude[ {node}] --requeue"),
    row("cancelled", "cancelled at", r"\*\*\* JOB \S+ (?:ON \S+ )?CANCELLED AT (?P<at>[\d:T-]+)(?: DUE [Tt][Oo] SIGNAL [\w ]+| on \S+)? \*\*\*",
        "the job was cancelled at {at}", "a user or a program ran scancel; Slurm accounting shows which user", SLURM_C, "sacct -j JOB -X -o JobID,State%30"),
    row("requeued", "due to job requeue", r"CANCELLED AT (?P<at>[\d:T-]+) DUE TO JOB REQUEUE", "Slurm requeued the job at {at}",
        "the job restarts under the same job id", SLURM_C, "clusterrun status JOB", Strength.ECHO),
    row("host-memory", "oom-kill|oom_kill", r"Detected (?P<number>\d+) oom[-_]kill event", "host memory ran out: the kernel killed {number} of the job's processes",
        _MEMORY, "https://github.com/chrisknewman/tusas/issues/149", _MEMORY_COMMAND),
    row("host-memory", "exceeded memory limit", r"[Ee]xceeded memory limit \((?P<used>\d+) > (?P<limit>\d+)\)",
        "the job used more memory than it requested ({compared}) and was killed[ on {node}]", _MEMORY,
        "https://github.com/openbabel/openbabel/issues/2658", _MEMORY_COMMAND),
    row("host-memory", "out of memory", r"srun: error: (?P<node>\S+): tasks? (?P<ranks>[\d,-]+): Out Of Memory", "host memory ran out on {node}; task{s} {ranks} {was} killed",
        _MEMORY, "https://github.com/hafs-community/HAFS/issues/101", _MEMORY_COMMAND),
    row("host-memory", "out of memory: killed process|cgroup out of memory", r"(?:Memory cgroup o|O)ut of memory: Killed process (?P<pid>\d+) \((?P<what>[^)]*)\)",
        "host memory ran out: the kernel killed process {pid} ({what})", _MEMORY, "Linux mm/oom_kill.c", _MEMORY_COMMAND),
    row("host-memory", "memory limit", r"[Ee]xceeded (?:job|step) memory limit", "the job reached its memory limit", _MEMORY,
        "https://github.com/chaos/slurm/issues/54 (harmless by itself: caches count too)", _MEMORY_COMMAND, Strength.HINT, common=True),
    row("killed", ": killed", r"srun: error: (?P<node>\S+): tasks? (?P<ranks>[\d,-]+): Killed", "task{s} {ranks} on {node} {was} killed (SIGKILL)",
        "the log does not show what sent SIGKILL: it was either a user, or the kernel because host memory ran out; ask your administrators for that node's kernel log (dmesg), and request more memory if host memory ran out",
        "Slurm 22.05, seen on the lab", _MEMORY_COMMAND),
    row("crashed", "fault|bus error|exception|illegal instruction|aborted", rf"srun: error: (?P<node>\S+): tasks? (?P<ranks>[\d,-]+): (?P<how>{_SIGNALS})",
        "task{s} {ranks} on {node} crashed: {how}", "the crash was in native code, not in Python: the last lines of that rank (from faulthandler) show where",
        "https://github.com/hafs-community/HAFS/issues/101", "clusterrun logs JOB[ --rank {rank}] -n 50"),
    row("task-ended", "terminated|exited with exit code", r"srun: error: (?P<node>\S+): tasks? (?P<ranks>[\d,-]+): (?P<how>Terminated|Exited with exit code (?P<status>\d+))",
        "task{s} {ranks} on {node}: {how}", _ECHO, "Slurm 22.05, seen on the lab", "", Strength.ECHO),
    row("launch-failed", "task launch for", r"Task launch for (?:StepId=)?(?P<step>\S+) failed on node (?P<node>[^:\s]+): (?P<why>(?!No such process).*)",
        "Slurm could not start the ranks on {node}: {why}", "an error about a credential usually means that the clocks or authentication keys of the nodes differ: tell your administrators; for any other error, try another node",
        "https://github.com/ai4d-iasc/trixie/issues/58", "clusterrun submit … --exclude[ {node}]"),
    row("launch-failed", "launch failed: ", r"srun: error: (?:tasks? [\d,-]+|Application) launch failed: (?P<why>.*)", "Slurm could not start the ranks: {why}",
        "a plugin or daemon on the node failed: try another node, and send your administrators this error", "https://github.com/NVIDIA/pyxis/issues/4", "clusterrun submit … --exclude NODE"),
    row("launch-failed", "invalid account or|invalid qos", r"(?:srun|sbatch|salloc): error: (?P<what>.*Invalid (?:account or account/partition combination specified|qos specification))",
        "Slurm rejected the request: {what}", "choose an account, a partition and a QOS that you may use together: sacctmgr -n show assoc user=$USER format=account,partition,qos lists the valid combinations",
        "https://github.com/ecmwf/WeatherGenerator/issues/2249", "sacctmgr -n show assoc user=$USER format=account,partition,qos"),
    row("launch-failed", "invalid partition specified", r"(?:srun|sbatch|salloc): error: invalid partition specified: +(?P<what>\S+)", "Slurm rejected the request: there is no partition {what}",
        "sinfo -s lists the partitions that you may use", "Slurm 22.05 src/common/slurm_opt.c", "sinfo -s"),
    row("launch-failed", "returned error code", r"(?:slurmstepd\S*:|^) ?error: pyxis: .*?(?P<why>URL \S+ returned error code: \d+.*)", "the container could not be started: {why}",
        "for error 401, add your login to enroot's .credentials file or write the image as HOST#PATH:TAG; for error 404, check the image tag; for error 429, import the image once (enroot import) and use the imported file",
        "https://github.com/NVIDIA/pyxis/issues/168", "clusterrun logs JOB --stream err -n 30", Strength.HINT),
    # the limit on namespaces gives "No space left on device"
    row("launch-failed", "create user namespace", r"failed to create user namespace(?:: (?P<why>.*))?", "the container could not be started: the node allows no further user namespace[ ({why})]",
        "enroot and rootless Apptainer need user namespaces: on this node the limit (sysctl user.max_user_namespaces) is 0 or reached, or the kernel forbids them; try another node, and send your administrators this error",
        "https://github.com/NVIDIA/pyxis/issues/93", "srun sysctl user.max_user_namespaces"),
    row("launch-failed", "pyxis: ", r"(?:slurmstepd\S*:|^) ?error: pyxis: (?:\[ERROR\] | {2,}(?:\[ERROR\] )?)(?P<why>(?!\[(?:INFO|WARN)\])\S.*)", "the container could not be started: {why}",
        "enroot or one of its hooks failed on the node: check that the image file and the mounted folders exist on the node; then try another node, or show your administrators this error",
        "https://github.com/NVIDIA/pyxis/issues/168", "clusterrun logs JOB --stream err -n 30", Strength.HINT),
    row("launch-failed", "unable to create step|unable to confirm allocation|unable to allocate resources|batch job submission failed|submit/allocate failed|: fatal: ",
        r"(?:srun|sbatch|salloc): (?:fatal: (?!Can not execute)|error: (?=[Uu]nable to (?:create step|confirm allocation|allocate resources)|Batch job submission failed|Job submit/allocate failed))"
        r"(?P<what>.*)",
        "a request to Slurm failed: {what}", "the message says why: often the step requests more tasks, memory or GPUs than the job has, exceeds a limit, or sets two options or SLURM_ variables that conflict",
        "Slurm 22.05 src/srun/libsrun", "scontrol show job JOB"),
    row("launch-failed", "specified plugin name for mpi|cannot find mpi plugin|invalid mpi type", r"srun: error: (?P<what>Couldn't find the specified plugin name for mpi/\w+|cannot find mpi plugin.*|Invalid MPI type.*)",
        "srun could not start MPI: {what}", "this Slurm does not support that MPI type: use a type that srun --mpi=list shows, or --mpi=none (torch does not need MPI)", "https://slurm.schedmd.com/mpi_guide.html", "srun --mpi=list"),
    row("launch-failed", "container start failed|container_g_join failed|couldn't start container|pyxis: failed to|required plugin|task_prolog|prolog failed|failed to invoke spank",
        r"(?:slurmstepd\S*:|\[[\dT:.-]+\]) error: (?P<what>(?:pyxis: (?:container start failed|couldn't start container|failed to (?:import|create|start)\b)|container_g_join failed|spank: required plugin|Failed to invoke spank"
        r"|run_command: slurm task_prolog|.*[Pp]rolog failed).*)",
        "the step could not be started on the node: {what}", "a container, a plugin or the node's prolog failed: the log lines around this error say which; try another node, or tell your administrators",
        "https://github.com/NVIDIA/pyxis/issues/61", "clusterrun submit … --exclude[ {node}]"),
    row("command-missing", "can not execute", r"srun: fatal: Can not execute (?P<what>\S+)", "{what} cannot be run: the file does not exist or is not executable",
        "check that the program exists on the compute nodes, or inside the container if the job uses one", "https://github.com/NVIDIA/pyxis/issues/104", "clusterrun submit … --python PATH"),
    row("slurm-error", "slurmstepd|srun: fatal|srun: error: ",
        r"^(?:slurmstepd\S*: error|srun: fatal|srun: error): (?P<what>(?!\*\*\*|couldn't chdir|_slurm_cgroup|\S+: tasks? [\d,-]+:|Timed out waiting for job step|eio_handle_mainloop|write to unblock task|Failed to send MESSAGE_TASK_EXIT).+)",
        "Slurm reports: {what}", "look up the message, or show it to your administrators", "Slurm 22.05 src/slurmd/slurmstepd, src/srun", "clusterrun logs JOB --stream err -n 50", Strength.HINT),
    row("command-missing", "execve()", r"error: execve\(\): (?P<what>[^\s:]+): (?P<why>No such file or directory|Permission denied|Exec format error|bad interpreter.*)",
        "{what} cannot be run on the node: {why}", "use a path that exists on the compute nodes (on a shared file system), and check that the job uses the right Python environment",
        "https://github.com/SchedMD/slurm/blob/slurm-22.05/src/slurmd/slurmstepd/task.c", "clusterrun submit … --python PATH"),
)  # fmt: skip
