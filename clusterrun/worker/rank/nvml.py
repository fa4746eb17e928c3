"""The figures of this rank's GPU, sampled from NVML in a thread; errors are ignored.

NVML comes with the driver; `pynvml` (the package nvidia-ml-py) calls it without the GIL and without a CUDA context. If
either is missing or fails, there are no figures. A driver that hangs blocks this thread only, and its last figures
expire.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import threading
import time
from typing import Any

GIB = 2**30
TOO_OLD = 4  # intervals


class GpuSampler:
    """Samples one device about every `every` seconds.

    `index` counts within CUDA_VISIBLE_DEVICES (`visible`), as in torch. `uuid` is the device's UUID from torch, if
    known: CUDA may order devices by speed, NVML orders them by their place on the bus.
    """

    def __init__(self, index: int, uuid: str = "", every: float = 10.0, visible: str | None = None) -> None:
        self._index, self._uuid, self._every = index, uuid, every
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible
        self._last: tuple[float, dict[str, Any]] | None = None
        self._mean_use, self._samples, self._peak_gib = 0.0, 0, 0.0

    def start(self) -> None:
        """Start sampling, in a daemon thread."""
        threading.Thread(target=self._run, name="clusterrun-nvml", daemon=True).start()

    def figures(self) -> dict[str, Any] | None:
        """Return the last sample with the mean use and the most memory of all, None if there is none or it is old."""
        last = self._last
        if last is None or time.monotonic() - last[0] > TOO_OLD * self._every:
            return None
        return last[1]

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        uneven = random.Random()
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            handle = find_device(nvml, self._index, self._uuid, self._visible)
        except Exception:  # no package, no driver, no such device
            return
        while True:
            with contextlib.suppress(Exception):
                self._last = (time.monotonic(), self._with_history(sample(nvml, handle)))
            time.sleep(self._every * uneven.uniform(0.8, 1.2))

    def _with_history(self, now: dict[str, Any]) -> dict[str, Any]:
        """Return a sample with the mean use of so many ``samples``, and the most memory; without what is not known."""
        if now["use"] is not None:
            self._samples += 1
            self._mean_use += (now["use"] - self._mean_use) / self._samples
        self._peak_gib = max(self._peak_gib, now["memory_gib"] or 0)
        history = {"mean_use": round(self._mean_use, 1), "samples": self._samples} if self._samples else {}
        return {**now, **history, "peak_gib": round(self._peak_gib, 2) or None}


def find_device(nvml: Any, index: int, uuid: str, visible: str) -> Any:
    """Return NVML's handle of the visible device `index`; raises NVML's errors, or LookupError."""
    names = [name.strip() for name in visible.split(",")]
    if not visible.strip():
        names = [*map(str, range(index + 1))]
    if index >= len(names):
        raise LookupError(f"CUDA_VISIBLE_DEVICES={visible} has no device {index}")
    name = names[index]
    if name.startswith("MIG-"):  # torch may name the whole GPU here
        return nvml.nvmlDeviceGetHandleByUUID(name)
    if not uuid and name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    begin = uuid or name  # CUDA accepts the beginning of a UUID, NVML does not
    return _find_by_uuid(nvml, begin if begin.startswith(("GPU-", "MIG-")) else f"GPU-{begin}")


def _find_by_uuid(nvml: Any, begin: str) -> Any:
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(begin):
            return handle
    raise LookupError(f"no device {begin}")


def sample(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return name, use in percent, memory in GiB and temperature in °C of a device; None for what is unknown.

    A MIG device has its own memory, no use, and the temperature of the whole GPU.
    """

    def query(function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except nvml.NVMLError:
            return None

    memory = query(nvml.nvmlDeviceGetMemoryInfo, handle)
    use = query(nvml.nvmlDeviceGetUtilizationRates, handle)
    name = query(nvml.nvmlDeviceGetName, handle)
    whole = handle
    if query(nvml.nvmlDeviceIsMigDeviceHandle, handle):
        whole = query(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    return {
        "name": _text(name or ""),
        "use": use.gpu if use is not None else None,
        "memory_gib": memory.used / GIB if memory is not None else None,
        "memory_total_gib": memory.total / GIB if memory is not None else None,
        "temperature": query(nvml.nvmlDeviceGetTemperature, whole, nvml.NVML_TEMPERATURE_GPU) if whole else None,
    }


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
