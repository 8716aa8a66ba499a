"""A training step that is slow for everyday reasons, mended one change at a time, with a GPU's readings each time.

The model has the shape of GPT-2 small and its text is Python's standard library. Most habits of the slow version are
the default of some library, or what a first version of a program does. Two are our choice: the length of the documents,
which sets how long tokenising takes, and the optimizer's loop over parameters, where PyTorch's default on a GPU is
``foreach``.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from gpuguide import models
from gpuguide.hardware import monitor
from gpuguide.hardware.device import Device
from gpuguide.measure import records, traces
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models import corpus
from gpuguide.models.gpt2 import GPT2, GPT2Attention, GPT2Config
from gpuguide.models.tokenizer import Tokenizer

SHAPE = GPT2Config()
"""GPT-2 small"""
TOKENIZER = models.checkpoint_folder("main") / "tokenizer.json"
"""That of the models that come with the library; loading one of them whole would make each change of how models are
loaded a reason to measure this again

:meta hide-value:
"""
DOCUMENT = 2**16
"""Characters of a document, about a chapter; the model reads the first thousand tokens of it"""
WARM_SECONDS = 2.0
"""Seconds of steps before watching: the driver's readings look back over as much as a second"""
WATCHED_SECONDS = 6.0
INTERVAL = 0.1
"""Between two readings: the chip's counters are renewed no sooner"""
LEARNING_RATE = 3e-4
SAMPLES = 20
"""Steps whose time the record keeps, out of those that were watched"""
ACCEPTED_ERROR = 0.01
"""Largest accepted difference of the first loss from that in fp32, as a share"""


@dataclass(frozen=True)
class LoopVariant:
    """Variant of the training loop."""

    tokenised_once: bool = False
    """False: every document is tokenised when it is drawn, all of it, and cut to the model's context afterwards"""
    mixed: bool = False
    """Matmuls in bf16 under autocast. False: fp32, PyTorch's default, in which tensor cores have no part"""
    fused_attention: bool = False
    """False: attention as textbooks write it, with all scores in memory"""
    compiled: bool = False
    fused_optimizer: bool = False
    """False: AdamW goes through the parameters in a Python loop, which ``foreach=False`` asks for"""
    waits: bool = True
    """Copy the batch and wait for it, and ask for the loss after each step"""
    batch: int = 8


CHANGES: Mapping[str, Mapping[str, Any]] = {
    "as-found": {},
    "tokenised-once": {"tokenised_once": True},
    "bf16": {"mixed": True},
    "fused-attention": {"fused_attention": True},
    "compiled": {"compiled": True},
    "fused-optimizer": {"fused_optimizer": True},
    "no-waiting": {"waits": False},
    "larger-batch": {"batch": 32},
}
"""Change that each step makes; the changes before it stay"""


def accumulate_changes(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, LoopVariant]:
    """Return the loop after each change; the changes before it stay."""
    variant, found = LoopVariant(), {}
    for name, change in changes.items():
        variant = replace(variant, **change)
        found[name] = variant
    return found


VARIANTS = accumulate_changes(CHANGES)


class WrittenOut(GPT2Attention):
    """Causal attention as textbooks write it: the scores of all pairs of positions go to memory, several times."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mix the positions: ``(batch, seq, hidden)`` to the same shape."""
        batch, seq, width = hidden.shape
        split = self.query_key_value(hidden).view(batch, seq, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, heads, seq, head_dim)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        future = torch.ones(seq, seq, dtype=torch.bool, device=hidden.device).triu(1)
        shares = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.out((shares @ value).transpose(1, 2).reshape(batch, seq, width))


@functools.cache
def documents() -> list[str]:
    """Return the standard library as documents of equal length."""
    text = "".join(source.text for source in corpus.standard_library())
    return [text[start : start + DOCUMENT] for start in range(0, len(text) - DOCUMENT, DOCUMENT)]


def batches(variant: LoopVariant) -> Iterator[torch.Tensor]:
    """Yield one batch after another, ``(batch, context + 1)`` token numbers, for ever."""
    tokenizer = Tokenizer.read(TOKENIZER)
    drawn: Iterator[torch.Tensor]

    def tokenise(document: str) -> torch.Tensor:
        return torch.tensor(tokenizer.encode(document)[: SHAPE.context + 1])

    if variant.tokenised_once:
        drawn = itertools.cycle([tokenise(document) for document in documents()])
    else:
        drawn = map(tokenise, itertools.cycle(documents()))
    while True:
        yield torch.stack([next(drawn) for _ in range(variant.batch)])


def loss_of(model: GPT2, tokens: torch.Tensor, mixed: bool) -> torch.Tensor:
    """Return the mean cross-entropy of each token after the first, given those before it."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=mixed):
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Training:
    """A model with what its training needs, and the loop."""

    def __init__(self, variant: LoopVariant, device: str) -> None:
        self.variant = variant
        self.device = torch.device(device)
        self.batches = batches(variant)
        with self.device:
            self.model = GPT2(SHAPE)
        if not variant.fused_attention:
            for module in self.model.modules():
                if isinstance(module, GPT2Attention):
                    module.__class__ = WrittenOut
        kind: dict[str, Any] = {"fused": True} if variant.fused_optimizer else {"foreach": False}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, **kind)
        torch.compiler.reset()
        self.loss_of = torch.compile(loss_of) if variant.compiled else loss_of
        self.losses: list[torch.Tensor | float] = []
        self.loading = 0.0
        """Seconds for which the host built batches"""
        self.marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        """Events at the beginning and the end of each step in the GPU's queue"""

    def move_batch(self, tokens: torch.Tensor) -> torch.Tensor:
        """Copy a batch to the GPU: from pinned memory nobody waits for it, otherwise the host does.

        The batch is pinned here, right before its copy, which takes time itself; larger ones should be pinned once.
        """
        if self.variant.waits or self.device.type != "cuda":
            return tokens.to(self.device)
        return tokens.pin_memory().to(self.device, non_blocking=True)

    def train_on(self, tokens: torch.Tensor) -> None:
        """Take one step on a batch that is on the GPU."""
        loss = self.loss_of(self.model, tokens, self.variant.mixed)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.item() if self.variant.waits else loss.detach())

    def run(self, seconds: float) -> None:
        """Train for that long, and note when steps began and ended on the GPU, and how long the host built batches."""
        self.loading, self.marks, self.losses = 0.0, [], []
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            asked = time.perf_counter()
            tokens = next(self.batches)
            self.loading += time.perf_counter() - asked
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            self.train_on(self.move_batch(tokens))
            after.record()
            self.marks.append((before, after))
        torch.cuda.synchronize()

    def step_seconds(self) -> list[float]:
        """Return the time from the end of each step to the end of the next, by the GPU's clock."""
        ends = [after for _, after in self.marks]
        return [earlier.elapsed_time(later) * 1e-3 for earlier, later in itertools.pairwise(ends)]

    def starved_seconds(self) -> list[float]:
        """Return how long the GPU had nothing to do between the end of each step and the beginning of the next."""
        return [
            max(0.0, after.elapsed_time(before) * 1e-3) for (_, after), (before, _) in itertools.pairwise(self.marks)
        ]


def check(training: Training) -> None:
    """Compare the first loss with that of plain fp32, and see that a step on the same batch lowers it."""
    tokens = training.move_batch(next(training.batches))
    with torch.no_grad():
        exact = [float(loss_of(training.model, sequence, mixed=False)) for sequence in tokens.split(1)]
    for _ in range(2):
        training.train_on(tokens)
    first, second = (float(loss) for loss in training.losses)
    reference = sum(exact) / len(exact)
    assert abs(first - reference) <= ACCEPTED_ERROR * reference, f"a loss of {first:.4f}, and {reference:.4f} in fp32"
    assert second < first, f"the loss went from {first:.4f} to {second:.4f}"


def work(device: Device, keys: Keys) -> Work:
    """Train and watch; the samples of the time are those of single steps, spread evenly over what was watched."""
    variant = VARIANTS[str(keys["step"])]
    rates = {"throughput": Rate("token/s", variant.batch * SHAPE.context)}
    training = Training(variant, device.torch_device)
    found: dict[str, Metric] = {}
    times: list[float] = []

    def sample() -> float:
        if not times:
            found.update(watch_training(training))
            every = training.step_seconds()
            times.extend(every[index * len(every) // SAMPLES] for index in range(SAMPLES))
        return times.pop(0)

    return Work([], check=lambda: check(training), rates=rates, sample=sample, further=lambda: found)


def watch_training(training: Training) -> Mapping[str, Metric]:
    """Train for some seconds and return the readings of that time, and what the loop itself knows about it."""
    device = str(training.device)
    training.run(WARM_SECONDS)
    torch.cuda.reset_peak_memory_stats(device)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    with monitor.watch(uuid, interval=INTERVAL) as trace:
        begun = time.perf_counter()
        training.run(WATCHED_SECONDS)
        lasted = time.perf_counter() - begun
    starved, steps = training.starved_seconds(), training.step_seconds()
    return {
        "loading": records.metric("1", [training.loading / lasted]),
        "starved": records.metric("1", [sum(starved) / sum(steps)]),
        "mean_throughput": records.metric(
            "token/s", [len(training.marks) * training.variant.batch * SHAPE.context / lasted]
        ),
        "peak_memory": records.metric("B", [torch.cuda.max_memory_allocated(device)]),
        "loss": records.metric("nat", [float(training.losses[-1])]),
        **traces.as_metrics(trace),
    }


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a step takes of the device's memory: logits, activations, scores, weights."""
    variant = VARIANTS[str(keys["step"])]
    tokens = variant.batch * SHAPE.context
    logits = 16 * SHAPE.vocab_size
    layers = SHAPE.layers * SHAPE.hidden * (40 if variant.mixed else 80)
    scores = 0 if variant.fused_attention else SHAPE.layers * SHAPE.heads * SHAPE.context * 16
    weights = 16 * (12 * SHAPE.layers * SHAPE.hidden**2 + SHAPE.vocab_size * SHAPE.hidden)
    return float(tokens * (logits + layers + scores) + weights)


def lacks_format(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip bf16 on a device that lacks it, or None."""
    if not VARIANTS[str(keys["step"])].mixed or "bf16" in device.supports:
        return None
    return f"trains in bf16, which {device.name} lacks"


SLOW_TRAINING_STEP = Benchmark(
    name="slow-training-step",
    title="A slow training step, mended one change at a time",
    question="What do a GPU's readings say about a slow training step, and what does each change do to them?",
    contenders={"nvml": Contender(work, frozenset({"gpu"}), lacks_format)},
    cases=lambda device: [{"step": name} for name in VARIANTS] if device.is_gpu else [],
    memory=bytes_needed,
    budget=12.0,
    samples=SAMPLES,
)
