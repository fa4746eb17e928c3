"""What one rank measures of its own node: versions, devices, memory, disk, open files, and the rate of GEMM."""

from __future__ import annotations

import importlib
import os
import resource
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..node.left_behind import Search
from ..rank.distenv import DistEnv, RunEnv
from ..rank.group import find_device
from ..rank.nvml import GIB
from ..rank.nvml import find_device as find_handle
from ..rank.rendezvous import port_range
from ..rank.versions import find_versions

PROBE = b"\0" * 2**20  # bytes written to each folder
CPU_SIDE, CUDA_SIDE = 512, 8192


def measure(dist: DistEnv, run: RunEnv) -> dict[str, Any]:
    """Return this rank's device and, of the first rank of each node, what there is to know of the node."""
    search = Search(dist.node, port_range()) if dist.local_rank == 0 else None
    visible, device = find_device(dist)
    found: dict[str, Any] = {"device": device} | ({} if device is None else {"gpu": gpu(device)})
    if search is None:
        return found
    granted = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found | {
        "versions": find_versions(),
        "cuda": torch.version.cuda or "",
        "visible": visible,
        "granted": None if granted is None else [name for name in granted.split(",") if name.strip()],
        "memory_gib": _available_memory(),
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "folders": {} if run.run_dir is None else _folders(run.run_dir),
        "left_behind": [one._asdict() for one in search.found()],
    }


def _folders(run_dir: Path) -> dict[str, dict[str, Any]]:
    logs = run_dir.parents[2] / "logs"
    return {"run": folder(run_dir)} | ({"logs": folder(logs)} if logs.is_dir() else {})


def folder(path: Path) -> dict[str, Any]:
    """Return the free space of a folder in GiB and the seconds to write and sync 1 MiB, or the error."""
    try:
        began = time.monotonic()
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(PROBE)
            file.flush()
            os.fsync(file.fileno())
        state = os.statvfs(path)
    except OSError as error:
        return {"path": str(path), "error": error.strerror or str(error)}
    return {"path": str(path), "free_gib": state.f_bavail * state.f_frsize / GIB, "write_s": time.monotonic() - began}


def gpu(device: int) -> dict[str, Any]:
    """Return name and memory of a GPU, and what NVML knows of its health; `nvml` says why if it knows nothing."""
    try:
        free, total = torch.cuda.mem_get_info(device)
        properties = torch.cuda.get_device_properties(device)
    except RuntimeError as error:
        return {"error": str(error).splitlines()[0]}
    uuid = str(getattr(properties, "uuid", ""))
    found: dict[str, Any] = {"name": properties.name, "uuid": uuid, "free_gib": free / GIB, "total_gib": total / GIB}
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return found | health(nvml, find_handle(nvml, device, uuid, os.environ.get("CUDA_VISIBLE_DEVICES", "")))
    except Exception as error:  # no package, no driver, no such device
        return found | {"nvml": str(error) or type(error).__name__}


def health(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return uncorrected ECC errors, whether rows failed to remap, and whether it is slowed down; None if unknown."""

    def query(name: str, *arguments: str) -> Any:
        with suppress(Exception):  # not supported by this device, driver or package
            return getattr(nvml, name)(handle, *(getattr(nvml, argument) for argument in arguments))
        return None

    rows, reasons = query("nvmlDeviceGetRemappedRows"), query("nvmlDeviceGetCurrentClocksThrottleReasons")
    brakes = ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    slow = sum(getattr(nvml, f"nvmlClocksThrottleReason{name}", 0) for name in brakes)
    uncorrected = ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
    return {
        "ecc_errors": query("nvmlDeviceGetTotalEccErrors", *uncorrected),
        "remap_failed": bool(rows[3]) if rows else None,
        "slowed_down": bool(reasons & slow) if reasons is not None else None,
    }


def gemm(device: int | None, duration: float) -> dict[str, Any]:
    """Return the best and the worst rate of matrix products in TFLOP/s: bf16 on a GPU, float32 on a CPU."""
    place = torch.device("cpu") if device is None else torch.device("cuda", device)
    side, kind = (CPU_SIDE, torch.float32) if device is None else (CUDA_SIDE, torch.bfloat16)
    matrix = torch.ones(side, side, device=place, dtype=kind) / side

    def multiply() -> tuple[float, torch.Tensor]:
        began = time.perf_counter()
        result = matrix @ matrix
        if device is not None:
            torch.cuda.synchronize(place)
        return time.perf_counter() - began, result

    for _ in range(3):  # warm up: libraries load, clocks rise
        multiply()
    end, seconds = time.monotonic() + duration, list[float]()
    while time.monotonic() < end or len(seconds) < 5:
        took, result = multiply()
        seconds.append(took)
    correct = bool(torch.allclose(result.float(), matrix.float(), rtol=0.05))
    work = 2.0 * side**3 / 1e12
    return {"best": work / min(seconds), "worst": work / max(seconds), "correct": correct}


def _available_memory() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / GIB for line in lines if line.startswith("MemAvailable:"))
