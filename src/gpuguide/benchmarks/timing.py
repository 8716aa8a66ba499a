"""Timing mistakes with a matmul, and matmuls without a pause."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import torch

from gpuguide.costs import roofline
from gpuguide.hardware.device import Device
from gpuguide.hardware.monitor import read_driver
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.measure.timing import cache_flusher, cuda_events, wall_clock, warm_up
from gpuguide.systems import ceilings

SHAPES = {"square": (8192, 8192, 8192), "skinny": (16, 4096, 4096)}
"""Rows, inner size and columns. The skinny matmul reads a 32 MiB matrix for 16 rows, as text generation does."""
FORMAT = "bf16"
IDLE_SECONDS = 1.0
AWAKE_CALLS = 20
"""Calls before each one timed without synchronisation, so that the host is as busy as in a real program"""
CALLS_WITHOUT_WARM_UP = 10
WINDOW_SECONDS = 0.1
WINDOWS = 60
READING_UNITS = {"sm_clock": "Hz", "power": "W", "temperature": "°C", "clock_limits": "1"}


def shape_of(keys: Keys) -> tuple[int, int, int]:
    """Return the rows, inner size and columns that a case's ``shape`` stands for."""
    return SHAPES[str(keys["shape"])]


def matmul_work(shape: tuple[int, int, int], device: Device, *, zeros: bool = False, many: bool = True) -> Work:
    """Return the matmul as it should be timed.

    Parameters
    ----------
    shape : tuple of int
        Rows, inner size, columns.
    device : Device
        Where it runs.
    zeros : bool
        Multiply zeros instead of N(0, 1) values.
    many : bool
        Set up enough matmuls that no operand is still in the L2 cache when its turn comes again.
    """
    footprint = int(roofline.matmul_bytes(*shape, ceilings.ELEMENT_SIZE[FORMAT]))
    copies = 1 + 2 * device.l2 // footprint if many else 1
    matmuls = [ceilings.make_matmul(*shape, FORMAT, device.torch_device, zeros=zeros) for _ in range(copies)]

    def check() -> None:
        error, accepted = ceilings.matmul_error(matmuls[0]), ceilings.RELATIVE_ERROR[FORMAT]
        assert error <= accepted, f"the relative error is {error:.1e}, and at most {accepted:.0e} is accepted"

    rates = {
        "throughput": Rate("FLOP/s", roofline.matmul_flops(*shape)),
        "bandwidth": Rate("B/s", footprint),
    }
    return Work(matmuls, check, rates, footprint=footprint)


def right(device: Device, keys: Keys) -> Work:
    """Warm up, random data, inputs from memory, the GPU's own clock."""
    return matmul_work(shape_of(keys), device)


def zeros(device: Device, keys: Keys) -> Work:
    """All as it should be, but the matrices hold zeros."""
    return matmul_work(shape_of(keys), device, zeros=True)


def inside_l2(device: Device, keys: Keys) -> Work:
    """All as it should be, but the same few matrices again and again, so that what fits stays in the L2 cache."""
    work = matmul_work(shape_of(keys), device, many=False)
    return Work(work.calls, work.check, work.rates, "warm", work.footprint)


def no_synchronize(device: Device, keys: Keys) -> Work:
    """Read the host's clock before and after the call, which only puts the work into a queue."""
    work = matmul_work(shape_of(keys), device, many=False)
    call = work.calls[0]

    def sample() -> float:
        for _ in range(AWAKE_CALLS):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) * 1e-9

    return Work(work.calls, work.check, work.rates, sample=sample)


def idle_before_calls(device: Device, keys: Keys) -> Work:
    """Let the GPU idle before every call, so that its clock is not that of a GPU at work."""
    work = matmul_work(shape_of(keys), device, many=False)
    warm_up(work.calls[0], torch.cuda.synchronize)
    launches: list[float] = []
    clocks: list[float] = []

    def call() -> None:
        start = time.perf_counter_ns()
        work.calls[0]()
        launches.append((time.perf_counter_ns() - start) * 1e-9)

    timed = cuda_events(call, cache_flusher(device.torch_device))

    def sample() -> float:
        time.sleep(IDLE_SECONDS)
        clocks.extend(filter(None, [read_driver(uuid_of(device)).sm_clock]))
        return timed()

    def further() -> Mapping[str, Metric]:
        host = {"launch": records.metric("s", launches)}
        return {**host, "clock_before": records.metric("Hz", clocks)} if clocks else host

    return Work(work.calls, work.check, work.rates, sample=sample, further=further)


def no_warm_up(device: Device, keys: Keys) -> Work:
    """Time ten calls in a fresh process, the first included, and divide by ten."""
    work = matmul_work(shape_of(keys), device, many=False)
    firsts: list[float] = []
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["torch", __name__])

    def sample() -> float:
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=first_calls, args=(theirs, device.torch_device, shape_of(keys)))
        process.start()
        theirs.close()
        mean, first = ours.recv()
        process.join()
        firsts.append(first)
        return float(mean)

    def further() -> Mapping[str, Metric]:
        return {"first_call": records.metric("s", firsts)}

    return Work(work.calls, work.check, work.rates, sample=sample, further=further)


def first_calls(answer: Connection, device: str, shape: tuple[int, int, int]) -> None:
    """Send the mean time of the first ten calls in this process, and that of the very first, in seconds."""
    matmul = ceilings.make_matmul(*shape, FORMAT, device)
    torch.cuda.synchronize()
    start = time.perf_counter()
    matmul()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(CALLS_WITHOUT_WARM_UP - 1):
        matmul()
    torch.cuda.synchronize()
    answer.send(((time.perf_counter() - start) / CALLS_WITHOUT_WARM_UP, first))


def sustain_load(device: Device, keys: Keys) -> Work:
    """Run matmuls without a pause; each sample is the mean of a tenth of a second, with clock and power."""
    work = matmul_work(SHAPES["square"], device, zeros=keys["data"] == "zeros", many=False)
    call = work.calls[0]
    once = wall_clock(call, torch.cuda.synchronize)
    calls = max(1, round(WINDOW_SECONDS / min(once() for _ in range(3))))
    readings: dict[str, list[float]] = {name: [] for name in READING_UNITS}

    def window() -> None:
        for _ in range(calls):
            call()
        state = read_driver(uuid_of(device))  # the GPU has a tenth of a second of work queued now
        for name, values in readings.items():
            value = getattr(state, name)
            if value is not None:
                values.append(value)

    timed = cuda_events(window)

    def further() -> Mapping[str, Metric]:
        return {name: records.metric(READING_UNITS[name], values) for name, values in readings.items() if values}

    def sample() -> float:
        return timed() / calls

    return Work(work.calls, work.check, work.rates, sample=sample, further=further)


def uuid_of(device: Device) -> str:
    """Return the UUID by which the driver knows a CUDA device."""
    return str(torch.cuda.get_device_properties(device.torch_device).uuid)


def contender(build: Callable[[Device, Keys], Work]) -> Contender:
    """Return a contender that needs a GPU with bf16 tensor cores."""
    return Contender(build, frozenset({"gpu", "bf16"}), libraries=("cublas",))


TIMING_MISTAKES = Benchmark(
    name="timing-mistakes",
    title="One matmul, timed rightly and with each common mistake",
    question="What does each mistake in timing report?",
    contenders={
        "right": contender(right),
        "no-synchronize": contender(no_synchronize),
        "no-warm-up": contender(no_warm_up),
        "cold-clock": contender(idle_before_calls),
        "zeros": contender(zeros),
        "inside-l2": contender(inside_l2),
    },
    cases=lambda device: [{"shape": shape} for shape in SHAPES] if device.is_gpu else [],
    memory=lambda keys: 2**31,
    samples=20,
)

SUSTAINED_MATMUL = Benchmark(
    name="sustained-matmul",
    title="Six seconds of one matmul without a pause, with clock and power",
    question="What does sustained arithmetic do to the clock, and does the data matter?",
    contenders={"matmul-bf16": contender(sustain_load)},
    cases=lambda device: [{"data": data} for data in ("random", "zeros")] if device.is_gpu else [],
    memory=lambda keys: 2**30,
    samples=WINDOWS,
)
