"""Causes that Python and the training itself tell."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.causes.model import Strength
from clusterrun.causes.rows import Row, row

_PIP = "install it into the Python that the job uses (the one that was active at submit, or --python)"
_NAN = (
    "a lower learning rate, a longer warm-up, clipped gradients, bf16 instead of fp16; look at the samples of that step"
)
_HOST = "less in host memory: fewer data-loading workers, smaller batches, memory-mapped data; or ask for more"

PYTHON: tuple[Row, ...] = (
    row(
        "import-error", "modulenotfounderror", r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)'?", "the module {module} is not installed",
        _PIP, "Python 3.11", "python -m pip install {module}",
    ),
    row(
        "import-error", "cannot import torch", r"(?P<python>\S+) cannot import torch \((?P<why>.*)\)", "{python} cannot import torch: {why}", _PIP,
        "clusterrun/worker/entry.py", "{python} -m pip install torch",
    ),
    row(
        "import-error", "importerror: ", r"ImportError: (?P<what>.*)", "an import failed: {what}",
        "the package is there in another version than the code expects: compare with the login node's (pip list)", "Python 3.11",
        "python -m pip list",
    ),
    row(
        "nan-loss", "is not finite at step", r"(?P<whose>the (?:loss of rank [\d, ]+|gradient)) is not finite at step (?P<step>\d+)(?:.*?: (?P<todo>try .*))?",
        "{whose} is not finite at step {step}", _NAN, "clusterrun/worker/train.py", "clusterrun submit … --set lr=LOWER",
    ),
    row(
        "nan-loss", "nan|infinite|not finite", r"(?i)\bloss(?: value)?(?: is|=| became| was|:)? ?(?:\w+ )?(?:nan|inf|infinite|not finite)\b.{0,40}?\b(?:stop|abort|exit|terminat|quit)"
        r"|FloatingPointError: .{0,200}(?:nan|inf|overflow|loss)|Error: .{0,120}?\b(?:nan|infinite|non-finite)\b.{0,20}\bloss|Error: .{0,120}?\bloss\b.{0,30}\b(?:nan|infinite|non-finite)\b"
        r"|outputs? (?:is|are) nan!? *stop",
        "the loss is no number any more (NaN or infinite)", _NAN, "https://github.com/Intellindust-AI-Lab/DEIM/issues/96", "clusterrun submit … --set lr=LOWER",
    ),
    row(
        "nan-loss", "found nan|found inf", r"(?:[Rr]ank (?P<rank>\d+): )?\b[Ff]ound (?P<what>NaN|[Ii]nf\w*) in (?:the )?(?P<where>(?:\w+ ){0,3}(?:grad|loss)\w*)",
        "{what} in the {where}", _NAN, "https://github.com/alibaba/Pai-Megatron-Patch/issues/366", "clusterrun submit … --set lr=LOWER",
    ),
    row(
        "host-memory", "out of memory on cpu", r"out of memory on (?P<where>cpu.*?), micro batch (?P<micro>\d+): (?P<todo>.+)",
        "host memory ran out: {where}, with a micro batch of {micro}", "{todo}", "clusterrun/worker/training/memory.py", "clusterrun submit … --set auto_micro_batch=true",
    ),
    row(
        "host-memory", "memoryerror|can't allocate memory|cannot allocate memory|unable to allocate",
        r"(?:^|\W)MemoryError\b|can't allocate memory|[Cc]annot allocate memory|_ArrayMemoryError: (?P<what>.*)",
        "host memory ran out in this rank", _HOST, "https://github.com/pytorch/pytorch/issues/20618", "clusterrun submit … --mem SIZE",
    ),
    row(
        "shared-memory", "out of shared memory|insufficient shared memory|</?torch_|/dev/shm|</torch_",
        r"out of shared memory|insufficient shared memory|unable to (?:open|write|mmap|resize|allocate).*(?:</?torch_|/dev/shm).*|/dev/shm\S*'?.*No space left"
        r"|No space left on device.*/dev/shm",
        "/dev/shm is full: data-loading workers pass their batches through it",
        "fewer workers (num_workers), or a container with a larger /dev/shm; torch.multiprocessing.set_sharing_strategy('file_system') avoids it",
        "https://github.com/pytorch/pytorch/issues/5040", "df -h /dev/shm   (on the node)",
    ),
    row(
        "killed", "is killed by signal: killed", r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)\) is killed by signal: Killed",
        "a data-loading worker ({pid}) was killed (SIGKILL)", "mostly the kernel, for want of host memory: fewer workers, or more memory",
        "https://github.com/pytorch/pytorch/issues/8976", "clusterrun submit … --mem SIZE",
    ),
    row(
        "killed", "sigkill", r"[Dd]ied with <Signals\.SIGKILL: 9>", "a child process was killed (SIGKILL)",
        "mostly the kernel, for want of host memory", "Python 3.11 subprocess", "clusterrun submit … --mem SIZE",
    ),
    row(
        "crashed", "fatal python error", r"Fatal Python error: (?P<how>.*)", "the interpreter crashed: {how}",
        "compiled code failed, not Python: the stack below that line names the Python line that called it", "Python 3.11 faulthandler",
        "clusterrun logs JOB[ --rank {rank}] -n 50",
    ),
    row(
        "usage", ": error: ", r"^\S*\.py: error: (?P<what>.*)", "the script refused its arguments: {what}", "correct the arguments after the script's name",
        "Python 3.11 argparse", "python SCRIPT --help",
    ),
    row(
        "interrupted", "keyboardinterrupt", r"^KeyboardInterrupt\b", "a rank was interrupted (SIGINT)", "somebody sent SIGINT: scancel --signal=INT, or Ctrl-C in an interactive step",
        "Python 3.11", "clusterrun logs JOB -n 50", Strength.HINT,
    ),
)  # fmt: skip
