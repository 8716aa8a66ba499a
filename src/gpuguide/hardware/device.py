"""The device that a benchmark runs on: a CUDA GPU, this machine's CPU, or a fake one for tests."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Literal

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import datasheet
from gpuguide.hardware.processor import processor_name

Backend = Literal["cuda", "cpu", "fake"]
Count = int | Literal["all"]
"""A number of GPUs, or all that the machine has, two or more"""
FAKE_VARIABLE = "GPUGUIDE_FAKE_DEVICE"
GIB = 2**30


@dataclass(frozen=True)
class Device:
    """A device, as the harness must know it."""

    name: str
    """Name by its driver, for example ``NVIDIA H100 80GB HBM3``"""
    backend: Backend
    torch_device: str
    """``cuda:0``, ``cpu``, or ``meta`` for a fake device, whose tensors have shapes and no data"""
    memory: int
    """Bytes"""
    l2: int
    """Bytes of the last-level cache; 0 where it is not known"""
    capability: tuple[int, int] | None
    """CUDA compute capability, ``None`` without a GPU"""
    supports: frozenset[str]
    """Features out of ``fp16``, ``bf16``, ``tf32``, ``fp8``, ``flash-attention``, ``nvlink``"""
    count: int = 1
    multiprocessors: int = 0
    """Streaming multiprocessors; 0 on a processor"""
    resident_threads: int = 0
    """Threads that the GPU holds at once; 0 on a processor"""

    @property
    def slug(self) -> str:
        """The name of the device's folder of records: ``nvidia-h100-80gb-hbm3``, ``8x-nvidia-h200``, ``cpu``."""
        if self.backend == "cpu":
            return "cpu"
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return f"{self.count}x-{slug}" if self.count > 1 else slug

    @property
    def is_gpu(self) -> bool:
        """True for a CUDA GPU and for a fake one."""
        return self.backend != "cpu"


def list_supported_features(capability: tuple[int, int]) -> frozenset[str]:
    """Return the number formats and features that a compute capability brings.

    Source: CUDA C++ Programming Guide, table of features by compute capability.
    """
    since = {"fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "flash-attention": (8, 0), "fp8": (8, 9)}
    return frozenset(name for name, first in since.items() if capability >= first)


def current() -> Device:
    """Return the fake device if ``GPUGUIDE_FAKE_DEVICE`` names one, else the first CUDA GPU.

    Raises
    ------
    GpuguideError
        If there is no CUDA GPU; the message says what can be done without.
    """
    if wanted := os.environ.get(FAKE_VARIABLE):
        return fake(wanted)
    import torch

    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
        raise GpuguideError(
            f"PyTorch {torch.__version__} ({built}) sees no CUDA GPU. "
            "Run 'gpuguide doctor' to see what is missing, or use this machine's processor with '--device cpu'."
        )
    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    return Device(
        name=properties.name,
        backend="cuda",
        torch_device="cuda:0",
        memory=properties.total_memory,
        l2=properties.L2_cache_size,
        capability=capability,
        supports=list_supported_features(capability),
        multiprocessors=properties.multi_processor_count,
        resident_threads=properties.multi_processor_count * properties.max_threads_per_multi_processor,
    )


def cpu() -> Device:
    """Return this machine's processor."""
    import torch

    pages, page_size = _sysconf("SC_PHYS_PAGES"), _sysconf("SC_PAGE_SIZE")
    return Device(
        name=processor_name(),
        backend="cpu",
        torch_device="cpu",
        memory=pages * page_size or 8 * GIB,
        l2=0,
        capability=None,
        supports=frozenset({"bf16"}) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else frozenset(),
    )


def several(device: Device, count: Count) -> Device:
    """Return ``count`` devices of a kind as one, of which ``device`` is the first; a processor stays as it is.

    Raises
    ------
    GpuguideError
        If there are fewer GPUs, or they are not of one kind.
    """
    if count == 1 or device.backend == "cpu":
        return device
    if device.backend == "cuda":
        import torch

        here = torch.cuda.device_count()
        needed = max(2, here) if count == "all" else count
        if here < needed:
            raise GpuguideError(f"It needs {needed} GPUs, and PyTorch sees {here}.")
        names = dict.fromkeys(torch.cuda.get_device_properties(index).name for index in range(needed))
        if len(names) > 1:
            raise GpuguideError(
                f"It needs {needed} GPUs of one kind, and the first are {' and '.join(names)}. "
                "Choose some that are alike with CUDA_VISIBLE_DEVICES."
            )
        return replace(device, count=needed)
    return replace(device, count=max(2, device.count) if count == "all" else count)


def current_or_cpu() -> Device:
    """Return the GPU if there is one, else this machine's processor."""
    try:
        return current()
    except GpuguideError:
        return cpu()


def fake(name: str) -> Device:
    """Return a device that computes nothing and has the memory and the features of the GPU ``name``.

    It lets the harness go through all cases on a machine without a GPU. Its times are made up, and its records say
    that they are simulated.
    """
    gpu = datasheet.get(name)
    figures = gpu.figures
    multiprocessors = int(figures["sms"].value)
    return Device(
        name=gpu.name,
        backend="fake",
        torch_device="meta",
        memory=int(figures["memory"].value),
        l2=int(figures["l2"].value) if "l2" in figures else 0,
        capability=gpu.capability,
        supports=gpu.supports,
        multiprocessors=multiprocessors,
        resident_threads=2048 * multiprocessors,
    )


def choose(name: str | None) -> Device:
    """Return the device for a command line's ``--device``: ``gpu`` (the default) or ``cpu``."""
    if name in (None, "gpu"):
        return current()
    if name == "cpu":
        return cpu()
    raise unknown("device", str(name), ["gpu", "cpu"])


def _sysconf(name: str) -> int:
    try:
        return os.sysconf(name)
    except (AttributeError, OSError, ValueError):
        return 0
