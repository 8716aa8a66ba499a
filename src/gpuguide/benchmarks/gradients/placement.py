"""Norms and residual connections: the first gradients by layer, and 300 steps of training, by depth, warm-up and rate.

``gradient_by_layer`` is the norm of the gradient of each layer's parameters on the first batch, in fp32, before any
step. ``post-norm-xavier`` is post-norm with the first weights of the first transformer in place of GPT-2's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from gpuguide.benchmarks.training import small_runs
from gpuguide.benchmarks.training.small_runs import Architecture, Plan
from gpuguide.gradients.depth import norm_by_layer
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.training.feeding import split_windows
from gpuguide.training.rungs import whole_loss
from gpuguide.training.schedules import Schedule

BATCH, STEPS = 32, 300
LAYERS = (6, 24)
WARM_UPS = (0, 100)
RATES = (3e-4, 3e-3)
SEEDS = {6: (0, 1, 2), 24: (0,)}
"""Seeds by depth"""
ACCEPTED = 0.1
"""Largest error of gradients: without residual connections, the rounding of bf16 adds up over 24 layers"""
WIRED = {
    "pre-norm": ("pre-norm", "gpt2"),
    "post-norm": ("post-norm", "gpt2"),
    "post-norm-xavier": ("post-norm", "xavier"),
    "no-norm": ("no-norm", "gpt2"),
    "no-residual": ("no-residual", "gpt2"),
    "neither": ("neither", "gpt2"),
}
"""Wiring and first weights of each contender"""


def shape(layers: int) -> GPT2Config:
    """Return the shape of the model with so many layers."""
    return replace(small_runs.SHAPE, layers=layers)


def plan(contender: str, keys: Keys) -> Plan:
    """Return how a contender trains in a case."""
    wiring, start = WIRED[contender]
    rates = Schedule("constant", float(keys["learning_rate"]), STEPS, int(keys["warm_up"]))
    architecture = Architecture(shape(int(keys["layers"])), wiring, start)
    return Plan(architecture, BATCH, rates, int(keys["seed"]), steps=STEPS, accepted=ACCEPTED)


def first_gradients(plan: Plan, device: str) -> list[float]:
    """Return the gradient norm of each layer on the first batch."""
    model = plan.architecture.build(plan.seed).to(device)
    first = small_runs.windows(plan.seed, plan.num_steps * plan.batch, plan.architecture.config.context)[: plan.batch]
    whole_loss(model)(*split_windows(first.to(device))).backward()
    return norm_by_layer(model)


def work(contender: str, device: Device, keys: Keys) -> Work:
    """Train once, and note the first gradients."""
    chosen = plan(contender, keys)
    norms = first_gradients(chosen, device.torch_device)
    made = small_runs.work(contender, chosen, device)

    def further() -> Mapping[str, Metric]:
        return {**made.further(), "gradient_by_layer": records.metric("1", norms)}

    return replace(made, further=further)


NORM_PLACEMENT = Benchmark(
    name="norm-placement",
    title="Gradients and training by the place of the norm",
    question="What do the residual connection and the place of the norm do to gradients and to training?",
    contenders={
        name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"}), libraries=("cublas", "cudnn"))
        for name in WIRED
    },
    cases=lambda device: [
        {"layers": layers, "warm_up": warm_up, "learning_rate": rate, "seed": seed}
        for layers in LAYERS
        for warm_up in WARM_UPS
        for rate in RATES
        for seed in SEEDS[layers]
        if device.is_gpu
    ],
    memory=lambda keys: small_runs.bytes_needed(shape(int(keys["layers"])), BATCH, len(WIRED)),
    samples=small_runs.PIECES,
    end=small_runs.end,
)
