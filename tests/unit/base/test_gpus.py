"""The table of GPUs."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.base.gpus import DEVICES, Device, find_device, peak_flops


@pytest.mark.parametrize("name", ["H100", "h100", "NVIDIA H100", "nvidia_h100", "H100 "])
def test_names_as_people_and_drivers_write_them(name: str) -> None:
    assert find_device(name).name == "H100"


def test_an_unknown_name_and_one_of_several() -> None:
    with pytest.raises(RequestError, match="unknown GPU 'H101'") as error:
        find_device("H101")
    assert error.value.hint.startswith("did you mean H100? known GPUs: B200,")
    with pytest.raises(RequestError) as error:
        find_device("a100")
    assert error.value.hint == "use --device A100-80GB or A100-40GB"


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_the_peak_is_the_one_that_a_run_reports_its_utilization_of(device: Device) -> None:
    reported = peak_flops(f"NVIDIA {device.name.replace('-', ' ')}")
    assert reported == device.tflops * 1e12


def test_peaks_are_told_apart_by_the_devices_name() -> None:
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("Some Future Device") is None
