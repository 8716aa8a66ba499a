"""Residual addition and layer norm, forward and with its backward pass, in bf16."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from gpuguide import fusion
from gpuguide.benchmarks.inputs import count_input_sets
from gpuguide.fusion import reference
from gpuguide.fusion.cost import add_layer_norm_bytes
from gpuguide.fusion.counting import count_kernels
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate

SHAPES = ((16384, 768), (65536, 768), (8192, 4096), (32768, 4096), (8192, 16384))
"""Tokens and hidden size"""
PASSES = ("forward", "both")
EPSILON = 1e-5
ACCEPTED = 1.5e-2
"""Largest accepted error against float64, as a ratio of norms"""
CHECKED_ROWS = 512
ELEMENT_SIZE = 2

Norm = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Function of x, residual, weight and bias that returns the normalised sum, and the sum"""


def eager(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add, and normalise with PyTorch's own kernel."""
    s = x + residual
    return functional.layer_norm(s, weight.shape, weight, bias, EPSILON), s


def compiled() -> Norm:
    """Return the same, compiled for the one shape that it is called with next."""
    torch.compiler.reset()
    return torch.compile(eager, dynamic=False, fullgraph=True)


def liger() -> Norm:
    """Return the layer norm of Liger Kernel, which takes no residual, after an addition."""
    from liger_kernel.transformers.functional import liger_layer_norm

    def add_and_normalise(x: Any, residual: Any, weight: Any, bias: Any) -> tuple[torch.Tensor, torch.Tensor]:
        s = x + residual
        return liger_layer_norm(s, weight, bias, EPSILON), s

    return add_and_normalise


def quack() -> Norm:
    """Return QuACK's kernels of layer norm with a residual.

    Its functions for layer norm take none, but the operators below them do, which its RMSNorm calls.
    """
    from quack.rmsnorm import _rmsnorm_bwd, _rmsnorm_fwd, get_sm_count

    class AddLayerNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, residual: Any, weight: Any, bias: Any) -> tuple[torch.Tensor, torch.Tensor]:
            y, s = torch.empty_like(x), torch.empty_like(x)
            mean, rstd = (torch.empty(len(x), dtype=torch.float32, device=x.device) for _ in range(2))
            _rmsnorm_fwd(x, weight, y, bias, rstd, mean, residual, s, EPSILON, True)
            ctx.save_for_backward(s, weight, mean, rstd)
            return y, s

        @staticmethod
        def backward(ctx: Any, dy: Any, ds: Any) -> tuple[torch.Tensor, ...]:
            s, weight, mean, rstd = ctx.saved_tensors
            parts = get_sm_count(s.shape[1], s.device)
            dx = torch.empty_like(s)
            dw, db = (torch.empty(parts, s.shape[1], dtype=torch.float32, device=s.device) for _ in range(2))
            _rmsnorm_bwd(s, weight, dy, rstd, dx, dw, db, ds, None, parts, mean=mean, is_layernorm=True)
            return dx, dx, dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype)

    return AddLayerNorm.apply  # type: ignore[no-any-return,unused-ignore]


def values_of(tokens: int, hidden: int, device: str) -> list[torch.Tensor]:
    """Return x, residual, weight and bias, which ask for gradients, and the gradients of both results."""
    x, residual, dy, ds = (torch.randn(tokens, hidden, device=device, dtype=torch.bfloat16) for _ in range(4))
    weight, bias = (torch.randn(hidden, device=device).mul_(0.1).add_(at).bfloat16() for at in (1, 0))
    return [*(each.requires_grad_() for each in (x, residual, weight, bias)), dy, ds]


def results(norm: Norm, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return y, s and the gradients of x, weight and bias."""
    y, s = norm(*values[:4])
    gradients = torch.autograd.grad((y, s), [values[0], *values[2:4]], values[4:])
    return [y.detach(), s.detach(), *gradients]


def relative_errors(norm: Norm, tokens: int, hidden: int, device: str) -> list[float]:
    """Return the errors of all results against float64, on some rows."""
    values = values_of(min(tokens, CHECKED_ROWS), hidden, device)
    exact = results(
        eager, [each.detach().double().requires_grad_() for each in values[:4]] + [each.double() for each in values[4:]]
    )
    found = results(norm, values)
    return [float((got.double() - right).norm() / right.norm()) for got, right in zip(found, exact, strict=True)]


def work(make: Callable[[], Norm], device: Device, keys: Keys) -> Work:
    """Normalise rows of N(0, 1) numbers, and compute the gradients if asked for."""
    tokens, hidden, both = int(keys["tokens"]), int(keys["hidden"]), keys["pass"] == "both"
    errors = relative_errors(make(), tokens, hidden, device.torch_device)
    norm = make()
    moved = add_layer_norm_bytes(tokens, hidden, ELEMENT_SIZE, backward=both)
    sets = [values_of(tokens, hidden, device.torch_device) for _ in range(count_input_sets(moved, device))]

    def call_on(values: list[torch.Tensor]) -> Callable[[], object]:
        def forward() -> object:
            with torch.no_grad():
                return norm(*values[:4])

        def forward_and_backward() -> object:
            return torch.autograd.grad(norm(*values[:4]), values[:4], values[4:])

        return forward_and_backward if both else forward

    calls = [call_on(values) for values in sets]

    def check() -> None:
        assert max(errors) <= ACCEPTED, f"a relative error is {max(errors):.1e}, and {ACCEPTED:.0e} is accepted"
        calls[0]()

    def further() -> Mapping[str, Metric]:
        metrics = {"error": records.metric("1", [max(errors)])}
        if device.backend == "cuda":
            metrics["kernels"] = records.metric("1", [count_kernels(calls[0]).kernels])
        return metrics

    return Work(calls, check, {"bandwidth": Rate("B/s", moved)}, "graph", moved, further=further)


def too_slow(device: Device, keys: Keys) -> str | None:
    """Return why layer norm is not written out for large arrays."""
    large = int(keys["tokens"]) * int(keys["hidden"]) > 2**26
    return "takes several times the memory of the others" if large else None


def contender(make: Callable[[], Norm], *called: str, **more: Any) -> Contender:
    """Return a contender that needs a GPU, with the libraries that it calls."""
    return Contender(functools.partial(work, make), frozenset({"gpu", "bf16"}), libraries=called, **more)


ADD_LAYER_NORM = Benchmark(
    name="add-layer-norm",
    title="Residual addition and layer norm",
    question="How near do fused kernels of a residual addition with layer norm come to moving their data once?",
    contenders={
        "gpuguide": contender(lambda: fusion.add_layer_norm),
        "eager": contender(lambda: eager),
        "by-hand": contender(lambda: reference.add_layer_norm, skip_reason=too_slow),
        "compile": contender(compiled),
        "liger": contender(liger, "liger-kernel"),
        "quack": contender(quack, "quack-kernels", "nvidia-cutlass-dsl"),
    },
    cases=lambda device: [
        {"tokens": tokens, "hidden": hidden, "pass": name}
        for tokens, hidden in SHAPES
        for name in PASSES
        if device.is_gpu
    ],
    memory=lambda keys: 60.0 * ELEMENT_SIZE * int(keys["tokens"]) * int(keys["hidden"]) + 2**30,
    budget=0.1,
    end=torch.compiler.reset,
)
