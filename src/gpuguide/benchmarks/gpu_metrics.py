"""What the driver reports while a GPU does different things: utilisation, memory, power, clocks and temperature."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gpuguide import ceilings, roofline
from gpuguide.hardware import monitor
from gpuguide.hardware.device import Device
from gpuguide.hardware.trace import Trace
from gpuguide.measure import records, traces
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric

GIB = 2**30
INTERVAL = 0.05
SECONDS = {"idle": 4.0, "spin": 6.0, "launches": 6.0, "bursts": 6.0, "copies": 8.0, "products": 15.0}
"""How long the work of each scenario lasts; ``products`` until the temperature has begun to level off"""
REST_SECONDS = 2.0
"""Before and after the work: the driver's readings look back over as much as a second"""
SPIN_CYCLES = 20_000_000
"""About 10 ms at the clock of a GPU at work"""
SIZE = 8192
FORMAT = "bf16"
COPIED = GIB
BURST = 4
"""Products between two pauses"""
PIECE = GIB
PIECES = 4
HOLD_SECONDS = 1.0
"""Between two steps of the scenario ``memory``"""
QUEUED = 2
"""Batches of calls that wait for the GPU while it works"""


@dataclass(frozen=True)
class Done:
    """What a scenario did."""

    metric: str = ""
    """``throughput``, ``bandwidth``; empty if nothing is counted"""
    unit: str = ""
    amount: float = 0.0


Activity = Callable[[], Done]


def keep_busy(call: Callable[[], object], seconds: float, batch: int) -> int:
    """Call for that long and never let the GPU run out of work; return how many calls were made."""
    waiting: deque[torch.cuda.Event] = deque()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(batch):
            call()
        calls += batch
        waiting.append(torch.cuda.Event())
        waiting[-1].record()
        if len(waiting) > QUEUED:
            waiting.popleft().synchronize()
    torch.cuda.synchronize()
    return calls


def idle(device: str) -> Activity:
    """Do nothing."""

    def activity() -> Done:
        time.sleep(SECONDS["idle"])
        return Done()

    return activity


def spin(device: str) -> Activity:
    """Run a kernel of one block with one thread, which reads the clock until enough cycles have passed."""

    def activity() -> Done:
        keep_busy(lambda: torch.cuda._sleep(SPIN_CYCLES), SECONDS["spin"], 1)
        return Done()

    return activity


def launches(device: str) -> Activity:
    """Add one to a single number, over and over: kernels so short that the host cannot launch them fast enough."""
    number = torch.zeros(1, device=device)

    def activity() -> Done:
        return Done("throughput", "FLOP/s", keep_busy(lambda: number.add_(1), SECONDS["launches"], 100))

    return activity


def product(device: str) -> Callable[[], object]:
    """Return a product of two square matrices of random numbers."""
    return ceilings.product(SIZE, SIZE, SIZE, FORMAT, device)


def bursts(device: str) -> Activity:
    """Run a few products, then pause for as long as they took, as a program does that waits for its data."""
    multiply = product(device)

    def activity() -> Done:
        begun, calls = time.perf_counter(), 0
        while time.perf_counter() - begun < SECONDS["bursts"]:
            start = time.perf_counter()
            for _ in range(BURST):
                multiply()
            torch.cuda.synchronize()
            calls += BURST
            time.sleep(time.perf_counter() - start)
        return Done("throughput", "FLOP/s", calls * roofline.matmul_flops(SIZE, SIZE, SIZE))

    return activity


def copies(device: str) -> Activity:
    """Copy memory without a pause."""
    source = torch.randint(256, (COPIED,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def activity() -> Done:
        return Done("bandwidth", "B/s", 2 * COPIED * keep_busy(lambda: target.copy_(source), SECONDS["copies"], 8))

    return activity


def products(device: str) -> Activity:
    """Multiply matrices without a pause, which draws all the power that the board may."""
    multiply = product(device)

    def activity() -> Done:
        calls = keep_busy(multiply, SECONDS["products"], 8)
        return Done("throughput", "FLOP/s", calls * roofline.matmul_flops(SIZE, SIZE, SIZE))

    return activity


def memory(device: str) -> Activity:
    """Take memory piece by piece, drop half, take a piece again, drop all, and empty PyTorch's cache."""

    def activity() -> Done:
        held: list[torch.Tensor] = []

        def take() -> None:
            held.append(torch.empty(PIECE, dtype=torch.uint8, device=device))

        def drop_half() -> None:
            del held[PIECES // 2 :]

        for step in [*[take] * PIECES, drop_half, take, held.clear, torch.cuda.empty_cache]:
            step()
            time.sleep(HOLD_SECONDS)
        return Done()

    return activity


SCENARIOS: Mapping[str, Callable[[str], Activity]] = {
    "idle": idle,
    "spin": spin,
    "launches": launches,
    "bursts": bursts,
    "copies": copies,
    "products": products,
    "memory": memory,
}


def work(device: Device, keys: Keys) -> Work:
    """Watch the GPU while a scenario runs; the time is that of the work between the two rests."""
    if device.backend == "fake":
        return Work(calls=[lambda: None])
    activity = SCENARIOS[str(keys["scenario"])](device.torch_device)
    found: dict[str, Metric] = {}

    def sample() -> float:
        torch.cuda.empty_cache()
        uuid = str(torch.cuda.get_device_properties(device.torch_device).uuid)
        also = monitor.torch_memory(device.torch_device)
        with monitor.watch(uuid, interval=INTERVAL, also=also) as trace:
            watching = time.perf_counter()
            time.sleep(REST_SECONDS)
            begun = time.perf_counter()
            done = activity()
            torch.cuda.synchronize()
            ended = time.perf_counter()
            time.sleep(REST_SECONDS)
        found.clear()
        found.update(metrics_of(trace, done, begun - watching, ended - watching))
        return ended - begun

    return Work([], sample=sample, further=lambda: found)


def metrics_of(trace: Trace, done: Done, begun: float, ended: float) -> Mapping[str, Metric]:
    """Return a trace with when the work in it began and ended, and how fast it was."""
    found = {
        "work_began": records.metric("s", [begun]),
        "work_ended": records.metric("s", [ended]),
        "reading_cost": records.metric("s", [trace.totals().cost]),
    }
    if done.metric:
        found[done.metric] = records.metric(done.unit, [done.amount / (ended - begun)])
    return {**found, **traces.as_metrics(trace)}


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a scenario takes of the device's memory."""
    matrices = 3 * SIZE * SIZE * ceilings.ELEMENT_SIZE[FORMAT]
    taken = {"copies": 2 * COPIED, "memory": PIECES * PIECE, "products": matrices, "bursts": matrices}
    return taken.get(str(keys["scenario"]), 0) + GIB / 2


def lacks_format(device: Device, keys: Keys) -> str | None:
    """Say no to products in a number format that the device lacks."""
    if keys["scenario"] not in ("products", "bursts") or FORMAT in device.supports:
        return None
    return f"multiplies in {FORMAT}, which {device.name} lacks"


GPU_METRICS = Benchmark(
    name="gpu-metrics",
    title="What the driver reports while a GPU does different things",
    question="What do utilisation, memory, power, clocks and temperature say about the work that a GPU does?",
    contenders={"nvml": Contender(work, frozenset({"gpu"}), lacks_format)},
    cases=lambda device: [{"scenario": name} for name in SCENARIOS] if device.is_gpu else [],
    memory=bytes_needed,
    budget=12.0,
    settle=0.0,
    samples=1,
)
