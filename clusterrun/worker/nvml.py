"""The figures of this rank's GPU, from NVML: sampled seldom, in a thread of its own, and never worth an error.

NVML comes with the driver and `pynvml` (the package nvidia-ml-py) calls it, without the GIL and without a CUDA
context. Where either is missing or fails there are no figures. A driver that hangs holds this thread only; its last
figures are then too old to be told.
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

    `index` counts in what CUDA_VISIBLE_DEVICES (`visible`) shows, as torch counts; `uuid` is torch's word for the same
    device, if it was asked: CUDA may order devices by speed, NVML orders them by their place on the bus.
    """

    def __init__(self, index: int, uuid: str = "", every: float = 10.0, visible: str | None = None) -> None:
        self._index, self._uuid, self._every = index, uuid, every
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible
        self._last: tuple[float, dict[str, Any]] | None = None

    def start(self) -> None:
        """Sample now and from now on."""
        threading.Thread(target=self._run, name="clusterrun-nvml", daemon=True).start()

    def figures(self) -> dict[str, Any] | None:
        """The last sample, None where there is none or it is old."""
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
            handle = find(nvml, self._index, self._uuid, self._visible)
        except Exception:  # no package, no driver, no such device
            return
        while True:
            with contextlib.suppress(Exception):
                self._last = (time.monotonic(), sample(nvml, handle))
            time.sleep(self._every * uneven.uniform(0.8, 1.2))


def find(nvml: Any, index: int, uuid: str, visible: str) -> Any:
    """NVML's handle of the device that is number `index` of those CUDA shows; raises NVML's errors, or LookupError."""
    words = [word.strip() for word in visible.split(",")] if visible.strip() else []
    if words and index >= len(words):
        raise LookupError(f"device {index} is not among {visible}")
    word = words[index] if words else str(index)
    if word.startswith("MIG-"):  # torch may name the whole GPU here
        return nvml.nvmlDeviceGetHandleByUUID(word)
    if uuid:
        word = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    if word.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(word))
    for number in range(nvml.nvmlDeviceGetCount()):  # CUDA takes the beginning of a UUID for the whole, NVML does not
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(word):
            return handle
    raise LookupError(f"no device {word}")


def sample(nvml: Any, handle: Any) -> dict[str, Any]:
    """One look at a device: name, use in percent, memory in GiB, temperature in °C; None for what it does not tell.

    A part of a GPU (MIG) has memory of its own, no use, and the whole one's temperature.
    """

    def ask(question: Any, *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except nvml.NVMLError:
            return None

    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    use = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    name = ask(nvml.nvmlDeviceGetName, handle)
    whole = handle
    if ask(nvml.nvmlDeviceIsMigDeviceHandle, handle):
        whole = ask(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    return {
        "name": _text(name or ""),
        "use": use.gpu if use is not None else None,
        "memory_gib": memory.used / GIB if memory is not None else None,
        "memory_total_gib": memory.total / GIB if memory is not None else None,
        "temperature": ask(nvml.nvmlDeviceGetTemperature, whole, nvml.NVML_TEMPERATURE_GPU) if whole else None,
    }


def _text(word: str | bytes) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else word
