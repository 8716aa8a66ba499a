"""The time of a report on the gradients of GPT-2 small, with and without the optimizer.

``item-loop`` computes the same three numbers of each of its 148 parameters in a loop, each fetched with ``item()``, for
which the host waits. ``clip-grad-norm`` is PyTorch's norm of all gradients together, which is fetched once, and nothing
more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import nn

from gpuguide.gradients.report import report
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.shapes import random_model
from gpuguide.training.rungs import whole_loss

SHAPE = GPT2Config()
SEQ_LEN = 64
Numbers = dict[str, tuple[float, float, float]]
"""Norm of the gradient, share of its zeros, and norm of the weights, by parameter"""
Measure = Callable[[nn.Module, torch.optim.Optimizer], Numbers | float]


def by_report(model: nn.Module, optimizer: torch.optim.Optimizer) -> Numbers:
    """Return the numbers of the report."""
    return {row.name: (row.norm, row.zeros, row.weight_norm) for row in report(model).rows}


def by_report_with_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Numbers:
    """Return the numbers of the report that computes updates too."""
    return {row.name: (row.norm, row.zeros, row.weight_norm) for row in report(model, optimizer).rows}


def by_loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Numbers:
    """Return the same numbers, one after another."""
    found = {}
    for name, each in model.named_parameters():
        assert each.grad is not None
        zeros = (each.grad == 0).float().mean()
        found[name] = (each.grad.norm().item(), zeros.item(), each.detach().norm().item())
    return found


def by_clipping(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Return the norm of all gradients together."""
    return float(nn.utils.clip_grad_norm_(model.parameters(), math.inf))


def work(measure: Measure, device: Device, keys: Keys, config: GPT2Config = SHAPE) -> Work:
    """Measure the same gradients again and again."""
    model = random_model(config, device=device.torch_device)
    assert isinstance(model, GPT2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (2, SEQ_LEN + 1), generator=generator).to(device.torch_device)
    for _ in range(2):
        optimizer.zero_grad()
        whole_loss(model)(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()

    def check() -> None:
        found = measure(model, optimizer)
        exact = {name: each.grad.double() for name, each in model.named_parameters() if each.grad is not None}
        if isinstance(found, float):
            total = math.sqrt(sum(float(each.square().sum()) for each in exact.values()))
            assert math.isclose(found, total, rel_tol=1e-4), f"the norm is {found}, and {total} in float64"
            return
        for name, each in exact.items():
            norm, zeros, _ = found[name]
            assert math.isclose(norm, float(each.norm()), rel_tol=1e-4), f"the norm of {name} is {norm}"
            share = float((each == 0).double().mean())
            assert abs(zeros - share) < 1e-4, f"{zeros} of {name} is zero, and {share} in float64"

    return Work([lambda: measure(model, optimizer)], check, timing="wall")


GRADIENT_REPORT = Benchmark(
    name="gradient-report",
    title="A report on gradients, and a loop that waits for each number",
    question="How long does a report on all gradients of a model take?",
    contenders={
        "report": Contender(functools.partial(work, by_report), frozenset({"gpu"})),
        "report-optimizer": Contender(functools.partial(work, by_report_with_optimizer), frozenset({"gpu"})),
        "item-loop": Contender(functools.partial(work, by_loop), frozenset({"gpu"})),
        "clip-grad-norm": Contender(functools.partial(work, by_clipping), frozenset({"gpu"})),
    },
    cases=lambda device: [{"model": "gpt2-small"}] if device.is_gpu else [],
    memory=lambda keys: 4 * 24 * 124_439_808 + 2**31,
    budget=2.0,
)
