"""Declaration of a benchmark: its contenders, its cases, and the work that each contender does on a case."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuguide.errors import unknown
from gpuguide.hardware.device import Count, Device
from gpuguide.measure import digest, libraries
from gpuguide.measure.records import Key, Metric, Rate
from gpuguide.measure.timing import Call, Sampler

Keys = Mapping[str, Key]
Timing = Literal["cold", "warm", "wall", "graph"]


@dataclass(frozen=True)
class Work:
    """One contender set up on one case: inputs are in place, and ``calls`` do the work."""

    calls: Sequence[Call]
    """The same work on different inputs (often only one)"""
    check: Call | None = None
    """Raises ``AssertionError`` if the result is wrong against a reference in higher precision"""
    rates: Mapping[str, Rate] = field(default_factory=dict)
    """The work in one call: bytes for ``bandwidth``, operations for ``throughput``"""
    timing: Timing = "cold"
    """``cold``: inputs come from memory; ``warm``: from wherever the last call left them; ``wall``: the host's clock
    around synchronised work; ``graph``: replays of a CUDA graph, however long a call takes, so that launches on the
    host never count. On a CPU every timing is by the host's clock."""
    footprint: int = 0
    """Bytes that one call touches, to decide whether the inputs in ``calls`` can stay in the cache"""
    sample: Sampler | None = None
    """Replaces the harness's timer, for benchmarks that are about timing itself"""
    further: Callable[[], Mapping[str, Metric]] = dict
    """Other quantities than the time, asked for after the last sample"""


@dataclass(frozen=True)
class Contender:
    """One of the implementations that a benchmark compares."""

    build: Callable[[Device, Keys], Work]
    needs: frozenset[str] = frozenset()
    """Features that the device must have: ``gpu``, ``fp8``, ``bf16`` and so on"""
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None
    """Reason not to measure this contender on a case, or ``None``: it cannot do the case, or would not fit"""
    libraries: tuple[str, ...] = ()
    """Libraries that it calls besides PyTorch, Triton and NumPy, by the names of
    :data:`gpuguide.measure.libraries.KNOWN`. The record names their versions; without one of them the contender is
    skipped, and the record says why."""
    unavailable_reason: Callable[[], str | None] = lambda: None
    """Reason why this installation cannot run the contender, or ``None``: a tool or a part of a library is missing"""


@dataclass(frozen=True)
class Benchmark:
    """Contenders that are measured over cases, and how. Every case has the same key names."""

    name: str
    title: str
    question: str
    """Question that this benchmark answers"""
    contenders: Mapping[str, Contender]
    cases: Callable[[Device], Sequence[Keys]]
    """The cases worth measuring on a device of this size"""
    memory: Callable[[Keys], float] = lambda keys: 0.0
    """Bytes of device memory that a case needs with all its contenders set up"""
    budget: float = 1.0
    """Seconds that each contender of a case may spend on samples"""
    samples: int | None = None
    """A fixed number of samples, where their order in time is what is looked at"""
    gpus: Count = 1
    """Number of GPUs of one kind that it measures together, or ``all`` of the machine. A machine with fewer, or with
    one, skips it; the record of several is that of several devices, such as ``2x-nvidia-h200``."""
    end: Callable[[], object] = lambda: None
    """Called when a run has no more to ask of it, however it ended: ends processes that outlive a case"""


def find_called_libraries(contender: Contender, device: Device) -> tuple[str, ...]:
    """Return the libraries that a contender calls on a device: those for NVIDIA GPUs on no processor."""
    return tuple(name for name in contender.libraries if device.is_gpu or name not in libraries.OF_CUDA)


def find_skip_reason(benchmark: Benchmark, contender: str, keys: Keys, device: Device) -> str | None:
    """Return why a contender is not measured on a case, or ``None`` if it is."""
    declared = benchmark.contenders[contender]
    return (
        find_missing_feature(declared.needs, device)
        or find_missing_library(declared, device)
        or too_large(benchmark, keys, device)
        or declared.skip_reason(device, keys)
    )


def find_missing_library(contender: Contender, device: Device) -> str | None:
    """Return why this installation cannot run a contender, or ``None`` if it can; a fake device calls no library."""
    if device.backend == "fake":
        return None
    reasons = map(libraries.why_not_here, find_called_libraries(contender, device))
    return next(filter(None, reasons), None) or contender.unavailable_reason()


def find_missing_feature(needs: frozenset[str], device: Device) -> str | None:
    """Return which needed features ``device`` lacks, as a reason to skip, or ``None`` if it has all."""
    if "gpu" in needs and not device.is_gpu:
        return "needs a GPU"
    missing = sorted(needs - {"gpu"} - device.supports)
    if not missing:
        return None
    if device.capability is None:
        return f"needs {' and '.join(missing)}, which {device.name} lacks"
    major, minor = device.capability
    return f"needs {' and '.join(missing)}, which compute capability {major}.{minor} ({device.name}) lacks"


def too_large(benchmark: Benchmark, keys: Keys, device: Device) -> str | None:
    """Return why a case does not fit ``device``, or ``None`` if it does."""
    return beyond_memory(benchmark.memory(keys), device)


def beyond_memory(needed: float, device: Device) -> str | None:
    """Return why ``needed`` bytes do not fit ``device``, or ``None`` if they do; a tenth of its memory stays free."""
    available = 0.9 * device.memory
    if needed <= available:
        return None
    return f"needs {needed / 2**30:.1f} GiB, and 90 % of this device's memory is {available / 2**30:.1f} GiB"


def names() -> list[str]:
    """Return the names of all benchmarks, without importing any."""
    return list(digest.benchmark_modules())


def get(name: str) -> Benchmark:
    """Return the benchmark of that name.

    Raises
    ------
    GpuguideError
        If there is none; the message lists the near names.
    """
    modules = digest.benchmark_modules()
    if name not in modules:
        raise unknown("benchmark", name, modules)
    module = importlib.import_module(modules[name])
    found: Benchmark = next(value for value in vars(module).values() if getattr(value, "name", None) == name)
    return found


def powers_of_two(first: int, last: int, step: int = 1) -> list[int]:
    """Return the powers of two from ``first`` to ``last``, every ``step``-th of them.

    >>> powers_of_two(256, 4096, 2)
    [256, 1024, 4096]
    """
    return [2**power for power in range(int(math.log2(first)), int(math.log2(last)) + 1, step)]
