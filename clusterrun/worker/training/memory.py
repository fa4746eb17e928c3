"""Out of memory: an error with the numbers that help, and halving the micro batch before the first step."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from collections.abc import Callable, Iterator

import torch

from ...base.errors import WorkerError
from .consensus import Consensus
from .sizes import BatchSizes

GIB = 2**30
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_KEPT = 32 * 2**20  # glibc takes no higher threshold
MOST_KEPT = 256 * 2**20


def keep_freed_memory() -> None:
    """Let the C library keep what a step on the CPU frees, so that the next one gets pages that are there already.

    It gives large blocks back to the system, and a step takes and frees some of the same sizes: the logits, for
    instance. Blocks above `LARGEST_KEPT` bytes, and more than `MOST_KEPT` in all, are given back all the same.
    """
    with contextlib.suppress(AttributeError):  # a C library without this function
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def is_oom(error: BaseException) -> bool:
    """Return whether an exception means out of memory, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


@contextlib.contextmanager
def explained(device: torch.device, sizes: BatchSizes, precision: str) -> Iterator[None]:
    """Raise WorkerError with what to set, in place of any exception that means out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_oom(error):
            raise explain(device, sizes, precision) from None
        raise


def explain(device: torch.device, sizes: BatchSizes, precision: str) -> WorkerError:
    """Return the error for a GPU or node whose memory ran out: peak and free memory, the device, and what to set."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        where = (
            f"{device} ({torch.cuda.get_device_name(device)}), peak {peak_bytes(device) / GIB:.1f} GiB,"
            f" {free / GIB:.1f} of {total / GIB:.1f} GiB free"
        )
    else:
        where = f"cpu, peak {peak_bytes(device) / GIB:.1f} GiB, {_free_bytes() / GIB:.1f} GiB free"
    half = sizes.halved()
    if half:
        advice = (
            f"set micro_batch_size={half.micro_batch_size} grad_accum_steps={half.grad_accum_steps} (the same global"
            f" batch of {half.global_batch_size}), or auto_micro_batch=true"
        )
    elif sizes.micro_batch_size > 1:
        advice = f"set micro_batch_size=1 grad_accum_steps={sizes.micro_batch_size * sizes.grad_accum_steps}"
    else:
        advice = "use a shorter seq_len or a smaller model"
    if device.type == "cuda" and precision == "fp32":
        advice += "; precision=bf16 halves the activation memory"
    return WorkerError(
        f"out of memory on {where}, micro batch {sizes.micro_batch_size}: {advice}",
        kind="cuda-memory" if device.type == "cuda" else "host-memory",
        where=where,
        micro_batch=sizes.micro_batch_size,
        advice=advice,
    )


def fit_micro_batch(
    sizes: BatchSizes, attempt: Callable[[BatchSizes], None], consensus: Consensus
) -> BatchSizes | None:
    """Halve the micro batch until `attempt` succeeds on every rank; return None if not even the smallest does.

    `attempt` must not communicate: a rank that runs out of memory inside a collective would leave the others there.
    """
    while True:
        try:
            attempt(sizes)
            out_of_memory = 0.0
        except (RuntimeError, MemoryError) as error:
            if not is_oom(error):
                raise
            out_of_memory = 1.0
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if consensus.sum([out_of_memory])[0] == 0:
            return sizes
        smaller = sizes.halved()
        if smaller is None:
            return None
        sizes = smaller


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes: allocated by torch on a GPU, resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_bytes() -> int:
    """Return the bytes this process can still take: what the machine has, within the limit of its address space."""
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return available
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    return max(0, min(available, limit - used))
