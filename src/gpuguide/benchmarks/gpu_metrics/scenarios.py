"""Readings of the driver while a GPU does different things: utilisation, memory, power, clocks and temperature."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from gpuguide.costs import roofline
from gpuguide.hardware import monitor
from gpuguide.hardware.device import Device
from gpuguide.hardware.trace import Trace
from gpuguide.measure import records, traces
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric
from gpuguide.systems import ceilings, memory_hierarchy

GIB = 2**30
INTERVAL = 0.05
FAST_INTERVAL = 0.01
"""Scenarios in which it is measured how often the driver renews its readings"""
SECONDS = {"idle": 3.0, "spin": 4.0, "chase": 4.0, "launches": 4.0, "bursts": 5.0, "copies": 5.0, "products": 20.0}
"""Seconds of work of each scenario; ``products`` lasts until the temperature has begun to level off"""
REST_SECONDS = 1.5
"""Before and after the work: the driver's readings look back over as much as a second"""
SETTLE_SECONDS = 1.0
"""Between making a context and watching: the power that the driver reports is the mean of so long"""
SPIN_CYCLES = 20_000_000
"""About 10 ms at the clock of a GPU at work"""
CHAIN, HOPS = GIB, 16384
"""Bytes through which a thread follows addresses, many times the caches, and the addresses of one call, about 10 ms"""
SECTOR = 32
"""Bytes that a load takes from memory at least"""
SIZE = 8192
FORMAT = "bf16"
COPIED = GIB
BURST = 4
"""Matmuls between two pauses"""
RATE_SECONDS = 1.0
"""Over which a rate of work is taken, to see whether it changes as the GPU warms up"""
STRETCHES = 4
STRETCH_SECONDS = 1.0
"""Seconds of work, and of the pause after it, in the scenario ``stretches``"""
PIECE = GIB
PIECES = 4
SPIKE = 8 * GIB
HOLD_SECONDS = 0.6
"""Between two steps with memory; several readings fall into it"""
QUEUED = 2
"""Batches of calls that wait for the GPU while it works"""


@dataclass
class Progress:
    """Work that a scenario has done so far."""

    amount: float = 0.0
    """Operations or bytes that the GPU has finished"""
    moments: dict[str, list[float]] = field(default_factory=dict)
    """Times at which something began or ended, by the host's clock"""
    found: dict[str, Metric] = field(default_factory=dict)
    """Other quantities, single numbers"""

    def mark(self, name: str) -> None:
        """Write down that something of that name happens now."""
        self.moments.setdefault(name, []).append(time.perf_counter())


Activity = Callable[[], None]


@dataclass(frozen=True)
class Scenario:
    """Something that a GPU does while it is watched."""

    prepare: Callable[[str, Progress], Activity]
    """Takes the device and what is to be kept up to date"""
    counts: str = ""
    """``FLOP`` or ``B``; empty if nothing is counted"""
    fast: bool = False
    """True to read as often as can be, and fewer quantities: without the chip's counters"""


def keep_busy(call: Callable[[], object], seconds: float, batch: int, progress: Progress, each: float = 0.0) -> None:
    """Call for that long and never let the GPU run out of work; a finished call adds ``each`` to the progress."""
    waiting: deque[torch.cuda.Event] = deque()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(batch):
            call()
        waiting.append(torch.cuda.Event())
        waiting[-1].record()
        if len(waiting) > QUEUED:
            waiting.popleft().synchronize()
            progress.amount += batch * each
    torch.cuda.synchronize()
    progress.amount += len(waiting) * batch * each


def idle(device: str, progress: Progress) -> Activity:
    """Do nothing, in a process that holds a context, as all scenarios do."""
    return lambda: time.sleep(SECONDS["idle"])


def spin(device: str, progress: Progress) -> Activity:
    """Run a kernel of one block with one thread, which reads the clock until enough cycles have passed."""
    return lambda: keep_busy(lambda: torch.cuda._sleep(SPIN_CYCLES), SECONDS["spin"], 1, progress)


def chase(device: str, progress: Progress) -> Activity:
    """Let one thread follow addresses in random order through more memory than any cache holds.

    A word of memory is always under way, and hardly any bytes move. Nothing is read that nobody asked for: each
    address is known only when the one before has arrived.
    """
    follow = memory_hierarchy.Chain.draw(CHAIN, HOPS, "l2", device, is_near=False)
    follow()  # compiles the kernel
    return lambda: keep_busy(follow, SECONDS["chase"], 1, progress, HOPS * SECTOR)


def launches(device: str, progress: Progress) -> Activity:
    """Add one to a single number, over and over: kernels so short that the host cannot launch them fast enough."""
    number = torch.zeros(1, device=device)
    return lambda: keep_busy(lambda: number.add_(1), SECONDS["launches"], 100, progress, 1.0)


def square_matmul(device: str) -> tuple[Callable[[], object], float]:
    """Return a matmul of two square matrices of random numbers, and its operations."""
    return ceilings.make_matmul(SIZE, SIZE, SIZE, FORMAT, device), roofline.matmul_flops(SIZE, SIZE, SIZE)


def bursts(device: str, progress: Progress) -> Activity:
    """Run a few matmuls, then pause for as long as they took, as a program does that waits for its data."""
    multiply, flops = square_matmul(device)

    def activity() -> None:
        begun = time.perf_counter()
        while time.perf_counter() - begun < SECONDS["bursts"]:
            start = time.perf_counter()
            for _ in range(BURST):
                multiply()
            torch.cuda.synchronize()
            progress.amount += BURST * flops
            time.sleep(time.perf_counter() - start)

    return activity


def stretches(device: str, progress: Progress) -> Activity:
    """Multiply for a second and pause for a second, so that one sees how late the readings are."""
    multiply, flops = square_matmul(device)

    def activity() -> None:
        for _ in range(STRETCHES):
            progress.mark("stretch_began")
            keep_busy(multiply, STRETCH_SECONDS, 2, progress, flops)
            progress.mark("stretch_ended")
            time.sleep(STRETCH_SECONDS)

    return activity


def copies(device: str, progress: Progress) -> Activity:
    """Copy memory without a pause."""
    source = torch.randint(256, (COPIED,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: keep_busy(lambda: target.copy_(source), SECONDS["copies"], 8, progress, 2 * COPIED)


def run_matmuls(device: str, progress: Progress) -> Activity:
    """Multiply matrices without a pause, which draws all the power that the board may."""
    multiply, flops = square_matmul(device)
    return lambda: keep_busy(multiply, SECONDS["products"], 2, progress, flops)


def piece(device: str, size: int) -> torch.Tensor:
    """Return memory that nothing has been written to."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def memory(device: str, progress: Progress) -> Activity:
    """Take memory piece by piece, drop half, take a piece again, drop all, and empty PyTorch's cache."""

    def activity() -> None:
        held: list[torch.Tensor] = []

        def take() -> None:
            held.append(piece(device, PIECE))

        def drop_half() -> None:
            del held[PIECES // 2 :]

        for step in [*[take] * PIECES, drop_half, take, held.clear, torch.cuda.empty_cache]:
            progress.mark("step")
            step()
            time.sleep(HOLD_SECONDS)

    return activity


def spike(device: str, progress: Progress) -> Activity:
    """Take much memory for less time than passes between two readings: once and give it back, once and keep it cached.

    What PyTorch itself counted as the highest amount is found beside the trace.
    """

    def activity() -> None:
        torch.cuda.reset_peak_memory_stats(device)
        held = piece(device, PIECE)
        time.sleep(HOLD_SECONDS)
        for give_back in (torch.cuda.empty_cache, lambda: None):
            progress.mark("spike")
            piece(device, SPIKE)
            give_back()
            progress.mark("spike_over")
            time.sleep(HOLD_SECONDS)
        del held
        torch.cuda.empty_cache()
        progress.found["peak_allocated"] = records.metric("B", [torch.cuda.max_memory_allocated(device)])
        progress.found["peak_reserved"] = records.metric("B", [torch.cuda.max_memory_reserved(device)])

    return activity


NEIGHBOUR = """
import sys, torch
number = torch.ones(1, device=sys.argv[1]) + 1
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""


def neighbour(device: str, progress: Progress) -> Activity:
    """Start another process that computes one number on the same GPU, let it stay for a while, and end it."""

    def activity() -> None:
        command = [sys.executable, "-c", NEIGHBOUR, device]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a second process cannot use this GPU")
            progress.mark("neighbour_ready")
            time.sleep(2 * HOLD_SECONDS)
            progress.mark("neighbour_ended")
            process.stdin.close()
            process.wait()

    return activity


SCENARIOS: Mapping[str, Scenario] = {
    "idle": Scenario(idle),
    "spin": Scenario(spin),
    "chase": Scenario(chase, "B"),
    "launches": Scenario(launches, "FLOP"),
    "bursts": Scenario(bursts, "FLOP"),
    "stretches": Scenario(stretches, "FLOP", fast=True),
    "copies": Scenario(copies, "B"),
    "memory": Scenario(memory),
    "spike": Scenario(spike),
    "neighbour": Scenario(neighbour),
    "products": Scenario(run_matmuls, "FLOP"),
}
"""Scenarios in the order in which they are run: what heats the GPU comes last"""
MULTIPLYING = ("products", "bursts", "stretches")
RATES = {"FLOP": ("throughput", "FLOP/s"), "B": ("bandwidth", "B/s")}


def work(device: Device, keys: Keys) -> Work:
    """Watch the GPU while a scenario runs; the time is that of the work between the two rests."""
    scenario = SCENARIOS[str(keys["scenario"])]
    progress = Progress()
    activity = scenario.prepare(device.torch_device, progress)
    found: dict[str, Metric] = {}

    def sample() -> float:
        progress.amount = 0.0
        progress.moments.clear()
        hold_context(device.torch_device)
        uuid = str(torch.cuda.get_device_properties(device.torch_device).uuid)
        also = dict(monitor.torch_memory(device.torch_device))
        if scenario.counts:
            also["done"] = (scenario.counts, lambda: progress.amount)
        interval = FAST_INTERVAL if scenario.fast else INTERVAL
        with monitor.watch(uuid, interval=interval, also=also, counters=not scenario.fast) as trace:
            watching = time.perf_counter()
            time.sleep(REST_SECONDS)
            progress.mark("work_began")
            activity()
            torch.cuda.synchronize()
            progress.mark("work_ended")
            time.sleep(REST_SECONDS)
        found.update(metrics_of(trace, progress, watching, scenario.counts))
        return progress.moments["work_ended"][-1] - progress.moments["work_began"][-1]

    return Work([], sample=sample, further=lambda: found)


def hold_context(device: str) -> None:
    """Compute one number, so that this process holds a context before it is watched, and let the readings settle.

    PyTorch makes its context with the first tensor. The context takes memory, and raises clocks and power for as long
    as the process lives, which would otherwise happen somewhere in the trace.
    """
    torch.zeros(1, device=device).add_(1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    time.sleep(SETTLE_SECONDS)


def metrics_of(trace: Trace, progress: Progress, watching: float, counts: str) -> Mapping[str, Metric]:
    """Return a trace with when things happened in it, and how fast the work was.

    Moments are in seconds since the first reading, like those of the trace. The first reading is over when
    ``watching`` begins, so they are early by no more than half of what a reading takes.
    """
    moments = {
        name: records.metric("s", [moment - watching for moment in all_of_it])
        for name, all_of_it in progress.moments.items()
    }
    found = {**moments, **progress.found, "reading_cost": records.metric("s", [row.cost for row in trace.rows])}
    if counts:
        name, unit = RATES[counts]
        lasted = progress.moments["work_ended"][-1] - progress.moments["work_began"][-1]
        found[name] = records.metric(unit, [progress.amount / lasted])
        begun = moments["work_began"].samples[-1]
        if parts := int(lasted / RATE_SECONDS):
            edges = begun + RATE_SECONDS * np.arange(parts + 1)
            done = np.interp(edges, trace.seconds, trace["done"])
            found["rate"] = records.metric(unit, np.diff(done) / RATE_SECONDS)
    return {**found, **traces.as_metrics(trace)}


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a scenario takes of the device's memory."""
    scenario = str(keys["scenario"])
    matrices = 3 * SIZE * SIZE * ceilings.ELEMENT_SIZE[FORMAT]
    taken = {"chase": 2 * CHAIN, "copies": 2 * COPIED, "memory": PIECES * PIECE, "spike": PIECE + SPIKE}
    return taken.get(scenario, matrices if scenario in MULTIPLYING else 0) + GIB / 2


def lacks_format(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip matmuls in a number format that the device lacks, or None."""
    if keys["scenario"] not in MULTIPLYING or FORMAT in device.supports:
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
    samples=1,
)
