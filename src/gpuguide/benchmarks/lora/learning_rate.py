"""Learning rates of adapters by their rank, and of all weights: the task and the training of ``lora-task``.

With alpha over rank held still, an adapter of more rank moves its layer further in a step, since AdamW moves each of
its numbers by about the learning rate. So ranks are to be compared each at a rate that suits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuguide.benchmarks.lora import task
from gpuguide.benchmarks.lora.task import SCALE, SEEDS, STEPS_TIMED, USUAL
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Keys

RANKS = (1, 4, 16, 64, 128)
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
LOWER = (1e-5, 3e-5, 1e-4)
"""Rates of all weights"""


def cases(device: Device) -> Sequence[Keys]:
    """Return every rank at every rate with two seeds, then all weights, which have no rank, with three."""
    if not device.is_gpu:
        return []
    of_ranks = [
        {**USUAL, "rank": rank, "alpha": SCALE * rank, "learning_rate": rate, "seed": seed}
        for rank in RANKS
        for rate in RATES
        for seed in (0, SEEDS[0])
    ]
    of_all_weights = [{**USUAL, "learning_rate": rate, "seed": seed} for rate in LOWER for seed in (0, *SEEDS)]
    unique = {tuple(sorted(keys.items())): keys for keys in [*of_ranks, *of_all_weights]}
    return list(unique.values())


def left_out_of_ranks(device: Device, keys: Keys) -> str | None:
    """Say where adapters are not trained."""
    if keys["learning_rate"] not in RATES or keys["seed"] not in (0, SEEDS[0]):
        return "is trained at its own learning rates, with two seeds"
    return None


def left_out_of_all_weights(device: Device, keys: Keys) -> str | None:
    """Say where all weights are not trained."""
    if keys["learning_rate"] not in LOWER or keys["rank"] != USUAL["rank"]:
        return "has no rank, and is trained at its own learning rates"
    return None


LORA_LEARNING_RATE = Benchmark(
    name="lora-learning-rate",
    title="A task learnt at several learning rates, with adapters of several ranks and with all weights",
    question="Which learning rate suits which rank, and which all weights?",
    contenders={
        "lora": replace(task.LORA_TASK.contenders["lora"], leaves_out=left_out_of_ranks),
        "full": replace(task.LORA_TASK.contenders["full"], leaves_out=left_out_of_all_weights),
    },
    cases=cases,
    memory=task.LORA_TASK.memory,
    budget=0.5,
    samples=STEPS_TIMED,
)
