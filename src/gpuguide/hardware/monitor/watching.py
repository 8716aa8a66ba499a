"""A GPU watched while a block of code runs, by a thread that reads it over and over."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.hardware.monitor.sampler import Sampler
from gpuguide.hardware.monitor.which_gpu import find_gpu, none_visible, visible_gpus
from gpuguide.hardware.trace import Further, Trace

INTERVAL = 0.05
"""Seconds between readings. The driver renews utilisation several times a second at most, so more tells little."""
LEAST_INTERVAL = 0.001


@contextmanager
def watch(
    device: int | str | None = None,
    *,
    interval: float = INTERVAL,
    also: Further | None = None,
    counters: bool = True,
) -> Iterator[Trace]:
    """Read a GPU's utilisation, memory, power, clocks and temperature in a thread while a block runs.

    Parameters
    ----------
    device : int or str, optional
        The number that CUDA gives the GPU, or its UUID (a beginning will do). By default PyTorch's current GPU if
        PyTorch has begun to use one, else the first that ``CUDA_VISIBLE_DEVICES`` leaves visible.
    interval : float
        Seconds from one reading to the next. The first is made before the block, the last after it.
    also : mapping of str to (str, callable), optional
        Other quantities to read at the same moments, as name to unit and function; see :func:`torch_memory`.
    counters : bool
        Whether to read :data:`~gpuguide.hardware.monitor.chip_counters.CHIP_COUNTERS` too. A profiler of the same
        counters, and readings that must be as fast as they can be, are reasons not to.

    Yields
    ------
    Trace
        Grows while the block runs, and stays whole if the block raises. What the device does not give stands in
        its ``absent``, with the reason; ``trace.totals().cost`` says what a reading costs.

    Raises
    ------
    GpuguideError
        If there is no driver, no such GPU, or nvidia-ml-py is not installed.

    Notes
    -----
    A number means the same GPU here and in CUDA: ``CUDA_VISIBLE_DEVICES`` is honoured, although NVML counts all GPUs.
    Before PyTorch is in use the order is that of the PCI bus. CUDA's own default puts the fastest first, which differs
    on a machine with unlike GPUs, unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set. A UUID is never ambiguous.

    Examples
    --------
    .. code-block:: python

        with monitor.watch(interval=0.1) as trace:
            train()
        print(trace.totals().columns["power"].mean)
    """
    if not LEAST_INTERVAL <= interval < math.inf:
        raise GpuguideError(f"An interval of {interval} s cannot be kept. Choose {LEAST_INTERVAL} s or longer.")
    with samplers([device], interval=interval, also=also, counters=counters) as (sampler,):
        sampler.sample()
        stop = threading.Event()
        thread = threading.Thread(target=sampler.sample_until, args=(stop,), name="gpuguide-watch", daemon=True)
        thread.start()
        try:
            yield sampler.trace
        finally:
            stop.set()
            thread.join()
            sampler.sample()


def torch_memory(device: int | str | None = None) -> Further:
    """Return what PyTorch's allocator knows of its memory, for ``also`` of :func:`watch`.

    Parameters
    ----------
    device : int or str, optional
        As PyTorch names it, for example ``"cuda:0"``; by default its current GPU.
    """
    import torch

    return {
        "allocated": ("B", lambda: torch.cuda.memory_allocated(device)),
        "reserved": ("B", lambda: torch.cuda.memory_reserved(device)),
    }


@contextmanager
def samplers(
    devices: Sequence[int | str | None] | None = None,
    *,
    interval: float = INTERVAL,
    also: Further | None = None,
    counters: bool = True,
) -> Iterator[list[Sampler]]:
    """Open the driver and give a sampler for each GPU; :func:`watch` calls one in a thread.

    Parameters
    ----------
    devices : sequence of int or str, optional
        As for :func:`watch`; by default all that ``CUDA_VISIBLE_DEVICES`` leaves visible.
    interval, also, counters
        As for :func:`watch`.
    """
    nvml = _open_nvml()
    try:
        try:
            handles = visible_gpus(nvml) if devices is None else [find_gpu(nvml, device) for device in devices]
        except nvml.NVMLError as error:
            raise GpuguideError(
                f"The NVIDIA driver does not give access to the GPU ({error}). 'nvidia-smi -L' lists what it gives."
            ) from error
        if not handles:
            raise GpuguideError(none_visible())
        opened = [Sampler(nvml, handle, interval, also, counters=counters) for handle in handles]
        try:
            yield opened
        finally:
            for sampler in opened:
                sampler.close()
    finally:
        nvml.nvmlShutdown()


def _open_nvml() -> Any:
    """Return NVML, ready to be asked."""
    try:
        import pynvml
    except ImportError as error:
        raise GpuguideError(
            "Watching a GPU needs the package nvidia-ml-py, which is not installed. It is small: "
            "'pip install nvidia-ml-py'."
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise GpuguideError(
            f"There is no NVIDIA driver to ask ({error}), so no GPU can be watched here. "
            "'gpuguide doctor' says what this machine has."
        ) from error
    return pynvml
