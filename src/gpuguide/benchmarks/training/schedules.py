"""The loss by schedule of the learning rate, over rates and seeds, two frequent mistakes among them.

``cosine-climbing`` is PyTorch's ``CosineAnnealingLR`` with ``T_max`` of half the steps, whose rate climbs again, and
``cosine-micro-steps`` a schedule made for the micro-batches of four times as many steps, so that the run ends long
before the rate has fallen.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from gpuguide.benchmarks.training import small_runs
from gpuguide.benchmarks.training.small_runs import Architecture, Plan
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.training.schedules import Schedule

BATCH = 64
RATES = (1e-3, 4e-3, 1.6e-2)
SEEDS = (0, 1, 2)
WARM_UP = 0.1
"""Share of the steps"""
ACCUMULATION = 4
Rates = Callable[[int], float]


def _shaped(shape: str, warm_up: float = WARM_UP) -> Callable[[float, int], Rates]:
    return lambda rate, steps: Schedule(shape, rate, steps, math.ceil(warm_up * steps))


def climbing(rate: float, steps: int) -> Rates:
    """Return the rates of a cosine that is at its lowest after half of the steps, and climbs from there."""
    warm_up = math.ceil(WARM_UP * steps)
    half = (steps - warm_up) / 2

    def at(step: int) -> float:
        if step < warm_up:
            return rate * (step + 1) / warm_up
        return rate * (0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / half))

    return at


def micro_steps(rate: float, steps: int) -> Rates:
    """Return the first rates of a cosine that was made for four times as many steps, micro-batches by mistake."""
    return Schedule("cosine", rate, ACCUMULATION * steps, math.ceil(WARM_UP * steps))


SCHEDULES: dict[str, Callable[[float, int], Rates]] = {
    "constant": _shaped("constant"),
    "constant-no-warm-up": _shaped("constant", 0.0),
    "linear": _shaped("linear"),
    "cosine": _shaped("cosine"),
    "cosine-no-warm-up": _shaped("cosine", 0.0),
    "stable-decay": _shaped("stable-decay"),
    "cosine-climbing": climbing,
    "cosine-micro-steps": micro_steps,
}
"""From the highest rate and the steps of a run to the rate of each step"""


def plan(contender: str, keys: Keys) -> Plan:
    """Return how a contender trains in a case."""
    batch = int(keys["batch"])
    rates = SCHEDULES[contender](float(keys["learning_rate"]), small_runs.WINDOWS // batch)
    return Plan(Architecture(small_runs.SHAPE), batch, rates, int(keys["seed"]))


def work(contender: str, device: Device, keys: Keys) -> Work:
    """Train once."""
    return small_runs.work(contender, plan(contender, keys), device)


SCHEDULES_BENCHMARK = Benchmark(
    name="schedules",
    title="The loss by schedule of the learning rate",
    question="Which schedules end at a lower loss than others by more than seeds differ?",
    contenders={
        name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"}), libraries=("cublas", "cudnn"))
        for name in SCHEDULES
    },
    cases=lambda device: [
        {"batch": BATCH, "learning_rate": rate, "seed": seed} for rate in RATES for seed in SEEDS if device.is_gpu
    ],
    memory=lambda keys: small_runs.bytes_needed(small_runs.SHAPE, BATCH, len(SCHEDULES)),
    samples=small_runs.PIECES,
    end=small_runs.end,
)
