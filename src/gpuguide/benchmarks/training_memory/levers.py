"""How much memory each method to save training memory saves, and how much longer the step takes.

Each contender is one step: autocast to bf16 on fp32 weights, eager, AdamW. ``torch-default`` has PyTorch's default
AdamW and the loss of all logits; ``fused-adamw`` has AdamW in one kernel; ``chunked-loss`` also the loss in chunks. All
others add one change to that, and ``everything`` adds several: bf16 weights rounded at random with states in 8 bits,
the step inside the backward pass, checkpointing, and compiled layers. ``offload-torch`` is PyTorch's ``save_on_cpu``.

Several models of the larger shape do not fit together, so each contender is set up, measured and freed before the next.
The loss is that of the last steps of :data:`TRAINED`, for contenders whose arithmetic differs from fp32.

The case ``gpt2-transformers`` has the defaults of ``transformers``: fp32, 8 sequences of 512 tokens, dropout, and GELU
in eight operations. ``hf-gelu-tanh`` has GELU in one operation.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from gpuguide.benchmarks.training.contenders import BETAS, LEARNING_RATE, WEIGHT_DECAY
from gpuguide.benchmarks.training.ladder import memory_in_use, memory_metrics
from gpuguide.benchmarks.training_memory import models
from gpuguide.benchmarks.training_memory.models import LayerCall, batches, call_plainly, make_model, shape_of
from gpuguide.costs import memory
from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.measure.timing import wall_clock
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.models.llama import LlamaConfig
from gpuguide.training_memory.eight_bit import AdamW8bit
from gpuguide.training_memory.in_backward import StepInBackward
from gpuguide.training_memory.offload import ActivationOffload
from gpuguide.training_memory.recompute import checkpointed

SAMPLES = 20
WARM_UP = 4
TRAINED = {"gpt2-small": 200, "llama-1b-shape": 50}
"""Steps after which the loss is reported"""
AVERAGED = 8
ACCEPTED = 0.05
"""Largest accepted difference of the loss of a first batch from that of the plain step, as a ratio"""


@dataclass(frozen=True)
class Lever:
    """Settings of a step."""

    layers: str = "kept"
    """Activations: ``kept``; recomputed in ``all`` layers, ``half`` of them or ``selective`` parts; moved to the host
    by ``offload`` or ``offload-torch``"""
    chunked: bool = True
    optimizer: str = "adamw-fused"
    """As the cost model names them"""
    in_backward: bool = False
    narrow: bool = False
    """Weights in bf16 in place of autocast"""
    compiled: bool = False
    budget: float = 1.0
    """Share of activations that the compiler keeps"""


LEVERS = {
    "torch-default": Lever(chunked=False, optimizer="adamw"),
    "fused-adamw": Lever(chunked=False),
    "chunked-loss": Lever(),
    "checkpoint-all": Lever("all"),
    "checkpoint-half": Lever("half"),
    "checkpoint-selective": Lever("selective"),
    "offload-overlapped": Lever("offload"),
    "offload-torch": Lever("offload-torch"),
    "step-in-backward": Lever(in_backward=True),
    "8-bit": Lever(optimizer="adamw-8bit", narrow=True),
    "compile": Lever(compiled=True),
    "budget-0.5": Lever(compiled=True, budget=0.5),
    "budget-0.2": Lever(compiled=True, budget=0.2),
    "everything": Lever("all", optimizer="adamw-8bit", in_backward=True, narrow=True, compiled=True),
}
TRANSFORMERS = {"hf-trainer-like": "gelu_new", "hf-gelu-tanh": "gelu_pytorch_tanh"}
"""Contenders of the case of ``transformers``, with their activation function"""
REPORTS_LOSS = ("chunked-loss", "8-bit", "everything")
CASES: tuple[Keys, ...] = (
    {"model": "gpt2-transformers", "batch": 8, "seq_len": 512},
    {"model": "gpt2-small", "batch": 32, "seq_len": 1024},
    {"model": "llama-1b-shape", "batch": 4, "seq_len": 2048},
)


def setup_of(lever: Lever, keys: Keys) -> memory.Setup | None:
    """Return the setup that the cost model knows a step by, or ``None`` where it knows none."""
    if lever.compiled or lever.layers == "offload-torch":
        return None
    return memory.Setup(
        precision="bf16" if lever.narrow else "mixed",
        batch=int(keys["batch"]),
        seq_len=int(keys["seq_len"]),
        optimizer=lever.optimizer,
        checkpointing=lever.layers in ("all", "half", "selective"),
        checkpoint_every=2 if lever.layers == "half" else 1,
        selective=lever.layers == "selective",
        offloaded=lever.layers == "offload",
        loss="chunked" if lever.chunked else "whole",
        optimizer_in_backward=lever.in_backward,
    )


class LeverStep:
    """A model with what its training needs, and the step that is measured."""

    def __init__(self, lever: Lever, config: GPT2Config | LlamaConfig, device: str) -> None:
        self.lever, self.config, self.device = lever, config, torch.device(device)
        self.model = make_model(config, device, torch.bfloat16 if lever.narrow else torch.float32)
        if lever.compiled:
            for block in self.model.blocks:
                block.compile(dynamic=False)
        self.stream = torch.cuda.Stream() if lever.layers == "offload" and self.device.type == "cuda" else None
        parameters = list(self.model.parameters())
        self.optimizer = None if lever.in_backward else self._optimizer(parameters)
        self.inside = StepInBackward(parameters, self._optimizer) if lever.in_backward else None

    def _optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        settings: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
        if self.lever.optimizer == "adamw-8bit":
            return AdamW8bit(parameters, **settings)
        fused = self.lever.optimizer == "adamw-fused" and self.device.type == "cuda"
        return torch.optim.AdamW(parameters, **settings, fused=fused, foreach=not fused)

    def _call(self) -> LayerCall:
        """Return the function that calls the layers of one forward pass."""
        kind, count = self.lever.layers, len(self.model.blocks)
        if kind == "all":
            return checkpointed
        if kind == "selective":
            return functools.partial(call_selectively, models.kept_in(self.config))
        if kind == "half":
            return HalfRecomputed()
        if kind == "offload":
            return ActivationOffload(self.device, self.stream, last=count - 1)
        return call_plainly

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens and targets, ``(batch, seq_len)`` both."""
        on_host = torch.autograd.graph.save_on_cpu(pin_memory=self.device.type == "cuda")
        with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.lever.narrow):
            with on_host if self.lever.layers == "offload-torch" else nullcontext():
                hidden = models.hidden_states(self.model, tokens, self._call())
            if self.lever.chunked:
                return linear_cross_entropy(hidden, self.model.head.weight, targets)
            return functional.cross_entropy(self.model.head(hidden).flatten(0, 1), targets.flatten())

    def __call__(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Take one step and return its loss."""
        loss = self.loss(tokens, targets)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def call_selectively(keep: tuple[str, ...], layer: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """Return the output of a layer, of which some intermediate outputs are kept and the rest is recomputed."""
    return checkpointed(layer, *inputs, keep=keep)


class HalfRecomputed:
    """Calls layers of which the first, third, … are recomputed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, layer: Any, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the output of a layer."""
        self.count += 1
        return checkpointed(layer, *inputs) if self.count % 2 else call_plainly(layer, *inputs)


class TransformersStep:
    """A training step of GPT-2 of ``transformers`` with its trainer's defaults."""

    def __init__(self, activation: str, device: str, **shape: Any) -> None:
        from transformers import GPT2Config as TheirConfig
        from transformers import GPT2LMHeadModel

        torch.manual_seed(0)
        made: Any = GPT2LMHeadModel(TheirConfig(activation_function=activation, **shape))
        self.model = made.to(device).train()
        fused = device.startswith("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-5, weight_decay=0.0, fused=fused)

    def __call__(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Take one step and return its loss."""
        loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        result: torch.Tensor = loss.detach()
        return result


@contextmanager
def compiler_budget(share: float) -> Iterator[None]:
    """Limit the share of the activations that the compiler keeps."""
    import torch._functorch.config as config

    with config.patch(activation_memory_budget=share):
        yield


Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_step(name: str, keys: Keys, device: str) -> Step:
    """Return the step of a contender."""
    if name in TRANSFORMERS:
        return TransformersStep(TRANSFORMERS[name], device)
    return LeverStep(LEVERS[name], models.CONFIGS[str(keys["model"])], device)


def measure(name: str, device: Device, keys: Keys, make: Callable[..., Step] = make_step) -> tuple[list[float], Any]:
    """Return the seconds of some steps of a contender and its other metrics, and free its memory."""
    draw = batches(keys, device.torch_device)
    with compiler_budget(LEVERS[name].budget if name in LEVERS else 1.0):
        before = memory_in_use(device)
        step = make(name, keys, device.torch_device)
        losses = [float(step(*draw(number))) for number in range(WARM_UP)]
        found: dict[str, Metric] = {"first_loss": records.metric("nat", [losses[0]])}
        if device.backend == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            step(*draw(WARM_UP))
            found |= memory_metrics(device, before)
        batch = draw(WARM_UP)
        sample = wall_clock(
            functools.partial(step, *batch), torch.cuda.synchronize if device.backend == "cuda" else lambda: None
        )
        seconds = [sample() for _ in range(SAMPLES)]
        trained = TRAINED.get(str(keys["model"])) if name in REPORTS_LOSS else None
        if trained:
            last = torch.stack([step(*draw(number)) for number in range(WARM_UP, trained)])
            found["loss"] = records.metric("nat", [float(last[-AVERAGED:].mean())])
    del step, sample
    gc.collect()
    torch.compiler.reset()
    if device.backend == "cuda":
        torch.cuda.empty_cache()
    return seconds, found


_first_losses: dict[str, float] = {}
"""The first loss of each case's first contender"""


def work(name: str, device: Device, keys: Keys) -> Work:
    """Measure a contender now, and return its samples one by one."""
    seconds, found = measure(name, device, keys)
    first = found["first_loss"].samples[0]
    expected = _first_losses.setdefault(str(sorted(keys.items())), first)
    ready = iter(seconds)

    def check() -> None:
        assert abs(first - expected) <= ACCEPTED * expected, f"the first loss is {first:.3f}, not {expected:.3f}"

    def further() -> Mapping[str, Metric]:
        return {metric: value for metric, value in found.items() if metric != "first_loss"}

    rates = {"throughput": Rate("token/s", int(keys["batch"]) * int(keys["seq_len"]))}
    return Work([], check, rates, sample=lambda: next(ready), further=further)


def skip_reason(name: str, device: Device, keys: Keys) -> str | None:
    """Return the reason to leave out a contender, or ``None``."""
    of_transformers = keys["model"] == "gpt2-transformers"
    return None if of_transformers == (name in TRANSFORMERS) else "is measured in another case"


def bytes_needed(keys: Keys) -> float:
    """Return the bytes of the plain step; others are measured after it is freed."""
    if keys["model"] == "gpt2-transformers":
        return 9 * 2.0**30
    setup = setup_of(LEVERS["torch-default"], keys)
    assert setup is not None
    return memory.predict(shape_of(models.CONFIGS[str(keys["model"])]), setup).total


def end() -> None:
    """Forget losses and compiled functions."""
    _first_losses.clear()
    torch.compiler.reset()


def contender(name: str) -> Contender:
    """Return a step as a contender."""
    libraries = ("cublas", "transformers") if name in TRANSFORMERS else ("cublas",)
    return Contender(
        functools.partial(work, name), frozenset({"gpu", "bf16"}), functools.partial(skip_reason, name), libraries
    )


MEMORY_LEVERS = Benchmark(
    name="memory-levers",
    title="Memory that each method saves, and the time it takes",
    question="How much memory does each change to a training step save, and how much longer does the step take?",
    contenders={name: contender(name) for name in (*LEVERS, *TRANSFORMERS)},
    cases=lambda device: CASES if device.is_gpu else [],
    memory=bytes_needed,
    samples=SAMPLES,
    end=end,
)
