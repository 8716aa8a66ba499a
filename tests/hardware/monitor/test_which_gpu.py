from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fake_nvml import FIRST_INSTANCE, FakeNvml

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


# --- instances of GPUs in MIG mode ----------------------------------------------------------------------


@pytest.mark.parametrize("named", ["MIG-2a7c81f2-0000-1111-2222-333344445552", "mig-2a7c", "MIG-2"])
def test_an_instance_is_found_by_its_uuid(nvml: Install, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    driver = nvml(4)
    driver.instances = {1: 2, 3: 5}
    monkeypatch.setenv(monitor.VISIBLE_VARIABLE, named)
    assert monitor.visible_gpus(driver) == [FIRST_INSTANCE + 2]
    with monitor.watch(interval=60) as trace:
        pass
    assert trace["memory_used"].tolist() == [(FIRST_INSTANCE + 3) * 2**30] * 2
    assert trace.absent["power"] == "the driver says 'Not Supported'"
    with monitor.watch(named, interval=60) as again:
        pass
    assert again.units == trace.units


def test_an_instance_and_a_gpu_may_have_uuids_that_begin_alike(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml(4)
    driver.instances = {0: 2}
    for wanted, visible in (("GPU-2a7c", [2]), ("MIG-2a7c", [FIRST_INSTANCE + 2]), ("2a7c", []), ("MIG-", [])):
        monkeypatch.setenv(monitor.VISIBLE_VARIABLE, wanted)
        assert monitor.visible_gpus(driver) == visible


def test_pytorchs_uuid_may_be_that_of_an_instance(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml(1)
    driver.instances = {0: 4}
    uuid = driver.nvmlDeviceGetUUID(FIRST_INSTANCE + 4).removeprefix("MIG-")
    instance = Torch(driver, [FIRST_INSTANCE + 4], current=0)
    instance.cuda.get_device_properties = lambda number: SimpleNamespace(uuid=uuid)
    monkeypatch.setitem(sys.modules, "torch", instance)  # type: ignore[arg-type]
    assert monitor.find_gpu(driver) == FIRST_INSTANCE + 4
    assert monitor.read_driver(uuid).power is None
    assert monitor.read_board(uuid).memory_free is not None
