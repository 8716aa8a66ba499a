"""How accurate predictions of a step's memory are, and how long they take.

Contenders are the library's cost model; ``mem-tracker``, which is PyTorch's ``MemTracker`` around two steps on fake
tensors, with every operation's launch on the host and no arithmetic; 16 bytes a parameter, as the literature counts
weights, gradients and states of mixed precision; and four times the weights, as tools that estimate loading do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpuguide.benchmarks.training_memory import variants
from gpuguide.benchmarks.training_memory.models import shape_of as shape_of_config
from gpuguide.benchmarks.training_memory.variants import CONTEXT, SHAPES, VARIANTS, MemoryVariant, VariantTraining
from gpuguide.costs import memory
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric
from gpuguide.measure.timing import wall_clock
from gpuguide.models.gpt2 import GPT2, GPT2Config

TRAINING = tuple(name for name, variant in VARIANTS.items() if variant.trains)
Predict = Callable[[Keys, MemoryVariant, str], float]


def shape_of(keys: Keys) -> memory.Shape:
    """Return the shape of a case's model in the cost model."""
    layers, heads, hidden, vocab = (int(keys[name]) for name in ("layers", "heads", "hidden", "vocab"))
    return shape_of_config(GPT2Config(vocab, CONTEXT, layers, heads, hidden))


def setup_of(keys: Keys, variant: MemoryVariant) -> memory.Setup:
    """Return the setup that a variant stands for."""
    return memory.Setup(
        precision="mixed" if variant.mixed else "bf16" if variant.weights == torch.bfloat16 else "fp32",
        batch=int(keys["batch"]),
        seq_len=int(keys["seq_len"]),
        checkpointing=variant.checkpointed,
        fused_attention=variant.fused_attention,
    )


def by_cost_model(keys: Keys, variant: MemoryVariant, device: str) -> float:
    """Return the bytes that the library predicts."""
    return memory.predict(shape_of(keys), setup_of(keys, variant)).total


class FakeTraining(VariantTraining):
    """The same training, whose model is made in its format: fake parameters cannot be converted."""

    def __init__(self, variant: MemoryVariant, keys: Keys, device: str) -> None:
        layers, heads, hidden, vocab, batch, seq_len = (int(keys[name]) for name in SHAPES[0])
        self.variant = variant
        default = torch.get_default_dtype()
        torch.set_default_dtype(variant.weights)
        try:
            with torch.device(device):
                self.model = GPT2(GPT2Config(vocab, CONTEXT, layers, heads, hidden))
                self.tokens, self.targets = (torch.randint(vocab, (batch, seq_len)) for _ in range(2))
        finally:
            torch.set_default_dtype(default)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)


@functools.cache
def tracker_classes() -> tuple[Any, Any]:
    """Return PyTorch's fake tensors and tracker, whose import takes seconds."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    return FakeTensorMode, MemTracker


def by_mem_tracker(keys: Keys, variant: MemoryVariant, device: str) -> float:
    """Return the bytes that PyTorch's tracker counts in two steps on fake tensors."""
    fake_mode, make_tracker = tracker_classes()
    with fake_mode():
        training = FakeTraining(variant, shape_keys(keys), device)
        tracker = make_tracker()
        tracker.track_external(training.model, training.optimizer)
        with tracker:
            training.step()
            tracker.reset_mod_stats()
            training.step()
    return float(max(each["Total"] for each in tracker.get_tracker_snapshot("peak").values()))


def by_16_bytes(keys: Keys, variant: MemoryVariant, device: str) -> float:
    """Return 16 bytes for each parameter."""
    return 16.0 * shape_of(keys).parameters()


def by_four_times_the_weights(keys: Keys, variant: MemoryVariant, device: str) -> float:
    """Return four times the bytes of the weights."""
    return 4.0 * variant.weights.itemsize * shape_of(keys).parameters()


PREDICTIONS: Mapping[str, Predict] = {
    "gpuguide": by_cost_model,
    "mem-tracker": by_mem_tracker,
    "rule-of-16": by_16_bytes,
    "four-times-weights": by_four_times_the_weights,
}


def shape_keys(keys: Keys) -> Keys:
    """Return the keys of a case that describe the model and its batch."""
    return {name: value for name, value in keys.items() if name != "variant"}


@functools.lru_cache(maxsize=1)
def measured(case: tuple[tuple[str, Any], ...], device: str) -> int:
    """Return the peak that PyTorch allocated in a step."""
    keys = dict(case)
    return variants.measure_memory(VARIANTS[str(keys["variant"])], shape_keys(keys), device)["peak_memory"]


def work(name: str, device: Device, keys: Keys) -> Work:
    """Predict once, and compare with the measured peak."""
    variant = VARIANTS[str(keys["variant"])]
    peak = measured(tuple(sorted(keys.items())), device.torch_device)
    tracker_classes()  # their import is no part of a prediction
    predictions: list[float] = []
    seconds = wall_clock(lambda: predictions.append(PREDICTIONS[name](keys, variant, device.torch_device)))()
    (predicted,) = predictions

    def further() -> Mapping[str, Metric]:
        return {
            "error": records.metric("1", [predicted / peak - 1]),
            "predicted_memory": records.metric("B", [predicted]),
            "peak_memory": records.metric("B", [peak]),
        }

    return Work([], lambda: None, sample=lambda: seconds, further=further)


def cases(device: Device) -> list[Keys]:
    """Return the configurations of the benchmark ``training-memory`` that train, one a case."""
    if not device.is_gpu:
        return []
    return [{**shape, "variant": variant} for shape in SHAPES for variant in TRAINING]


MEMORY_PREDICTION = Benchmark(
    name="memory-prediction",
    title="Predictions of a training step's memory",
    question="How accurate are predictions of training memory, and how long do they take?",
    contenders={
        name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"}), libraries=("cublas",))
        for name in PREDICTIONS
    },
    cases=cases,
    memory=lambda keys: variants.bytes_needed(shape_keys(keys)),
    samples=1,
)
