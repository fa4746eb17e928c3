"""Causes in Python and in the training."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.why.causes.model import CauseRow, Strength, row, texts
from clusterrun.why.causes.table_launch import NOT_PYTHON, SENT_KILL

_PIP = "if the module is part of your project, add the folder that contains it to PYTHONPATH; otherwise, install the package that provides it into the Python that the job uses (--python, or the Python active at submit time)"
NAN_ADVICE = "check the batch of the first step with a NaN or infinite value; if the batch is valid, clip the gradients, or try a lower learning rate"
_HOST = "use less host memory (fewer data-loading workers, smaller batches, memory-mapped data), or request more memory"
#: a signal that torchrun reports -> what it means, what to do
_TORCHRUN_SIGNALS = (
    (r"(?:2|Signals\.SIGINT)", "torchrun was stopped by SIGINT (Ctrl-C)",
     "usually someone pressed Ctrl-C in the terminal or in an interactive step, or sent SIGINT with scancel --signal=INT; the KeyboardInterrupt tracebacks show the line at which each rank was interrupted"),
    (r"(?:1|Signals\.SIGHUP)", "torchrun was stopped by SIGHUP, the signal sent when a terminal closes", "if the ssh session or terminal that ran torchrun was closed, start torchrun in tmux, or submit the training as a job; otherwise, look for the earliest error in the log"),
    (r"(?:15|Signals\.SIGTERM)", "torchrun was stopped by SIGTERM", "look for the reason for the SIGTERM, such as a failed rank on another node, a scancel, a preemption or the time limit"),
    (r"[\w.]+", "torchrun was stopped by a signal ({signal})", "if the signal is shown as a number, `kill -l NUMBER` prints its name; look in the log for the reason for the signal"),
)  # fmt: skip

#: also for a semaphore of multiprocessing on a full disk
SHM_FULL = row(
    "shared-memory", "out of shared memory|insufficient shared memory|posix_fallocate|shared memory segment|</?torch_|/dev/shm|</torch_",
    r"(?<!workers are )out of shared memory|(?<!caused by )insufficient shared memory|posix_fallocate.*No space left|[Ee]rror while creating shared memory segment(?!.*error: (?!No space))|unable to (?:open(?!.*in read-write mode)|write|mmap|resize|allocate)(?!.*(?:No such file|Permission denied|Cannot allocate|Too many open)).*(?:</?torch_|/dev/shm).*|/dev/shm\S*'?.*No space left"
    r"|No space left on device.*/dev/shm",
    "/dev/shm is full: data-loading workers and NCCL pass their data through it",
    "use fewer workers (num_workers), or a container with a larger /dev/shm",
    "https://github.com/pytorch/pytorch/issues/5040", "df -h /dev/shm",
)  # fmt: skip
PYTHON: tuple[CauseRow, ...] = (
    row("import-error", "modulenotfounderror", r"ModuleNotFoundError: No module named '?(?P<module>(?:src|utils?|models?|modules|data|lib|libs|configs?|common|core|tools|scripts|networks?|helpers|misc|engine|trainers?|options|losses)(?:\.\w+)*)'?",
        "Python could not find the module {module}, which looks like part of your project", "check that your checkout contains the module; if it does, add the folder that contains the module's top-level package to PYTHONPATH",
        "https://github.com/iedwardwangi/MetaAdapter/issues/2", "clusterrun submit … --env PYTHONPATH=FOLDER"),
    row("library-mismatch", "did not match any variant of untagged enum", r"data did not match any variant of untagged enum \w*(?:Wrapper|Tokenizer)\w*.*", "the installed tokenizers package cannot read the tokenizer file: {0}",
        "usually a newer tokenizers release wrote the file; upgrade transformers and tokenizers in the Python that the job uses", "https://github.com/allenai/open-instruct/issues/738", "python -m pip install --upgrade transformers tokenizers"),
    row("exception", "pytorchstreamreader|unexpected eof, expected|metadataincompletebuffer|invalidheader|headertoo|ran out of input|invalid load key|unexpected end of data",
        r"(?:Error|Exception): (?P<what>.*(?:PytorchStreamReader failed (?:reading zip archive|finding central directory|locating).*|unexpected EOF, expected.*|MetadataIncompleteBuffer|InvalidHeader\w+|HeaderToo\w+|Ran out of input|invalid load key.*|unexpected end of data\b.{,200}))",
        "a saved file cannot be read: {what}", "usually the file is incomplete, or is a Git LFS pointer (invalid load key 'v') or a web page (invalid load key '<'); if a job wrote the file, use an earlier checkpoint; if you downloaded the file, download it again",
        "https://github.com/sml2h3/dddd_trainer/issues/36", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50"),
    row("usage", "could not override '|cannot find primary config|could not find '|you must specify '|error locating target|in 'con|missing mandatory value|is not in struct",
        r"^(?P<what>Could not override '.*|Cannot find primary config .*|(?:In '[^']+': )?Could not find '[\w-]+/[^']+'.*|You must specify '.*|Error locating target '[^']+'|Missing mandatory value: .*|Key '[^']+' is not in struct)",
        "Hydra rejected the configuration: {what}", "correct the option, file or class that the message names; to see the full stack trace, set HYDRA_FULL_ERROR=1",
        "https://hydra.cc/docs/advanced/override_grammar/basic/", "clusterrun submit … --env HYDRA_FULL_ERROR=1", Strength.HINT),
    row("import-error", "modulenotfounderror", r"ModuleNotFoundError: No module named '(?P<module>(?P<package>\w+)\.[\w.]+)'", "the installed {package} has no module {module}",
        "another version of {package} may have this module, or a file or folder named {package} in your project may shadow the package",
        "https://github.com/microsoft/DeepSpeed/issues/2845", "python -m pip show {package}"),
    row("import-error", "modulenotfounderror", r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)'?", "the module {module} is not installed",
        _PIP, "Python 3.11", "python -m pip install {module}"),
    row("import-error", ": no module named ", r"^\S*python[\d.]*: No module named '?(?P<module>[\w.]+)'?", "the module {module} is not installed",
        _PIP, "https://github.com/python/cpython/blob/main/Lib/runpy.py", "python -m pip install {module}"),
    row("import-error", "need to install|please install|library but it was not found|pip install",
        r"(?:Import|ModuleNotFound|Runtime|Value|OS|Attribute)Error: (?P<what>(?=.*(?:need to install|[Pp]lease install|pip install|library but it was not found)).*)|^(?P<what_too>\w+ requires the \S+ library but it was not found.*?\.)",
        "a package is missing or too old: {what}", "install or upgrade the package that the message names, in the Python that the job uses (--python, or the Python active at submit time); to check, list the installed versions", "https://github.com/huggingface/evaluate/issues/323", "python -m pip list"),
    row("import-error", "importerror: ", r"ImportError: (?P<what>.+?)(?:Traceback \(most recent|$)", "an import failed: {what}",
        "usually the installed version of a package differs from the version that the code expects; compare the installed versions with those that your project requires", "Python 3.11",
        "python -m pip list"),
    row("ddp-parameters", "finished reduction in the prior iteration", r"Expected to have finished reduction in the prior iteration",
        "DDP expects a gradient for every parameter, but some parameters got none in the last step[: {which}]", "use all outputs of the model in the loss, or pass find_unused_parameters=True to DDP (for the Hugging Face Trainer, ddp_find_unused_parameters=True; for Lightning, strategy=\"ddp_find_unused_parameters_true\");"
        " to see the names of the parameters, set TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "https://github.com/WongKinYiu/yolov9/issues/559", "clusterrun submit … --env TORCH_DISTRIBUTED_DEBUG=DETAIL",
        after=r"Parameters which did not receive grad for rank \d+: (?P<which>.{1,160})|(?P<which_too>[Pp]arameter indices which did not receive grad for rank \d+: .{1,80})"),
    row("exception", "keyerror: '|environment variable ", r"KeyError: '(?P<what>RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT)'$|environment variable (?P<what_too>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",
        "the environment variable {what}, which launchers set for each rank, is not set",
        "start the script with torchrun or clusterrun (only clusterrun sets NODE_RANK)", "torch/distributed/rendezvous.py", "clusterrun submit SCRIPT"),
    row("exception", "keyerror: 'slurm_", r"KeyError: '(?P<what>SLURM_(?:PROCID|LOCALID|NODEID|NTASKS|NNODES|NODELIST|STEP_NODELIST|TASKS_PER_NODE|NTASKS_PER_NODE))'$",
        "the environment variable {what}, which Slurm sets, is not set", "if the program is to run outside Slurm, configure it not to use Slurm's variables; otherwise, start it with srun in a job, as clusterrun does (SLURM_NTASKS_PER_NODE also needs --ntasks-per-node)", "Slurm 22.05 man srun", "clusterrun submit SCRIPT"),
    row("exception", "weights only load failed|weightsunpickler error", r"Weights only load failed|WeightsUnpickler error: (?P<what>Unsupported \w+:? (?:GLOBAL )?\S+)",
        "torch.load could not read a file with weights_only=True, the default since torch 2.6[ ({what})]", "if the error is 'Unsupported operand 118' (a Git LFS pointer) or 'Unsupported operand 60' (an HTML page), download the real file; otherwise, if you trust the file, pass weights_only=False or allow the file's classes with torch.serialization.add_safe_globals",
        "https://docs.pytorch.org/docs/stable/notes/serialization.html", "clusterrun logs JOB -n 50",
        after=r"WeightsUnpickler error: (?P<what>.{1,160}?)(?:\. |$)"),
    row("nan-loss", "nan|infinite|not finite|floatingpointerror", r"(?i)\bloss(?: value)?(?: is|=| became| was|:)? ?(?:\w+ )?(?:nan|inf|infinite|not finite)\b.{0,40}?\b(?:stop|abort|exit|terminat|quit)"
        r"|FloatingPointError: (?!\w+ encountered in)(?:Loss became infinite or NaN at iteration=(?P<step>\d+)|.{0,200}(?:nan|inf|overflow|loss))|Error: .{0,120}?\b(?:nan|infinite|non-finite)\b.{0,20}\bloss|Error: .{0,120}?\bloss\b.{0,60}\b(?:nan|infinite|non-finite)\b|(?:Function '(?P<what>\w+)' )?returned nan values in its \d"
        r"|outputs? (?:is|are) nan!? *stop",
        "the loss or a gradient became NaN or infinite[ at iteration {step}][: {what} returned NaN]", NAN_ADVICE, "https://github.com/Intellindust-AI-Lab/DEIM/issues/96", "clusterrun submit … --set lr=LOWER"),
    row("nan-loss", "found nan|found inf", r"(?:Error|Exception): (?:[Rr]ank (?P<rank>\d+): )?.{0,80}?\b[Ff]ound (?P<what>NaN|[Ii]nf\w*) in (?:the )?(?P<where>(?:\w+ ){0,3}(?:grad|loss)\w*)",
        "{what} was found in the {where}", NAN_ADVICE, "https://github.com/alibaba/Pai-Megatron-Patch/issues/366", "clusterrun submit … --set lr=LOWER"),
    row("nan-loss", "loss scale already at minimum|minimum loss scale reached", r"loss scale already at minimum|Minimum loss scale reached", "the loss scale fell to its minimum, as happens when the gradients stay NaN or infinite",
        "use bf16 instead of fp16, or try a lower learning rate", "https://github.com/ymcui/Chinese-LLaMA-Alpaca/issues/534", "clusterrun submit … --set lr=LOWER"),
    row("locked-memory", "cannot allocate memory", r"(?:\bibv_(?:create|alloc|reg)_\w+|\bibv_\w*reg\w*|[Rr]egister(?:ing)? (?:memory|MR)|reg_mr|RC: -12, Error:|create (?:extended )?(?:CQ|QP|MR)\b).*[Cc]annot allocate memory",
        "could not lock memory for the network card: {0}",
        "check that `ulimit -l` prints unlimited on the node; if it prints a number, ask your administrators to set LimitMEMLOCK=infinity for slurmd and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        "https://github.com/NVIDIA/nccl/issues/1187", "srun bash -c 'ulimit -l'"),
    row("host-memory", "memoryerror|can't allocate memory|cannot allocate memory|unable to allocate|bad_alloc|defaultcpuallocator: not enough memory|memory allocation of",
        r"DefaultCPUAllocator: not enough memory: (?P<what_too>you tried to allocate \d+ bytes)|(?:^|\W)(?:_Array)?MemoryError\b(?:: (?P<what>.{1,160}))?|std::bad_alloc(?!: hip)|can't allocate memory(?:: (?P<what_old>you tried to allocate \d+ bytes))?|[Cc]annot allocate memory|^memory allocation of \d+ bytes failed$",
        "the rank could not allocate host memory[: {what}]", "if the failed allocation is far larger than your data, check for a wrong shape or a damaged file; otherwise, " + _HOST, "https://github.com/pytorch/pytorch/issues/20618", "clusterrun submit … --mem SIZE"),
    row("host-memory", "running low on memory", r"due to the node running low on memory", "Ray ended a task or worker because the node was running low on memory", _HOST,
        "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html", "clusterrun submit … --mem SIZE"),
    # Ray restarts them a few times
    row("host-memory", "killed due to memory pressure", r"(?P<n>[1-9]\d*) Workers \(tasks / actors\) killed due to memory pressure",
        "Ray killed {n} of its workers because the node ran out of memory", _HOST, "https://github.com/jchengai/planTF/issues/28",
        "clusterrun submit … --mem SIZE", Strength.HINT),
    row("shared-memory", "in read-write mode", r"unable to open shared memory object </?torch_\S+> in read-write mode$", "a data-loading worker could not open shared memory: {0}",
        "usually the process reached its limit on open files (ulimit -n) or on memory mappings (vm.max_map_count); use fewer workers (num_workers), or raise the limit",
        "torch/lib/libshm/libshm.h, at::MapAllocator", "srun bash -c 'ulimit -n'"),
    SHM_FULL,
    row("exception", '"message": "', r'^\s*"message": "(?P<what>(?!Rendezvous)\w+(?:Error|Exception): .{1,300}?)",?$', "{what}", "torch printed this error as JSON; read the traceback in the field py_callstack",
        "torch/distributed/elastic/multiprocessing/errors/error_handler.py", "clusterrun logs JOB -n 50", Strength.HINT),
    row("shared-memory", "bus error", r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)\) is killed by signal: Bus error|Unexpected bus error encountered in worker",
        "a data-loading worker[ (process {pid})] was killed by a bus error, usually because /dev/shm is full", "use fewer workers (num_workers), or a container with a larger /dev/shm",
        "https://github.com/XPixelGroup/BasicSR/issues/59", "df -h /dev/shm"),
    row("crashed", "is killed by signal: ",
        r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)\) is killed by signal: (?P<how>Segmentation fault|Aborted|Illegal instruction|Floating point exception)",
        "a data-loading worker (process {pid}) crashed: {how}", "run again with num_workers=0 to see the Python line that called the native code; for this run, read the log lines before the crash",
        "https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp", "clusterrun logs JOB[ --rank {rank}] -n 50"),
    row("crashed", "encountered in worker", r"Unexpected (?P<how>segmentation fault|floating-point exception) encountered in worker", "a data-loading worker crashed: {how}",
        "run again with num_workers=0 to see the Python line that called the native code; for this run, read the log lines before the crash", "https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp",
        "clusterrun logs JOB[ --rank {rank}] -n 50", Strength.HINT, common=True),
    row("interrupted", "is killed by signal: hangup", r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)\) is killed by signal: Hangup", "a data-loading worker (process {pid}) was terminated by SIGHUP, the signal sent when a terminal closes",
        "usually the ssh session or terminal that started the run was closed; start the run in tmux, or submit it as a job", "https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp",
        "clusterrun submit …"),
    row("interrupted", "is killed by signal: terminated", r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)\) is killed by signal: Terminated", "a data-loading worker (process {pid}) was terminated by SIGTERM",
        "usually the launcher ended the worker because a rank had failed, or Slurm ended the job; look for the earliest error in the log", "https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp",
        "clusterrun logs JOB --errors", Strength.CONSEQUENCE),
    row("killed", "is killed by signal: killed", r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)\) is killed by signal: Killed",
        "a data-loading worker (process {pid}) was killed (SIGKILL)", "usually the kernel's OOM killer sent SIGKILL because host memory ran out; use fewer workers, or request more memory",
        "https://github.com/pytorch/pytorch/issues/8976", "clusterrun submit … --mem SIZE"),
    row("killed", "terminated with signal sigkill", r"process \d+ terminated with signal SIGKILL", "a spawned process was killed (SIGKILL)",
        SENT_KILL, "https://github.com/resistzzz/Prompt4NR/issues/3", "clusterrun submit … --mem SIZE"),
    row("crashed", "died with <signals", r"[Dd]ied with <Signals\.(?P<how>SIG(?:SEGV|ABRT|BUS|ILL|FPE)): \d+>", "a child process crashed ({how})",
        NOT_PYTHON, "Python 3.11 subprocess", "clusterrun logs JOB -n 50"),
    row("rank-lost", "actor died unexpectedly|worker died or was killed",
        r"(?:ActorDied|RayActor)Error: The actor died unexpectedly|A worker died or was killed while executing a task", "a Ray worker ended without an error message: it was killed, ran out of host memory, or crashed",
        "read the worker's log in Ray's folder session_latest/logs; if host memory ran out, use fewer workers per node, or request more memory",
        "https://github.com/langfengQ/verl-agent/issues/52", "clusterrun submit … --mem SIZE", Strength.HINT),
    *(row("interrupted", "got signal: |death signal, shutting down",
        rf"SignalException: Process \d+ got signal: (?P<signal>{signal}\b)|Received (?P<signal_too>{signal}) death signal, shutting down workers", sentence, advice,
        "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py", "clusterrun logs JOB --errors", Strength.HINT)
      for signal, sentence, advice in _TORCHRUN_SIGNALS),
    row("crashed", "fatal python error", r"Fatal Python error: (?P<how>.*)", "the Python interpreter crashed: {how}",
        "in the stack after 'Fatal Python error', look for the Python line that called the native code", "Python 3.11 faulthandler",
        "clusterrun logs JOB[ --rank {rank}] -n 50"),
    row("usage", "local_rank|local-rank", r"error: (?P<what>unrecognized arguments: .*--local[-_]rank\b.*)", "the script does not accept the argument that its launcher adds: {what}",
        "start the script with torchrun or clusterrun, and read LOCAL_RANK from the environment;"
        " or, if you keep the launcher, accept its argument with add_argument('--local_rank', '--local-rank', type=int)",
        "https://github.com/sshaoshuai/MTR/issues/22", "python SCRIPT --help"),
    row("usage", "torchrun: error: |accelerate launch: error: |accelerate <command> [<args>]: error: ", r"^(?P<program>torchrun|accelerate(?: <command> \[<args>\])?|accelerate launch): error: (?P<what>.*)",
        "{program} rejected its command line: {what}", "if you passed inline code (-c), save the code to a file; otherwise, check the launcher's options, and put them before the script's name",
        "https://docs.pytorch.org/docs/stable/elastic/run.html", "torchrun --help"),
    row("usage", ": error: ", r"^(?:\S*\.py: error: (?P<what>.*)|[\w./-]+: error: (?P<what_too>(?:unrecognized arguments|the following arguments are required|argument \S+|invalid choice).*))", "the script rejected its arguments: {what}", "compare the arguments with those that the script accepts",
        "Python 3.11 argparse", "python SCRIPT --help"),
    row("usage", "error: no such option|error: missing option|error: missing argument|error: invalid value for|error: got unexpected extra argument",
        r"^Error: (?P<what>(?:No such option|Missing (?:option|argument)|Invalid value for|Got unexpected extra argument).*)", "the script rejected its arguments: {what}", "compare the arguments with those that the script accepts",
        "https://click.palletsprojects.com/en/stable/exceptions/", "python SCRIPT --help"),
    row("process-limit", "can't start new thread|resource temporarily unavailable", r"can't start new thread|(?:fork|pthread_create|\bthread:).{0,80}Resource temporarily unavailable",
        "a rank cannot start more threads or processes: {0}", "use fewer data-loading workers and threads (OMP_NUM_THREADS), or raise the limit (ulimit -u)",
        "https://github.com/pytorch/pytorch/issues/4019", "clusterrun submit … --env OMP_NUM_THREADS=1 --setup 'ulimit -u hard'"),
    row("interrupted", "keyboardinterrupt", r"^KeyboardInterrupt\b", "a rank was interrupted (SIGINT)", "usually someone sent SIGINT, for example with scancel --signal=INT or Ctrl-C in an interactive step",
        "Python 3.11", "clusterrun logs JOB -n 50", Strength.HINT),
)  # fmt: skip

#: An exception that no row knows.
EXCEPTION = texts(
    "exception", "{error}", "read the exception's traceback in the log, at the line shown",
    "Python 3.11", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50",
)  # fmt: skip
#: The last line of a traceback whose beginning is missing, if no other row matches the line.
BARE = row(
    "exception", "error: |exception: |error(|exception(|failure: |timeoutexpired: |assertionerror|notimplementederror|recursionerror",
    r"^(?:[\w.]+\.)?(?!ChildFailedError|CalledProcessError|CommandNotFoundError)"
    r"(?:(?:[A-Z]\w*(?:Error|Exception|Failure)|Exception|TimeoutExpired): .+|(?:AssertionError|NotImplementedError|RecursionError)$)",  # a log may hold them: these are names to search for
    "{0}", "no traceback of this exception was found in the log; the log lines around the exception may show where it was raised",
    "Python 3.11", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50", Strength.HINT,
)  # fmt: skip
#: A script, or a command in it, that exited with a status.
EXIT = texts(
    "exit-status", "{error}", "the script, or a program that it ran, returned this exit status; read the last lines of the script's output",
    "clusterrun/worker/rank/user_code.py", "clusterrun logs JOB[ --rank {rank}] -n 50",
)  # fmt: skip
