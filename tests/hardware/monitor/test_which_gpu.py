from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml

from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.hardware import monitor
from gpuguide.hardware.quantities import QUANTITIES

NVML_ONLY = set(QUANTITIES) - {"allocated", "reserved", "done"}
Install = Callable[..., FakeNvml]


@pytest.mark.parametrize(
    ("wanted", "visible"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("0,9,1", [0]),
        ("GPU-2a7c81f2", [2]),
        ("gpu-3a7c,1", [3, 1]),
        ("GPU-", []),
        ("MIG-1234", []),
    ],
)
def test_cuda_visible_devices_is_honoured(
    nvml: Install, monkeypatch: pytest.MonkeyPatch, wanted: str | None, visible: list[int]
) -> None:
    driver = nvml(4)
    if wanted is not None:
        monkeypatch.setenv(monitor.VISIBLE_VARIABLE, wanted)
    assert monitor.visible_gpus(driver) == visible
    if not visible:
        with pytest.raises(GpuguideError, match="leaves no GPU visible"), monitor.watch():
            pass
        return
    for number, index in enumerate(visible):
        for device in (number, str(number), f"cuda:{number}"):
            assert monitor.find_gpu(driver, device) == index
    with monitor.samplers(interval=1) as found:
        assert [sampler.trace.index for sampler in found] == visible


@pytest.mark.parametrize(
    ("count", "wanted", "device", "words"),
    [
        (4, None, 4, "There is no GPU number 4: there are 4, from 0 to 3. Name"),
        (4, None, -1, "There is no GPU number -1: there are 4"),
        (1, None, "cuda:1", "There is no GPU number 1: there is one, number 0. Name"),
        (4, "2", 1, "there is one, number 0, as CUDA_VISIBLE_DEVICES=2 says"),
    ],
)
def test_a_number_that_no_gpu_has(
    nvml: Install, monkeypatch: pytest.MonkeyPatch, count: int, wanted: str | None, device: int | str, words: str
) -> None:
    nvml(count)
    if wanted is not None:
        monkeypatch.setenv(monitor.VISIBLE_VARIABLE, wanted)
    with pytest.raises(GpuguideError, match=words), monitor.watch(device):
        pass


def test_a_uuid_is_found_whole_or_by_its_beginning_even_if_it_is_hidden(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = nvml(4)
    monkeypatch.setenv(monitor.VISIBLE_VARIABLE, "0")
    uuid = driver.nvmlDeviceGetUUID(2)
    for text in (uuid, uuid.removeprefix("GPU-"), uuid[:8], uuid.upper()):
        with monitor.watch(text, interval=60) as trace:
            assert trace.index == 2
            assert trace["power"][0] > 200


def test_a_gpu_that_the_driver_keeps_to_itself(nvml: Install) -> None:
    nvml(refused={"nvmlDeviceGetHandleByIndex"})
    with pytest.raises(GpuguideError, match=r"does not give access to the GPU \(Not Supported\)"), monitor.watch():
        pass


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("text", ["GPU-ffff", "GPU-", "h100", ""])
def test_a_uuid_that_none_has(nvml: Install, text: str, count: int) -> None:
    nvml(count)
    with pytest.raises(UnknownName, match="There is no GPU named"), monitor.watch(text):
        pass


class Torch:
    """PyTorch in use on a machine whose order of GPUs is not NVML's."""

    def __init__(self, driver: FakeNvml, order: list[int], current: int) -> None:
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            current_device=lambda: current,
            device_count=lambda: len(order),
            get_device_properties=lambda number: SimpleNamespace(
                uuid=driver.nvmlDeviceGetUUID(order[number]).removeprefix("GPU-")
            ),
        )


def test_pytorch_in_use_knows_the_order_and_the_current_gpu(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml(4)
    monkeypatch.setitem(sys.modules, "torch", Torch(driver, [3, 1, 0, 2], current=1))  # type: ignore[arg-type]
    assert [monitor.find_gpu(driver, number) for number in (0, 1, 2, 3)] == [3, 1, 0, 2]
    assert monitor.find_gpu(driver) == 1
    with pytest.raises(GpuguideError, match="no GPU number 4"):
        monitor.find_gpu(driver, 4)
