"""The table of GPUs: memory, peak FLOP/s and bandwidth, for `plan` and for the utilization that a job reports. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import RequestError, nearest

GIB = 2**30
_NVLINK_5, _NVLINK_4, _NVLINK_3, _NVLINK_2, _PCIE_5, _PCIE_4, _PCIE_3 = 700.0, 370.0, 230.0, 130.0, 40.0, 20.0, 10.0


class Device(NamedTuple):
    """A GPU: memory in GiB as the driver reports it, and dense 16-bit TFLOP/s from its data sheet.

    ``link_gbs`` is the bus bandwidth in GB/s that an all-reduce within a node typically reaches.
    """

    name: str
    memory_gib: float
    tflops: float
    link_gbs: float


DEVICES = (
    Device("B200", 179, 2250, _NVLINK_5),
    Device("GH200", 95, 989, _NVLINK_4),
    Device("H200", 140, 989, _NVLINK_4),
    Device("H100", 79, 989, _NVLINK_4),
    Device("H100-NVL", 93, 835, _PCIE_5),
    Device("H100-PCIe", 79, 756, _PCIE_5),
    Device("A100-80GB", 80, 312, _NVLINK_3),
    Device("A100-40GB", 40, 312, _NVLINK_3),
    Device("A800", 80, 312, _NVLINK_3),
    Device("L40S", 45, 362, _PCIE_4),
    Device("L40", 45, 181, _PCIE_4),
    Device("A40", 45, 150, _PCIE_4),
    Device("A30", 24, 165, _PCIE_4),
    Device("A10", 22, 125, _PCIE_4),
    Device("L4", 22, 121, _PCIE_4),
    Device("V100-32GB", 32, 125, _NVLINK_2),
    Device("V100-16GB", 16, 125, _NVLINK_2),
    Device("T4", 15, 65, _PCIE_3),
    Device("RTX-4090", 24, 165, _PCIE_4),
    Device("RTX-3090", 24, 71, _PCIE_4),
)


def find_device(name: str) -> Device:
    """Return the GPU of a name such as ``H100``, ``a100-80gb`` or ``NVIDIA L40S``. Raises RequestError."""
    plain = name.strip().casefold().removeprefix("nvidia").strip(" -_").replace(" ", "-").replace("_", "-")
    known = {device.name.casefold(): device for device in DEVICES}
    if plain in known:
        return known[plain]
    if versions := [device.name for key, device in known.items() if key.startswith(plain + "-")]:
        raise RequestError(f"--device: {name} has several versions", hint=f"use --device {' or '.join(versions)}")
    names = [device.name for device in DEVICES]
    known_names = f"known GPUs: {', '.join(names)}; for another GPU, use --device-memory and --tflops"
    raise RequestError(f"--device: unknown GPU {name[:40]!r}", hint=f"{nearest(plain, names)} {known_names}".strip())


def peak_flops(reported: str) -> float | None:
    """Return the peak in FLOP/s of a GPU by the name that its driver reports; None if it is not in the table."""
    peaks = {_model(device.name): device.tflops * 1e12 for device in DEVICES}
    model = max((model for model in peaks if model in reported), key=len, default="")  # H100 PCIe is not H100
    return peaks.get(model)


def _model(name: str) -> str:
    """Return the part of a GPU's name that drivers report: ``A100`` of ``A100-80GB``."""
    return re.sub(r"-\d+GB$", "", name).replace("-", " ")


def flops_per_token(parameters: float, layers: float, width: float, seq_len: float) -> float:
    """Return the FLOPs per token, forward and backward: 6 per parameter, 12 x layers x width x length for attention."""
    return 6.0 * parameters + 12.0 * layers * width * seq_len
