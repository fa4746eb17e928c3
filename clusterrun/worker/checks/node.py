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

from ..distenv import DistEnv, RunEnv
from ..nvml import GIB, find_device
from ..versions import find_versions
from .names import own_addresses, reverse

PROBE = b"\0" * 2**20  # bytes written to each folder
CPU_SIDE, CUDA_SIDE = 512, 8192
REVERSE_S = 10.0


def measure(dist: DistEnv, run: RunEnv) -> dict[str, Any]:
    """Return this rank's device and, of the first rank of each node, what there is to know of the node."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = dist.local_rank if dist.local_rank < visible else (0 if visible == 1 else None)
    found: dict[str, Any] = {"device": device}
    if device is not None:
        found["gpu"] = gpu(device)
    if dist.local_rank != 0:
        return found
    granted = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found | {
        "versions": find_versions(),
        "cuda": torch.version.cuda or "",
        "visible": visible,
        "granted": None if granted is None else [name for name in granted.split(",") if name.strip()],
        "memory_gib": _available_memory(),
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "reverse": reverse([address for address in own_addresses() if ":" not in address][:4], REVERSE_S),
        "folders": {name: folder(path) for name, path in _folders(run).items()},
    }


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
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        handle = find_device(nvml, device, uuid, visible)
    except Exception as error:  # no package, no driver, no such device
        return found | {"nvml": str(error) or type(error).__name__}
    return found | health(nvml, handle)


def health(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return uncorrected ECC errors, whether rows failed to remap, slow-down and temperature; None for the unknown."""

    def query(name: str, *arguments: Any) -> Any:
        with suppress(Exception):  # not supported by this device, driver or package
            return getattr(nvml, name)(handle, *(getattr(nvml, text) for text in arguments))
        return None

    ecc = query("nvmlDeviceGetTotalEccErrors", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
    rows = query("nvmlDeviceGetRemappedRows")
    reasons = query("nvmlDeviceGetCurrentClocksThrottleReasons")
    brakes = ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    slow = sum(getattr(nvml, f"nvmlClocksThrottleReason{name}", 0) for name in brakes)
    return {
        "ecc_errors": ecc,
        "remap_failed": bool(rows[3]) if rows else None,
        "slowed_down": bool(reasons & slow) if reasons is not None else None,
        "temperature": query("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    }


def gemm(device: int | None, duration: float) -> dict[str, Any]:
    """Return the best and the worst rate of matrix products in TFLOP/s: bf16 on a GPU, float32 on a CPU."""
    place, side = (torch.device("cpu"), CPU_SIDE) if device is None else (torch.device("cuda", device), CUDA_SIDE)
    on_cuda = place.type == "cuda"
    matrix = torch.ones(side, side, device=place, dtype=torch.bfloat16 if on_cuda else torch.float32) / side
    seconds: list[float] = []
    for _ in range(3):  # warm up: libraries load, clocks rise
        matrix @ matrix
    end = time.monotonic() + duration
    while time.monotonic() < end or len(seconds) < 5:
        if on_cuda:
            torch.cuda.synchronize(place)
        began = time.perf_counter()
        result = matrix @ matrix
        if on_cuda:
            torch.cuda.synchronize(place)
        seconds.append(time.perf_counter() - began)
    correct = bool(torch.allclose(result.float(), matrix.float(), rtol=0.05))
    work = 2.0 * side**3 / 1e12
    return {"best": work / min(seconds), "worst": work / max(seconds), "correct": correct}


def _available_memory() -> float | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 / GIB
    except (OSError, ValueError, IndexError):
        pass
    return None


def _folders(run: RunEnv) -> dict[str, Path]:
    if run.run_dir is None:
        return {}
    logs = run.run_dir.parents[2] / "logs"
    return {"run": run.run_dir, "logs": logs} if logs.is_dir() else {"run": run.run_dir}
