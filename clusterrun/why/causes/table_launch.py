"""Causes before and around the ranks: clusterrun's own script, bash, torchrun."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.why.causes.model import CauseRow, Strength, row

#: advice on a process that ended itself, and on a library that crashed
ABORTED = "SIGABRT usually means that torch or another native library aborted the process, for example after a watchdog timeout, a CUDA error or a lost connection to another rank; read the log lines before this error for the reason"
NATIVE = "the crash was in this library, not in Python: check that the library is compatible with the GPU driver and with the other installed libraries (torch, CUDA, MPI); if you report the crash, include the backtrace"
#: why a process got SIGKILL, and where a crash was
SENT_KILL = "if no other rank failed earlier, the kernel's OOM killer probably sent SIGKILL because host memory ran out; start fewer data-loading workers, or request more memory"
NOT_PYTHON = "the crash was in native code, not in Python; read the log lines before this error"
#: C++'s message of an uncaught exception; ``what():`` after it names the reason
TERMINATE = row(
    "crashed", "terminate called", r"terminate called after throwing an instance of '(?P<what>[^']+)'|(?P<what_too>terminate called without an active exception)", "a process aborted in compiled code[: {what}]",
    "the what() line or the stack trace after this error, if the log has one, gives the reason; 'terminate called without an active exception' usually means that a thread was still running when the program exited", "https://github.com/kakaobrain/fast-autoaugment/issues/27",
    "clusterrun logs JOB -n 50", Strength.HINT,
)  # fmt: skip
#: of Rust; in newer releases the next line is the message
PANIC = row(
    "crashed", "panicked at", r"^thread '.*?' (?:\(\d+\) )?panicked at (?:'(?P<what>.*)', )?(?P<where>[^:\s']+:\d+)", "a Rust program panicked at {where}:[ {what}]",
    "the panic message gives the reason; RUST_BACKTRACE=1 shows the calls that led to the panic", "https://doc.rust-lang.org/std/macro.panic.html", "clusterrun submit … --env RUST_BACKTRACE=1", Strength.HINT,
)  # fmt: skip
#: what to do if each rank started a world
ONE_LAUNCHER = (
    "submit the script itself, without a launcher or processes of its own, as clusterrun starts the ranks; or submit"
    " with --launcher none, which runs a command that starts its own ranks once per node"
)
LAUNCH: tuple[CauseRow, ...] = (
    row("command-missing", ": no such file or directory|bad interpreter",
        r"^(?:\S*/)?(?:bash|sh|dash|zsh|ksh|slurm_script|[\w.-]+\.sh): (?:line )?(?:\d+: )?(?:(?:cd|source|\.|exec): )?(?P<what>[^\s:]+): (?P<why>No such file or directory|(?:/\S+: )?bad interpreter.*)$"
        r"|^zsh: no such file or directory: (?P<what_too>\S+)",
        "the shell could not find {what}[ ({why})]", "check that this path exists on the compute nodes; if it is a script, the interpreter in its #! line must also exist (after moving a Python environment, recreate it)",
        "https://github.com/darshan315/flow_past_cylinder_by_DRL/issues/38", "srun ls -ld[ {what}]", Strength.HINT, common=True),
    row("usage", ": command not found", r"(?:^|: )(?P<what>--?\w[\w-]*): command not found", "the shell ran the option {what} as a command",
        "end the preceding line of the script with a backslash (\\), and remove any space or comment after the backslash", "bash 5.2", "clusterrun logs JOB -n 50", Strength.HINT),
    row("command-missing", "command not found|: not found", r"(?P<what>[^\s:]+): command not found"
        r"|^[^:]+: (?:line )?\d+: (?:exec: )?(?P<what_too>[^\s:]+): not found$|\[ERROR\] Command not found: (?P<what_old>\S+)", "command not found on the node: {what}",
        "use the command's full path, or load the environment module that provides the command", "bash 5.2", "clusterrun submit … --setup 'module load NAME'", Strength.HINT, common=True),
    row("setup", "no matching distribution found for", r"^ERROR: No matching distribution found for (?P<what>\S+)", "pip could not install {what}",
        "compute nodes often have no internet access: install the package on the login node; if that also fails, check the package's name, and that the requested version exists for this Python version", "https://github.com/pypa/pip/issues/6221", "python -m pip install[ {what}]", Strength.HINT, common=True),
    row("setup", "unbound variable|syntax error near|looking for matching", r"^\S+: (?:line )?\d+: (?P<what>\w+: unbound variable|syntax error near .*|unexpected EOF while looking for matching .*)",
        "the shell rejected a line: {what}", "if a variable is unbound, give it a value, or remove set -u from the script; if there is a syntax error, such as an unclosed quote, find it with bash -n SCRIPT", "bash 5.2", "clusterrun logs JOB -n 50", Strength.HINT, common=True),
    row("crashed", "assertion `|assertion '", r"^(?:[^:\s]+: [^:\s]+:\d+: .*|\[[\w.-]+(?::\d+){3}\] +\S+:\d+ +)Assertion [`'](?P<what>.+)' failed\b.{,200}$", "a process aborted in compiled code: an assertion failed ({what})",
        "the assertion is in native code, not in Python: the error line names the source file", "glibc 2.36 assert", "clusterrun logs JOB -n 50"),
    row("killed", "died due to signal 9", r"nvcc error +: '(?P<what>[\w+-]+)' died due to signal 9\b", "the compiler {what} was killed (SIGKILL) while building an extension",
        "usually the kernel's OOM killer killed the compiler because host memory ran out: run fewer compilers at the same time (MAX_JOBS), or request more memory", "https://github.com/Dao-AILab/flash-attention/issues/945", "clusterrun submit … --env MAX_JOBS=2"),
    row("killed", "failed (exitcode: -9)", r"failed \(exitcode: -9\) local_rank: (?P<local>\d+)(?: \(pid: (?P<pid>\d+)\))?", "local rank {local}[ (process {pid})] was killed (SIGKILL)",
        SENT_KILL, "https://github.com/showlab/EgoVLP/issues/21", "clusterrun submit … --mem SIZE"),
    row("crashed", "failed (exitcode: -", r"failed \(exitcode: -(?P<signal>4|6|8|11)\) local_rank: (?P<local>\d+)(?: \(pid: (?P<pid>\d+)\))?", "local rank {local}[ (process {pid})] was killed by signal {signal}",
        NOT_PYTHON, "https://github.com/FlagOpen/FlagEmbedding/issues/1549", "clusterrun logs JOB -n 50"),
    row("killed", "exits with return code = -9|exited with code -9", r"exits with return code = -9\b|Global rank (?P<rank>\d+) \(PID \d+\) exited with code -9\b", "a rank was killed (SIGKILL), according to its launcher",
        SENT_KILL, "https://github.com/deepspeedai/DeepSpeed/issues/3232", "clusterrun submit … --mem SIZE"),
    row("crashed", "exits with return code = -|exited with code -", r"exits with return code = -(?P<signal>4|6|8|11)\b|Global rank (?P<rank>\d+) \(PID \d+\) exited with code -(?P<signal_too>4|6|7|8|11)\b", "a rank was killed by signal {signal}, according to its launcher",
        NOT_PYTHON, "https://github.com/deepspeedai/DeepSpeed/issues/3989", "clusterrun logs JOB -n 50"),
    row("crashed", "free(): |double free|malloc(): |corrupted ",
        r"free\(\): (?:invalid|double free)[\w ]*|double free or corruption|malloc\(\): (?:invalid|corrupted|unsorted)[\w ]*|corrupted (?:double-linked list|size vs)[\w. ]*",
        "a process crashed: its memory was corrupted ({0})", "the crash was in native code, not in Python: usually two loaded libraries are incompatible, for example because each contains its own memory allocator or OpenMP runtime",
        "https://github.com/pytorch/pytorch/issues/50137", "clusterrun logs JOB -n 50"),
    row("crashed", "caught signal 7|signal: bus error|exitcode: -7)|return code = -7",
        r"Caught signal 7 \(|\] Signal: Bus error|failed \(exitcode: -7\) local_rank: (?P<local>\d+)|(?:'--local_rank=(?P<local_too>\d+)'.{0,2000})?exits with return code = -7\b",
        "a process[ (local rank {local})] crashed: bus error (signal 7)",
        "usually /dev/shm is full: start fewer data-loading workers or, in a Docker container, increase --shm-size; a truncated memory-mapped file also causes a bus error",
        "https://github.com/msr-fiddle/pipedream/issues/76", "srun df -h /dev/shm"),
    row("crashed", "caught signal|signal: ", r"(?:\[(?P<node>[\w.-]+):(?P<pid>\d+):\d+:\d+\] )?Caught signal (?:4|6|7|8|11) \((?P<how>[^):]*)|(?:\[(?P<node_too>[\w.-]+):(?P<pid_too>\d+)\] )Signal: (?P<how_too>[A-Z][a-z ]+) \((?:4|6|7|8|11)\)",
        "a process crashed[: {how}]", "the crash was in native code, not in Python; if a backtrace follows this error, it names the library",
        "https://github.com/deepseek-ai/DeepEP/issues/150", "clusterrun logs JOB -n 50"),
    row("setup", "lmod has detected|unable to locate a modulefile|could not find conda environment|environmentnamenotfound|properly configured to use 'conda activate'|run 'conda init' before",
        r"Lmod has detected the following error: +(?P<what>.*)|(?P<what_too>Unable to locate a modulefile for '[^']+'|(?:EnvironmentNameNotFound: )?Could not find conda environment: \S+)"
        r"|(?P<what_old>[Yy]our shell has not been properly configured to use 'conda activate'|Run 'conda init' before 'conda activate')",
        "the job's environment could not be set up[: {what}]", "run the failing line by hand on a compute node: environment modules and conda can be set up differently on compute nodes and login nodes",
        "https://github.com/conda/conda/issues/8536", "srun --pty bash -l", Strength.HINT, common=True),
    row("launch-failed", "error response from daemon|nvidia-container-cli: ", r"docker: Error response from daemon: (?P<what>.*)|(?P<what_too>nvidia-container-cli: .*)",
        "the container could not be started: {what}", "the message usually shows whether the image, a mount or the node's GPU driver is the problem; if it says \"permission denied\" or \"no such device\" for a path in the container"
        " runtime's data folder, ask your administrators to move that folder to the node's local disk",
        "https://github.com/NVIDIA/nvidia-container-toolkit", "clusterrun logs JOB --stream err -n 30"),
    row("launch-failed", "fatal:   |container creation failed: ", r"^\s*FATAL:   (?P<what>\S.*)|^\s*(?:FATAL: +)?(?P<what_too>container creation failed: .*)", "the container could not be started: {what}",
        "Apptainer (Singularity) failed: check the image path and the mounts, and try the same command on a compute node (srun --pty)",
        "https://github.com/wheaton5/souporcell/issues/201", "clusterrun logs JOB --stream err -n 30"),
    row("launch-failed", "permission denied (|host key verification failed|ssh exited with exit code 255|ssh: connect to host",
        r"(?:(?P<node>[\w.-]+): )?(?:\S+@(?P<node_too>[\w.-]+): )?(?P<what>Permission denied \([a-z,-]+\)|Host key verification failed|ssh exited with exit code 255)"
        r"|ssh: connect to host (?P<node_old>(?!git|bitbucket)[\w.-]+) (?P<what_old>port \d+: .*)",
        "ssh could not log in[ to {node}]: {what}",
        "if pdsh or mpirun starts the ranks through ssh, set up ssh keys between the nodes; or let clusterrun start the ranks with srun, which does not need ssh",
        "https://github.com/deepspeedai/DeepSpeed/issues/5709", "clusterrun submit … --nodes N"),
    row("launch-failed", "passwordauthentication=no", r"CalledProcessError: Command '\W*ssh\W.*PasswordAuthentication=no\W+(?P<node>[\w.-]+)\W.*returned non-zero exit status 255",
        "DeepSpeed's launcher could not log in to {node} with passwordless ssh", "set up ssh keys between the nodes (to test them, run `ssh {node} hostname` on the first node); or let clusterrun start the ranks with srun, which does not need ssh",
        "deepspeed/launcher/runner.py", "clusterrun submit … --nodes N"),
    TERMINATE,
    PANIC,
    row("interrupted", "user defined signal|hangup|cpu time limit exceeded|file size limit exceeded",
        r"(?:line \d+: +\d+ |^|tasks? [\d,-]+: )(?P<how>User defined signal [12]|Hangup|CPU time limit exceeded|File size limit exceeded)(?: |$)", "a process was killed by a signal that it did not handle: {how}",
        "'User defined signal 1' is usually Slurm's warning before the time limit (--signal=USR1), which the program must handle; 'Hangup' usually means that a terminal or ssh session was closed; 'limit exceeded' means that the process reached a limit on processor time or file size (ulimit -a shows the limits)",
        "bash 5.2", "clusterrun logs JOB -n 50", Strength.HINT),
    row("killed", "killed|terminated by signal sigkill|terminated by signal 9", r"(?:line \d+: +\d+ |^)Killed(?: |$)|^zsh: killed |terminated by signal (?:SIGKILL|9)\b", "a process was killed (SIGKILL)",
        SENT_KILL, "https://github.com/ArjunaCluster/ArjunaUsers/issues/52", "clusterrun submit … --mem SIZE"),
    row("crashed", "bus error|sigbus", r"(?:line \d+: +\d+ |^)Bus error ?(?: +\(core ?dumped\))?(?: |\(|$)|^zsh: bus error(?: |$)|terminated by signal SIGBUS\b",
        "a process crashed: bus error", "usually /dev/shm is full: start fewer data-loading workers or, in a Docker container, increase --shm-size; a truncated memory-mapped file also causes a bus error",
        "bash 5.2", "srun df -h /dev/shm"),
    row("crashed", "segmentation fault|bus error|abort|illegal instruction|illegal hardware instruction|floating point exception|memory fault|terminated by signal ",
        r"(?:line \d+: +\d+ |^)(?P<how>Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception|Memory fault) ?(?: +\(core ?dumped\))?(?: |\(|$)"
        r"|^zsh: (?P<how_too>segmentation fault|bus error|abort|illegal hardware instruction|floating point exception)(?: |$)|terminated by (?P<how_old>signal (?:SIGSEGV|SIGABRT|SIGBUS|SIGILL|SIGFPE|4|6|7|8|11))\b",
        "a process crashed: {how}", NOT_PYTHON, "bash 5.2", "clusterrun logs JOB -n 50"),
)  # fmt: skip
