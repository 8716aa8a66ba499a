"""Clipping of gradients on a clean text, and with bad batches: every fiftieth batch is random tokens.

``no-clipping`` clips to an infinite norm, which changes nothing and gives the norm.
"""

from __future__ import annotations

import functools
import math

from gpuguide.benchmarks.training import small_runs
from gpuguide.benchmarks.training.small_runs import Architecture, Plan
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.training.schedules import Schedule

BATCH = 64
RATES = (1e-3, 4e-3, 1.6e-2)
SEEDS = (0, 1, 2)
BAD_EVERY = 50
WARM_UP = 0.1
CLIPS = {"no-clipping": math.inf, "clip-1": 1.0, "clip-0.1": 0.1}
"""Largest norm of all gradients together"""


def plan(contender: str, keys: Keys) -> Plan:
    """Return how a contender trains in a case."""
    batch = int(keys["batch"])
    steps = small_runs.WINDOWS // batch
    rates = Schedule("cosine", float(keys["learning_rate"]), steps, math.ceil(WARM_UP * steps))
    return Plan(
        Architecture(small_runs.SHAPE),
        batch,
        rates,
        int(keys["seed"]),
        clip=CLIPS[contender],
        bad_every=BAD_EVERY if keys["bad"] else 0,
    )


def work(contender: str, device: Device, keys: Keys) -> Work:
    """Train once."""
    return small_runs.work(contender, plan(contender, keys), device)


CLIPPING = Benchmark(
    name="clipping",
    title="Clipping, with and without bad batches",
    question="What does clipping change on clean text, and what if every fiftieth batch is random?",
    contenders={
        name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"}), libraries=("cublas", "cudnn"))
        for name in CLIPS
    },
    cases=lambda device: [
        {"batch": BATCH, "bad": bad, "learning_rate": rate, "seed": seed}
        for bad in (False, True)
        for rate in RATES
        for seed in SEEDS
        if device.is_gpu
    ],
    memory=lambda keys: small_runs.bytes_needed(small_runs.SHAPE, BATCH, len(CLIPS)),
    samples=small_runs.PIECES,
    end=small_runs.end,
)
