from __future__ import annotations

import os
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpuguide
from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.hardware.processor import processor_name


@pytest.fixture(autouse=True)
def _no_fake_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUGUIDE_FAKE_DEVICE", raising=False)


@pytest.mark.parametrize(
    ("name", "backend", "count", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "cuda", 1, "nvidia-h100-80gb-hbm3"),
        ("NVIDIA H200", "cuda", 1, "nvidia-h200"),
        ("NVIDIA H200", "cuda", 8, "8x-nvidia-h200"),
        ("NVIDIA GeForce RTX 4090", "cuda", 1, "nvidia-geforce-rtx-4090"),
        ("Tesla V100-SXM2-16GB", "cuda", 2, "2x-tesla-v100-sxm2-16gb"),
        ("  AMD Instinct™ MI300X (VF) ", "cuda", 1, "amd-instinct-mi300x-vf"),
        ("Intel(R) Xeon(R) Processor", "cpu", 1, "cpu"),
    ],
)
def test_the_slug_names_the_folder(name: str, backend: Any, count: int, slug: str) -> None:
    assert Device(name, backend, "cuda:0", 1, 0, None, frozenset(), count).slug == slug


@pytest.mark.parametrize("gpu", datasheet.load().values(), ids=lambda gpu: gpu.id)
def test_every_gpu_of_the_table_can_be_faked(gpu: datasheet.Gpu) -> None:
    device = devices.fake(gpu.id)
    assert device.backend == "fake"
    assert device.is_gpu
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", device.slug)
    assert device.memory == gpu.figures["memory"].value > 10e9
    assert devices.list_supported_features(gpu.capability) == gpu.supports - {"nvlink"}
    assert device == devices.fake(gpu.name)


def test_a_fake_device_that_does_not_exist_lists_near_ones() -> None:
    with pytest.raises(GpuguideError, match=r"'rtx-4099'.*rtx-4090"):
        devices.fake("rtx-4099")


def test_the_fake_device_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h200")
    assert devices.current() == devices.choose("gpu") == devices.choose(None) == devices.fake("h200")
    assert devices.choose("cpu").backend == "cpu"


@pytest.mark.parametrize(("cuda", "says"), [(None, "a build without CUDA"), ("13.0", "built for CUDA 13.0")])
def test_without_a_gpu_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch, cuda: str | None, says: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(GpuguideError) as caught:
        devices.current()
    message = str(caught.value)
    assert says in message
    assert torch.__version__ in message
    assert "sees no CUDA GPU" in message
    assert "gpuguide doctor" in message
    assert "--device cpu" in message


def test_a_gpu_is_described_as_its_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="Tesla T4",
        major=7,
        minor=5,
        total_memory=15 * 2**30,
        L2_cache_size=4 * 2**20,
        multi_processor_count=40,
        max_threads_per_multi_processor=1024,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    found = devices.current()
    assert found.multiprocessors == 40
    assert found.resident_threads == 40 * 1024
    assert replace(found, multiprocessors=0, resident_threads=0) == Device(
        "Tesla T4", "cuda", "cuda:0", 15 * 2**30, 4 * 2**20, (7, 5), frozenset({"fp16"})
    )


@pytest.mark.parametrize(
    ("capability", "formats"),
    [
        ((6, 1), set()),
        ((7, 0), {"fp16"}),
        ((8, 0), {"fp16", "tf32", "bf16", "flash-attention"}),
        ((8, 6), {"fp16", "tf32", "bf16", "flash-attention"}),
        ((8, 9), {"fp16", "tf32", "bf16", "flash-attention", "fp8"}),
        ((12, 0), {"fp16", "tf32", "bf16", "flash-attention", "fp8"}),
    ],
)
def test_what_a_capability_brings(capability: tuple[int, int], formats: set[str]) -> None:
    assert devices.list_supported_features(capability) == formats


def test_the_processor_has_this_machines_memory() -> None:
    device = devices.cpu()
    assert device.slug == device.torch_device == "cpu"
    assert not device.is_gpu
    assert device.capability is None
    assert device.memory == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert device.name == processor_name() != ""


def test_the_processor_where_the_system_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError

    monkeypatch.setattr(os, "sysconf", refuse)
    assert devices.cpu().memory == 8 * 2**30


@pytest.mark.parametrize("name", ["gpus", "cuda", ""])
def test_another_device_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(GpuguideError, match=rf"no device named {name!r}.*Known: cpu, gpu"):
        devices.choose(name)


def test_the_device_for_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert str(gpuguide.device()) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert str(gpuguide.device()).startswith("cuda")


def test_devices_differ_only_where_they_are_told_to() -> None:
    small = replace(devices.fake("rtx-4090"), memory=8 * 10**9)
    assert small.slug == devices.fake("rtx-4090").slug


def seen_by_pytorch(monkeypatch: pytest.MonkeyPatch, *names: str) -> Device:
    """Let PyTorch see GPUs of these names, and return the first."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name=names[index]))
    return Device(names[0], "cuda", "cuda:0", 80 * 2**30, 50 * 2**20, (9, 0), frozenset({"fp16"}))


def test_several_gpus_of_one_kind_are_one_device_of_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    first = seen_by_pytorch(monkeypatch, "NVIDIA H200", "NVIDIA H200", "NVIDIA T400")
    both = devices.several(first, 2)  # the third is not asked for, so it may be another
    assert both == replace(first, count=2)
    assert (first.slug, both.slug) == ("nvidia-h200", "2x-nvidia-h200")


@pytest.mark.parametrize("number", [2, 4, 8])
def test_all_gpus_of_a_machine_are_one_device(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    first = seen_by_pytorch(monkeypatch, *["NVIDIA H200"] * number)
    assert devices.several(first, "all").slug == f"{number}x-nvidia-h200"


def test_all_gpus_are_two_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    first = seen_by_pytorch(monkeypatch, "NVIDIA H200")
    with pytest.raises(GpuguideError, match="needs 2 GPUs, and PyTorch sees 1"):
        devices.several(first, "all")
    assert devices.several(devices.fake("h200"), "all").count == 2
    assert devices.several(devices.cpu(), "all").count == 1


def test_fewer_gpus_than_are_needed_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    first = seen_by_pytorch(monkeypatch, "NVIDIA H200", "NVIDIA H200")
    with pytest.raises(GpuguideError, match="needs 3 GPUs, and PyTorch sees 2"):
        devices.several(first, 3)


def test_gpus_of_two_kinds_are_refused_by_name_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    first = seen_by_pytorch(monkeypatch, "NVIDIA H200", "NVIDIA T400", "NVIDIA H200")
    with pytest.raises(GpuguideError, match=r"the first are NVIDIA H200 and NVIDIA T400\. .*CUDA_VISIBLE_DEVICES"):
        devices.several(first, 3)


@pytest.mark.parametrize(("backend", "count"), [("cuda", 1), ("cpu", 2), ("fake", 2)])
def test_one_gpu_a_processor_and_a_fake_device_ask_pytorch_nothing(
    monkeypatch: pytest.MonkeyPatch, backend: Any, count: int
) -> None:
    def asked(*arguments: Any) -> Any:
        raise AssertionError("PyTorch was asked for GPUs")

    monkeypatch.setattr(torch.cuda, "device_count", asked)
    monkeypatch.setattr(torch.cuda, "get_device_properties", asked)
    device = Device("NVIDIA H200", backend, "cuda:0", 1, 0, None, frozenset())
    assert devices.several(device, count).count == (2 if backend == "fake" else 1)
