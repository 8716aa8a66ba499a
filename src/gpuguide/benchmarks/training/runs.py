"""A map of the loss over batch size and learning rate, with the spread over seeds.

``fixed-beta2`` has AdamW's second decay at 0.95 for every batch. ``scaled-beta2`` keeps its half-life constant in
tokens: ``0.95^(batch / 256)``. Two batches of GPT-2 small's width and depth check that the small model is no exception.
``eager`` is the same training launched one kernel at a time, for its speed: it takes a tenth of the steps.

The cases that say most come first, the larger model and batches of one sequence, which take longest, last. So a run
that a time limit ends has most of the map, and goes on where it stopped.

References
----------
M. Marek et al., "Small Batch Size Training for Language Models", arXiv:2507.07101, 2025, for the half-life in tokens.
"""

from __future__ import annotations

import functools
import math

from gpuguide.benchmarks.training import small_runs
from gpuguide.benchmarks.training.small_runs import BETAS, CAPTURED, COMPILED, EAGER, Architecture, Plan
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.training.schedules import Schedule

BATCHES = (1, 4, 16, 64, 256, 512, 1024)
RATES = tuple(1.25e-4 * 2**power for power in range(8))
SEEDS = (0, 1, 2)
IN_ORDER = (64, 256, 16, 1024, 512, 4, 1)
"""Batches in the order in which they are measured"""
COMPILED_UP_TO = 4
"""Batch up to which a run has so many steps that compiling is worth its time"""
SCALED_UP_TO = 16
EAGER_SHARE = 10
"""Steps of the whole run for each of the eager one"""
REFERENCE_BATCH = 256
"""Batch at which both contenders have the same decay"""
WARM_UP = 0.1
"""Share of the steps"""
SHAPES = {
    "small": small_runs.SHAPE,
    "gpt2-small": GPT2Config(vocab_size=2048, context=256, layers=12, heads=12, hidden=768),
}
CHECKED = {16: RATES[1:5:2], 256: RATES[2:6:2]}
"""Batches and rates of the larger model"""
EAGER_AT = (4, RATES[2], 0)


def plan(contender: str, keys: Keys) -> Plan:
    """Return how a contender trains in a case."""
    batch, rate, seed = int(keys["batch"]), float(keys["learning_rate"]), int(keys["seed"])
    steps = small_runs.WINDOWS // batch
    beta_2 = BETAS[1] ** (batch / REFERENCE_BATCH) if contender == "scaled-beta2" else BETAS[1]
    is_long = keys["model"] == "small" and batch <= COMPILED_UP_TO
    rungs = EAGER if contender == "eager" else COMPILED if is_long else CAPTURED
    return Plan(
        Architecture(SHAPES[str(keys["model"])]),
        batch,
        Schedule("cosine", rate, steps, math.ceil(WARM_UP * steps)),
        seed,
        steps // EAGER_SHARE if contender == "eager" else steps,
        betas=(BETAS[0], beta_2),
        rungs=rungs,
    )


def work(contender: str, device: Device, keys: Keys) -> Work:
    """Train once."""
    return small_runs.work(contender, plan(contender, keys), device)


def expected_rate(batch: int) -> float:
    """Return the rate near which the best is expected: as the root of the batch."""
    return float(4e-3 * math.sqrt(batch / 256))


def is_near(batch: int, rate: float) -> bool:
    """Return whether a rate is one of those among which the best of a batch is expected."""
    return 0.2 < rate / expected_rate(batch) < 5


def seeds_of(batch: int, rate: float) -> tuple[int, ...]:
    """Return the seeds of a point of the map: all, or the first alone far from the best rate."""
    return SEEDS if is_near(batch, rate) else SEEDS[:1]


def cases(device: Device) -> list[Keys]:
    """Return the points of the map, batch by batch, and those of the larger model; on a processor none."""
    if not device.is_gpu:
        return []
    points = [("small", batch, rate, seed) for batch in IN_ORDER for rate in RATES for seed in seeds_of(batch, rate)]
    larger = [("gpt2-small", batch, rate, 0) for batch, rates in CHECKED.items() for rate in rates]
    last = [point for point in points if point[1] == IN_ORDER[-1]]
    points = [*points[: -len(last)], *larger, *last]
    return [
        {"model": model, "batch": batch, "learning_rate": rate, "seed": seed} for model, batch, rate, seed in points
    ]


def only_small_batches(device: Device, keys: Keys) -> str | None:
    """Return why the decay is not scaled, or None."""
    if int(keys["batch"]) > SCALED_UP_TO or keys["model"] != "small":
        return f"is measured with the small model and batches up to {SCALED_UP_TO}"
    if not is_near(int(keys["batch"]), float(keys["learning_rate"])):
        return "is measured near the best rate"
    return None if keys["seed"] == 0 else "is measured with one seed"


def only_once(device: Device, keys: Keys) -> str | None:
    """Return why the eager run is left out, or None."""
    point = (keys["batch"], keys["learning_rate"], keys["seed"])
    return None if keys["model"] == "small" and point == EAGER_AT else "is measured at one point of the map"


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes."""
    model, batch = str(keys["model"]), int(keys["batch"])
    together = 2 if model == "small" and batch <= SCALED_UP_TO else 1
    return small_runs.bytes_needed(SHAPES[model], batch, together)


NEEDS = frozenset({"gpu", "bf16"})
TRAINING_RUNS = Benchmark(
    name="training-runs",
    title="The loss by batch size and learning rate",
    question="Which learning rate is best for each batch size, and how large is the difference beside that of seeds?",
    contenders={
        "fixed-beta2": Contender(functools.partial(work, "fixed-beta2"), NEEDS, libraries=("cublas", "cudnn")),
        "scaled-beta2": Contender(
            functools.partial(work, "scaled-beta2"), NEEDS, only_small_batches, ("cublas", "cudnn")
        ),
        "eager": Contender(functools.partial(work, "eager"), NEEDS, only_once, ("cublas", "cudnn")),
    },
    cases=cases,
    memory=bytes_needed,
    samples=small_runs.PIECES,
    end=small_runs.end,
)
