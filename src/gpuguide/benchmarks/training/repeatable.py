"""Whether forward and backward pass of GPT-2 small give the same bits twice, by attention kernel, and in what time.

``strict`` is ``torch.use_deterministic_algorithms(True)``, in which PyTorch and the library's own attention take
deterministic kernels, and PyTorch refuses an operation that has none. With ``warn_only=True``, PyTorch's attention
kernels would only warn, and add in any order as before. ``changed_tensors`` counts the parameters whose gradient had
other bits in one of ten runs than in the first. ``graph`` replays the kernels of ``eager`` as one CUDA graph, so that
the host's time to launch them does not count; ``compile`` compiles the whole model with its loss.

The strict cases take ``CUBLAS_WORKSPACE_CONFIG=:4096:8`` in the environment before Python starts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

from gpuguide.attention.choice import GLUON_GENERATION, OURS
from gpuguide.attention.flash import flash_attention
from gpuguide.benchmarks.training import ladder
from gpuguide.benchmarks.training.contenders import windows
from gpuguide.fusion.machine import capture
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models.gpt2 import GPT2, GPT2Attention, GPT2Config
from gpuguide.precision.support import autocast
from gpuguide.training.feeding import split_windows
from gpuguide.training.repeat import WORKSPACE, deterministic, repeat
from gpuguide.training.rungs import whole_loss
from gpuguide.training.step import ATTENTION

SHAPE = GPT2Config(vocab_size=50304)
BATCH, SEQ_LEN = 8, 1024
RUNS = 10
KERNELS = ("flash", "cudnn", "efficient", *OURS)
"""PyTorch's kernels, and the library's own"""
WAYS = ("eager", "graph", "compile")
BF16 = frozenset({"gpu", "bf16"})
COMPILED = "flash"
"""Kernel with which the compiled contender is measured, too"""
ACCEPTED = 0.03
"""Largest relative error of all gradients together against fp32"""


class OwnAttention(GPT2Attention):
    """Attention of GPT-2 by one of the library's own kernels, where it is in 16 bits."""

    backend = "triton"

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mix the positions: ``(batch, seq, hidden)`` to the same shape."""
        parts = self.query_key_value(hidden).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if q.dtype == torch.float32:  # the reference
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = flash_attention(q, k, v, causal=True, backend=self.backend)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def model(kernel: str, device: str, config: GPT2Config) -> GPT2:
    """Return GPT-2 with the same weights each time, whose attention calls a kernel."""
    torch.manual_seed(0)
    made = GPT2(config).to(device).train()
    for block in made.blocks if kernel in OURS else ():
        own = cast(Any, block).attention
        own.__class__, own.backend = OwnAttention, kernel
    return made


@contextmanager
def chosen_kernel(kernel: str, strict: bool) -> Iterator[None]:
    """Let attention take one kernel alone, and PyTorch deterministic kernels if it shall."""
    only: AbstractContextManager[object] = nullcontext() if kernel in OURS else sdpa_kernel([ATTENTION[kernel]])
    settings: AbstractContextManager[object] = deterministic() if strict else nullcontext()
    with only, settings:
        yield


def work(way: str, device: Device, keys: Keys, config: GPT2Config = SHAPE) -> Work:
    """Take forward and backward pass of one batch again and again: ``eager``, as a ``graph``, or by ``compile``."""
    kernel, strict, place = str(keys["attention"]), bool(keys["strict"]), device.torch_device
    tokens, targets = split_windows(windows(keys).draw(0).to(place))
    made = model(kernel, place, config)
    loss = whole_loss(made)
    if way == "compile":
        torch.compiler.reset()  # the eager contender compiles nothing
        loss = torch.compile(loss, fullgraph=True, dynamic=False)

    def call() -> torch.Tensor:
        made.zero_grad(set_to_none=True)
        with chosen_kernel(kernel, strict):
            with autocast("bf16", torch.device(place)):
                value = loss(tokens, targets)
            value.backward()
        return value

    run: Callable[[], object] = capture(call).replay if way == "graph" else call
    captured = held_gradients(made)

    def gradients() -> Mapping[str, torch.Tensor]:
        run()
        return captured if way == "graph" else held_gradients(made)

    def check() -> None:
        expected = {name: each.clone() for name, each in gradients().items()}
        made.zero_grad(set_to_none=True)
        for part, wanted in zip(tokens.split(1), targets.split(1), strict=True):
            with torch.compiler.set_stance("force_eager"):
                (loss(part, wanted) / len(tokens)).backward()
        exact = held_gradients(made)
        wrong = sum(float((expected[name] - each).double().square().sum()) for name, each in exact.items())
        right = sum(float(each.double().square().sum()) for each in exact.values())
        error = (wrong / right) ** 0.5
        assert error <= ACCEPTED, f"the gradients differ from fp32 by {error:.1e}, at most {ACCEPTED} is accepted"

    def further() -> Mapping[str, Metric]:
        changed = repeat(gradients, RUNS)
        return {
            "changed_tensors": records.metric("1", [len(changed)]),
            "same_bits": records.metric("1", [float(not changed)]),
            "largest_change": records.metric("1", [max((each.largest for each in changed), default=0.0)]),
        }

    rates = {"throughput": Rate("token/s", tokens.numel())}
    return Work([run], check, rates, timing="wall", further=further)


def held_gradients(model: GPT2) -> dict[str, torch.Tensor]:
    """Return the gradients that a model's parameters hold, by name."""
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def left_out(way: str, device: Device, keys: Keys) -> str | None:
    """Return why a contender is left out, or None."""
    is_hopper = device.capability is not None and device.capability[0] == GLUON_GENERATION
    if keys["attention"] == "gluon" and not is_hopper:
        return "the Gluon kernel is for compute capability 9.0"
    if keys["strict"] and keys["attention"] == "cudnn":
        return "PyTorch refuses cuDNN's attention in its deterministic mode"
    if keys["strict"] and WORKSPACE not in os.environ:
        return f"set {WORKSPACE}=:4096:8 in the environment before Python starts"
    is_other = way == "compile" and keys["attention"] != COMPILED
    return f"is measured with {COMPILED} attention" if is_other else None


REPEATABLE_STEP = Benchmark(
    name="repeatable-step",
    title="The same bits twice, by attention kernel",
    question="Which attention kernels give the same gradients twice, and what does a deterministic mode take?",
    contenders={
        way: Contender(functools.partial(work, way), BF16, functools.partial(left_out, way), ("cublas", "cudnn"))
        for way in WAYS
    },
    cases=lambda device: [
        {"attention": kernel, "strict": strict, "batch": BATCH, "seq_len": SEQ_LEN}
        for kernel in KERNELS
        for strict in (False, True)
        if device.is_gpu
    ],
    memory=lambda keys: 2 * 16 * 124_475_904 + 24 * BATCH * SEQ_LEN * SHAPE.vocab_size + 2**33,
    budget=1.0,
    end=ladder.end,
)
