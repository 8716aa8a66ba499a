"""The memory that training a GPT-2-shaped model takes, and what each choice changes about it."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric
from gpuguide.models.gpt2 import GPT2, GPT2Config

CONTEXT = 1024
"""Positions that every model knows, as GPT-2 does, whatever the length of the sequences"""
SHAPES = (
    {"layers": 6, "heads": 6, "hidden": 384, "vocab": 8192, "batch": 16, "seq_len": 512},
    {"layers": 12, "heads": 12, "hidden": 768, "vocab": 50257, "batch": 8, "seq_len": 1024},
    {"layers": 12, "heads": 12, "hidden": 768, "vocab": 50257, "batch": 32, "seq_len": 128},
    {"layers": 24, "heads": 16, "hidden": 1024, "vocab": 50257, "batch": 1, "seq_len": 512},
)
"""Mostly activations, activations and logits, logits, and mostly weights. The last three are GPT-2 and GPT-2 medium."""
CHECKED = {"layers": 2, "heads": 4, "hidden": 256, "vocab": 1024, "batch": 2, "seq_len": 256}
ACCEPTED_ERROR = 0.02
"""Largest accepted error of the logits of the checked model against float64, as a ratio of norms"""


@dataclass(frozen=True)
class MemoryVariant:
    """One variant of running a model."""

    weights: torch.dtype = torch.float32
    mixed: bool = False
    """Weights in fp32, matmuls and attention in bf16: PyTorch's autocast"""
    checkpointed: bool = False
    """Keep only what enters a layer, and compute the layer again in the backward pass"""
    fused_attention: bool = True
    """False: write all scores of every head to memory"""
    trains: bool = True


VARIANTS = {
    "train-fp32": MemoryVariant(),
    "train-bf16": MemoryVariant(weights=torch.bfloat16),
    "train-mixed": MemoryVariant(mixed=True),
    "train-checkpointed": MemoryVariant(mixed=True, checkpointed=True),
    "train-unfused": MemoryVariant(mixed=True, fused_attention=False),
    "forward-bf16": MemoryVariant(weights=torch.bfloat16, trains=False),
}


class VariantTraining:
    """A model with what its training needs on a device, and the step that is measured."""

    def __init__(self, variant: MemoryVariant, keys: Keys, device: str) -> None:
        shape = {name: int(value) for name, value in keys.items()}
        self.variant = variant
        config = GPT2Config(
            vocab_size=shape["vocab"],
            context=CONTEXT,
            layers=shape["layers"],
            heads=shape["heads"],
            hidden=shape["hidden"],
        )
        with torch.device(device):
            self.model = GPT2(config).to(variant.weights)
            self.tokens = torch.randint(config.vocab_size, (shape["batch"], shape["seq_len"]))
            self.targets = torch.randint(config.vocab_size, (shape["batch"], shape["seq_len"]))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4) if variant.trains else None

    def logits(self) -> torch.Tensor:
        """Return the scores at every position, ``(batch, seq_len, vocab)``."""
        hidden = self.model.embed(self.tokens)
        for block in self.model.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.variant.checkpointed else block(hidden)
        return self.model.head(self.model.final_norm(hidden))

    def forward(self) -> torch.Tensor:
        """Return the loss; without training the logits, as text generation would."""
        with self.precision(), self.attention(), torch.set_grad_enabled(self.variant.trains):
            if not self.variant.trains:
                return self.logits()
            return functional.cross_entropy(self.logits().flatten(0, 1), self.targets.flatten())

    def precision(self) -> AbstractContextManager[object]:
        """Return the context in which matmuls are computed in bf16, if they are."""
        return torch.autocast(self.tokens.device.type, torch.bfloat16) if self.variant.mixed else nullcontext()

    def attention(self) -> AbstractContextManager[object]:
        """Return the context that chooses the attention."""
        return nullcontext() if self.variant.fused_attention else sdpa_kernel(SDPBackend.MATH)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute all gradients."""
        with self.attention():  # a checkpointed layer computes its attention again
            loss.backward()

    def step(self) -> None:
        """Do one step of training, or one forward pass."""
        result = self.forward()
        if self.optimizer is not None:
            self.backward(result)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def measure_memory(variant: MemoryVariant, keys: Keys, device: str) -> Mapping[str, int]:
    """Return the bytes of device memory in use, at rest and at the highest point of each part of the second step.

    The first step allocates what stays: the state of the optimizer and the workspaces of the libraries.
    """
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # so that this contender's own count
    before = torch.cuda.memory_allocated()

    def peak() -> int:
        highest = torch.cuda.max_memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        return highest

    setup = VariantTraining(variant, keys, device)
    found = {"weights_memory": torch.cuda.memory_allocated() - before}
    setup.step()
    found["resting_memory"] = torch.cuda.memory_allocated() - before
    peak()
    result = setup.forward()
    found["saved_memory"] = torch.cuda.memory_allocated() - before
    found["forward_peak"] = peak()
    if setup.optimizer is not None:
        setup.backward(result)
        found["backward_peak"] = peak()
        setup.optimizer.step()
        found["optimizer_peak"] = peak()
    found["peak_memory"] = max(value for name, value in found.items() if name.endswith("_peak"))
    return found


def work(variant: MemoryVariant, device: Device, keys: Keys) -> Work:
    """Measure the memory once, and the time of a step on a new model each time: one model at a time is alive."""
    found = measure_memory(variant, keys, device.torch_device)

    def sample() -> float:
        setup = VariantTraining(variant, keys, device.torch_device)
        setup.step()
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        setup.step()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) * 1e-9

    def further() -> Mapping[str, Metric]:
        return {name: records.metric("B", [value]) for name, value in found.items()}

    return Work([], lambda: check_logits(variant, device.torch_device), sample=sample, further=further)


@torch.no_grad()
def check_logits(variant: MemoryVariant, device: str) -> None:
    """Check the logits of a small model against float64."""
    setup = VariantTraining(variant, CHECKED, device)
    with setup.precision(), setup.attention():
        logits = setup.logits().double()
    setup.model.double()
    reference = setup.logits()
    error = float(torch.linalg.vector_norm(logits - reference) / torch.linalg.vector_norm(reference))
    assert error <= ACCEPTED_ERROR, f"the relative error is {error:.1e}, and at most {ACCEPTED_ERROR:.0e} is accepted"


def bytes_needed(keys: Keys) -> float:
    """Return roughly what the most demanding variant of a case takes, to leave out what cannot fit."""
    layers, heads, hidden, vocab, batch, seq_len = (int(keys[name]) for name in SHAPES[0])
    tokens = batch * seq_len
    weights = vocab * hidden + CONTEXT * hidden + 12 * layers * hidden**2
    scores = 4 * batch * heads * seq_len**2
    activations = layers * (64 * tokens * hidden + scores) + 2 * scores
    return max(12 * weights + activations + 12 * tokens * vocab, 20 * weights) + 2**28


def contender(variant: MemoryVariant) -> Contender:
    """Return a variant of training as a contender. CUDA's allocator counts, so it needs a GPU."""
    needs = {"gpu"} if variant == MemoryVariant() else {"gpu", "bf16"}
    return Contender(lambda device, keys: work(variant, device, keys), frozenset(needs), libraries=("cublas",))


TRAINING_MEMORY = Benchmark(
    name="training-memory",
    title="Memory of a training step, by shape and by variant",
    question="How much memory does training take at its highest point, and in which part of a step?",
    contenders={name: contender(variant) for name, variant in VARIANTS.items()},
    cases=lambda device: SHAPES if device.is_gpu else [],
    memory=bytes_needed,
    samples=20,
)
